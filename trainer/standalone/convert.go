package standalone

import (
	"context"
	"encoding/json"
	"io"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// conversion is the reply of Tokenize, Detokenize and Render.
type conversion struct {
	ID   json.RawMessage `json:"id,omitempty"`
	Text *string         `json:"text,omitempty"`
	IDs  *[]int32        `json:"ids,omitempty"`
}

// Tokenize answers each line {"text"} of r with {"ids"}. It adds no tokens before or after the text. Unknown keys are ignored, and a
// line's "id" is copied to its reply. Tokenize returns an error if reading or writing fails; the Tally counts refused lines.
func Tokenize(ctx context.Context, t *tokenizer.Tokenizer, r io.Reader, w io.Writer) (Tally, error) {
	return convert(ctx, r, w, func(row *ordered.Object) (c conversion, err error) {
		text, err := field[string](row, "text", nil)
		return conversion{IDs: new(t.Encode(text))}, err
	})
}

// Detokenize answers each line {"ids"} of r with {"text"}, which includes special tokens. Unknown ids are omitted. Otherwise it works
// like Tokenize.
func Detokenize(ctx context.Context, t *tokenizer.Tokenizer, r io.Reader, w io.Writer) (Tally, error) {
	return convert(ctx, r, w, func(row *ordered.Object) (c conversion, err error) {
		ids, err := readIDs(row)
		return conversion{Text: new(t.Decode(ids, false))}, err
	})
}

// Render answers each line {"messages", "tools", "add_generation_prompt", "enable_thinking", "template_kwargs"} of r with
// {"text", "ids"}, the chat in the tokenizer's chat template. Only messages is required. The default of add_generation_prompt
// is false, as in Hugging Face's apply_chat_template. Otherwise it works like Tokenize.
func Render(ctx context.Context, t *tokenizer.Tokenizer, r io.Reader, w io.Writer) (Tally, error) {
	return convert(ctx, r, w, func(row *ordered.Object) (c conversion, err error) {
		chat, err := readChat(row)
		if err != nil {
			return c, err
		}
		text, err := t.Render(chat)
		return conversion{Text: &text, IDs: new(t.Encode(text))}, err
	})
}

// convert answers each line with f before it reads the next line.
func convert(ctx context.Context, r io.Reader, w io.Writer, f func(*ordered.Object) (conversion, error)) (Tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines, ended := readLines(ctx, r, 0)
	out := newOutput(w)
	for in, ok := receive(ctx, lines); ok; in, ok = receive(ctx, lines) {
		var reply conversion
		id, row, err := parseRow(in)
		if err == nil {
			reply, err = f(row)
		}
		reply.ID = id
		if err := out.write(in.number, id, reply, err); err != nil {
			return out.tally, err
		}
		if err := out.buf.Flush(); err != nil {
			return out.tally, err
		}
	}
	if err := ctx.Err(); err != nil {
		return out.tally, err
	}
	return out.tally, <-ended
}
