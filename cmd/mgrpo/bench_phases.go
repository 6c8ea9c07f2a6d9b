package main

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
)

type benchRolloutCmd struct{ benchFlags }

func (c *benchRolloutCmd) Run(ctx context.Context) error { return c.phase(ctx, "rollout") }

type benchLearnerCmd struct{ benchFlags }

func (c *benchLearnerCmd) Run(ctx context.Context) error { return c.phase(ctx, "learner") }

type benchStepCmd struct {
	benchFlags
	Profile bool `help:"Measure nothing: say where the time of a TRL step goes, by part and by operator."`
}

func (c *benchStepCmd) Run(ctx context.Context) error {
	if c.Profile {
		return phases.Profile(ctx, c.options(), func(text string) { fmt.Println(text) })
	}
	return c.phase(ctx, "step")
}

func (f benchFlags) phase(ctx context.Context, name string) error {
	return f.suite(func(o measure.Options) (*measure.Results, error) { return phases.Run(ctx, name, o) })
}
