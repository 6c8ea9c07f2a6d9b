package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type scoreCmd struct {
	modelFlags
	linesFlags
	Temperature float64 `default:"1" help:"Divides the logits."`
	BatchTokens int     `default:"4096" help:"Largest number of tokens of a forward pass."`
}

func (scoreCmd) Help() string {
	return `An input line is {"text": "..."}, or {"ids": [...]}, which also works for a model without a tokenizer.

Lines are answered in order with {"logprobs", "entropy"} in nats, one entry for each id except the first. A line's "id"
is copied to its answer. A line that cannot be answered gets {"error"}, and the exit status is then 1.

  echo '{"ids": [5, 17, 9]}' | mgrpo score --model DIR`
}

func (c *scoreCmd) Run(ctx context.Context) (err error) {
	if !(c.Temperature > 0 && c.Temperature <= 1e6) || c.BatchTokens < 1 {
		return errors.New("--temperature must be above 0 and --batch-tokens at least 1")
	}
	checkpoint, err := c.open(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, checkpoint.Close(context.WithoutCancel(ctx))) }()
	progressLine := startProgress(os.Stderr, "scored")
	defer progressLine.stop()
	return c.convert(func(r io.Reader, w io.Writer) error {
		opt := standalone.ScoreOptions{Temperature: c.Temperature, BatchTokens: c.BatchTokens, Progress: progressLine.add}
		tally, err := checkpoint.Score(ctx, opt, r, w)
		return errors.Join(err, tally.Err())
	})
}
