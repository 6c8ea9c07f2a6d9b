package main

import (
	"context"
	"errors"
	"io"

	"github.com/mgrpo/mgrpo/trainer/standalone"
)

// tokenizerFlag names a model. Only the files of its tokenizer are needed.
type tokenizerFlag struct {
	Model string `required:"" placeholder:"MODEL" help:"Folder with a tokenizer.json, GGUF file, or ORG/NAME[@REVISION] of a model in the Hub's local cache."`
}

type tokenizeCmd struct {
	tokenizerFlag
	linesFlags
	Decode bool `help:"Turn token ids into text."`
}

func (tokenizeCmd) Help() string {
	return `Turns lines {"text": "..."} into {"ids": [...]}, or the reverse with --decode. No token is added before or after a text.
Added tokens in the text, such as <|im_end|>, are recognised. A line that cannot be answered gets {"error"}, and the exit status is then 1.`
}

func (c *tokenizeCmd) Run(ctx context.Context) error {
	t, err := standalone.LoadTokenizer(c.Model)
	if err != nil {
		return err
	}
	answer := standalone.Tokenize
	if c.Decode {
		answer = standalone.Detokenize
	}
	return c.convert(func(r io.Reader, w io.Writer) error {
		tally, err := answer(ctx, t, r, w)
		return errors.Join(err, tally.Err())
	})
}
