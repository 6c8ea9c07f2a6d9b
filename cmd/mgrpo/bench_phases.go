package main

import (
	"context"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
)

type benchRolloutCmd struct{ benchFlags }

func (c *benchRolloutCmd) Run(ctx context.Context) error { return c.phase(ctx, "rollout") }

type benchLearnerCmd struct{ benchFlags }

func (c *benchLearnerCmd) Run(ctx context.Context) error { return c.phase(ctx, "learner") }

type benchStepCmd struct{ benchFlags }

func (c *benchStepCmd) Run(ctx context.Context) error { return c.phase(ctx, "step") }

func (f benchFlags) phase(ctx context.Context, name string) error {
	return f.suite(func(o measure.Options) (*measure.Results, error) { return phases.Run(ctx, name, o) })
}
