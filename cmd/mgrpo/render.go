package main

import (
	"io"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/lines"
	"github.com/mgrpo/mgrpo/trainer/standalone"
)

type renderCmd struct {
	tokenizerFlag
	linesFlags
}

func (renderCmd) Help() string {
	return `Turns lines {"messages": [...]} into {"text", "ids"} with the model's chat template. A line may also contain "tools",
"add_generation_prompt", "enable_thinking" and "template_kwargs".`
}

func (c *renderCmd) Run() error {
	t, err := standalone.LoadTokenizer(c.Model)
	if err != nil {
		return err
	}
	return c.convert(func(r io.Reader, w io.Writer) error { return lines.Render(t, r, w) })
}
