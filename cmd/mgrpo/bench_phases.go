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
	return f.suite(ctx, name, func(f benchFlags, save func(*measure.Results) error) (*measure.Results, error) {
		return phases.Run(ctx, name, phases.Options{Root: ".", Threads: f.Threads, Peers: f.Peers, Quick: f.Quick, Only: f.Only, Log: f.log, Save: save})
	})
}
