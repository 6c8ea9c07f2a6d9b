// Package jsonl is the logic of `mgrpo tokenize` and `mgrpo render`: JSON lines in, JSON lines out.
package jsonl

import (
	"errors"
	"io"

	"github.com/mgrpo/mgrpo/trainer/tokenizer"
)

// Tokenize reads {"text"} lines and writes {"ids"} lines, or with decode the other way round.
func Tokenize(t *tokenizer.Tokenizer, r io.Reader, w io.Writer, decode bool) error {
	return errors.New("not there yet")
}

// Render reads {"messages","tools","add_generation_prompt","enable_thinking","template_kwargs"} lines and
// writes {"text","ids"} lines.
func Render(t *tokenizer.Tokenizer, r io.Reader, w io.Writer) error {
	return errors.New("not there yet")
}
