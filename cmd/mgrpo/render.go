package main

import (
	"context"
	"errors"
	"io"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type renderCmd struct {
	tokenizerFlag
	linesFlags
}

func (renderCmd) Help() string {
	return `Turns lines {"messages": [...]} into {"text", "ids"} with the model's chat template. A line may also contain "tools",
"add_generation_prompt", "enable_thinking" and "template_kwargs". A line that cannot be answered gets {"error"}, and the exit
status is then 1.`
}

func (c *renderCmd) Run(ctx context.Context) error {
	t, err := standalone.LoadTokenizer(c.Model)
	if err != nil {
		return err
	}
	return c.convert(func(r io.Reader, w io.Writer) error {
		tally, err := standalone.Render(ctx, t, r, w)
		return errors.Join(err, tally.Err())
	})
}
