package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type generateCmd struct {
	modelFlags
	samplingFlags
	linesFlags
	Slots   int `default:"8" help:"Number of lines sampled at once."`
	Context int `default:"2048" help:"Largest number of tokens of prompt and answer, within the model's own limit; 0: that limit."`
}

func (generateCmd) Help() string {
	return `An input line is {"ids": [...]}, {"text": "..."} or {"messages": [...]}. A line with messages may also contain other
inputs of the chat template: "tools", "enable_thinking", "template_kwargs".

Lines are answered in order with {"ids", "text", "logprobs", "finish_reason"}. A line's "id" is copied to its answer. A
line that cannot be answered gets {"error"}, and the exit status is then 1. On a CPU an answer depends only on the
seed, the line's number and its prompt, if the model computes rows independently.

  echo '{"text": "Once upon a time"}' | mgrpo generate --model DIR`
}

func (c *generateCmd) Run(ctx context.Context) (err error) {
	sampling, err := c.sampling()
	if err != nil {
		return err
	}
	checkpoint, err := c.open(ctx, c.Context)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close(context.WithoutCancel(ctx))) }()
	if len(sampling.StopStrings) > 0 && checkpoint.Tokenizer == nil {
		return checkpoint.NoTokenizerError()
	}
	engine, err := checkpoint.OpenEngine(ctx, c.Slots)
	if err != nil {
		return err
	}
	progressLine := startProgress(os.Stderr, "sampled")
	defer progressLine.stop()
	return c.convert(func(r io.Reader, w io.Writer) error {
		opt := standalone.GenerateOptions{Sampling: sampling, Seed: c.Seed, InFlight: 4 * c.Slots, Progress: progressLine.add}
		tally, err := checkpoint.Generate(ctx, engine, opt, r, w)
		return errors.Join(err, tally.Err())
	})
}
