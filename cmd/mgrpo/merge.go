package main

import (
	"context"
	"errors"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type mergeCmd struct {
	Model   string `required:"" placeholder:"MODEL" help:"The base: Hugging Face folder, GGUF file, or ${hub_model}."`
	Adapter string `required:"" placeholder:"DIR" help:"Folder of a LoRA adapter in PEFT's format."`
	Out     string `short:"o" required:"" placeholder:"DIR" help:"Folder to write; it must not exist."`
}

func (mergeCmd) Help() string {
	return `Writes a complete checkpoint, for programs that do not read adapters. Weights keep the type of the base's files. A
changed weight, W + scale B A, is computed in float32 and rounded once.

  mgrpo merge --model models/SmolLM2-135M --out merged \
    --adapter runs/x/checkpoints/step-000020/planner`
}

func (c *mergeCmd) Run(ctx context.Context) (err error) {
	checkpoint, err := standalone.Open(ctx, c.Model, standalone.Options{Device: "cpu", DType: "fp32", Adapter: c.Adapter})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close(context.WithoutCancel(ctx))) }()
	return checkpoint.Merge(ctx, c.Out)
}
