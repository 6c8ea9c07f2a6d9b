package main

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type exportCmd struct {
	Model   string `required:"" placeholder:"MODEL" help:"Hugging Face folder (such as an agent's in a checkpoint), GGUF file, or ${hub_model}."`
	Adapter string `placeholder:"DIR" help:"Folder of a LoRA adapter in PEFT's format, to merge into the model."`
	GGUF    string `name:"gguf" required:"" placeholder:"FILE" help:"GGUF file to write."`
	Type    string `default:"BF16" enum:"F32,BF16,F16,Q8_0" help:"Type of the matrices: F32, BF16, F16 or Q8_0."`
}

func (exportCmd) Help() string {
	return `Writes weights, tokenizer and chat template into a GGUF file that llama.cpp reads. If the format has no key for one of
the model's settings, the command fails and names the setting.

  mgrpo export --model runs/x/checkpoints/step-000020/planner \
    --gguf planner.gguf --type Q8_0`
}

func (c *exportCmd) Run(ctx context.Context) error {
	if err := standalone.Export(ctx, c.Model, c.GGUF, standalone.ExportOptions{Adapter: c.Adapter, DType: c.Type}); err != nil {
		return err
	}
	fmt.Printf("wrote %s\n", c.GGUF)
	return nil
}
