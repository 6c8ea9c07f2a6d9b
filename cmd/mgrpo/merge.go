package main

import (
	"context"
	"errors"

	"github.com/mgrpo/mgrpo/trainer/engine/policy/standalone"
)

type mergeCmd struct {
	Model   string `required:"" placeholder:"MODEL" help:"The base: a Hugging Face folder, GGUF file, or ORG/NAME[@REVISION] of the Hub if it is in the local cache."`
	Adapter string `required:"" placeholder:"DIR" help:"Folder of a LoRA adapter, as PEFT writes it."`
	Out     string `required:"" placeholder:"DIR" help:"Folder to write; it must not exist."`
}

func (mergeCmd) Help() string {
	return `Writes a complete checkpoint, for programs that read no adapters. Weights keep the type of the base's files; a changed
weight, W + scale B A, is computed in float32 and rounded once.

  mgrpo merge --model models/SmolLM2-135M --adapter runs/x/checkpoints/step-000020/planner --out merged`
}

func (c *mergeCmd) Run(ctx context.Context) (err error) {
	p, err := standalone.Open(ctx, c.Model, standalone.Options{Device: "cpu", DType: "fp32", Adapter: c.Adapter})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	return p.Merge(ctx, c.Out)
}
