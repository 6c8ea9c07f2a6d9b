package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bench/phases"
	"github.com/mgrpo/mgrpo/trainer/engine/policy/remote"
)

type benchRolloutCmd struct {
	benchFlags
	Engine string `enum:"vllm,sglang," default:"" placeholder:"vllm|sglang" help:"Instead, compare rollouts with a running server's (docs/engines.md)."`
	URL    string `name:"url" placeholder:"URL" help:"With --engine: the server's address, such as http://127.0.0.1:8000."`
	Model  string `type:"existingdir" placeholder:"DIR" help:"With --engine: folder of the model that the server serves."`
	DType  string `name:"dtype" enum:"fp32,bf16" default:"fp32" help:"With --engine: type of the weights that mgrpo uses."`
}

func (c *benchRolloutCmd) Run(ctx context.Context) error {
	if c.Engine == "" {
		return c.phase(ctx, "rollout")
	}
	if c.URL == "" || c.Model == "" {
		return errors.New("--engine also needs --url, the server's address, and --model, the folder that it serves")
	}
	s := phases.Server{Kind: remote.Kind(c.Engine), URL: c.URL, Model: c.Model, Half: c.DType == "bf16"}
	return c.suite(func(o measure.Options) (*measure.Results, error) {
		if c.Out == "" {
			o.Save = nil // it is not a row of the suite's file
		}
		return phases.CompareInTurn(ctx, s, o)
	})
}

type benchLearnerCmd struct {
	benchFlags
	Ranks int `default:"1" placeholder:"N" help:"Instead, compare updates on N devices, one process each, and on one. --device cuda: the first N GPUs."`
}

func (c *benchLearnerCmd) Run(ctx context.Context) error {
	switch {
	case c.Ranks < 1:
		return fmt.Errorf("--ranks is %d: want at least 1", c.Ranks)
	case c.Ranks == 1:
		return c.phase(ctx, "learner")
	}
	return c.suite(func(o measure.Options) (*measure.Results, error) {
		if c.Out == "" {
			o.Save = nil // it is not a row of the suite's file
		}
		return phases.Ranks(ctx, c.Ranks, o)
	})
}

type benchStepCmd struct{ benchFlags }

func (c *benchStepCmd) Run(ctx context.Context) error {
	return c.phase(ctx, "step")
}

type benchDecodeCmd struct{ benchFlags }

func (c *benchDecodeCmd) Run(ctx context.Context) error {
	return c.suite(func(o measure.Options) (*measure.Results, error) { return phases.Decode(ctx, o) })
}

func (f benchFlags) phase(ctx context.Context, name string) error {
	return f.suite(func(o measure.Options) (*measure.Results, error) { return phases.Run(ctx, name, o) })
}
