// Package lines implements `mgrpo tokenize` and `mgrpo render`: it reads JSON lines and writes JSON lines, one at a time.
// It ignores unknown keys. An error names its line; the replies to earlier lines have been written by then.
package lines

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/mgrpo/mgrpo/trainer/internal/textfile"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// MaxLine is the size of the longest line, in bytes.
const MaxLine = 64 << 20

// Tokenize reads {"text"} lines and writes {"ids"} lines; with decode it reads {"ids"} and writes {"text"}. Unknown ids
// decode to no text.
func Tokenize(t *tokenizer.Tokenizer, r io.Reader, w io.Writer, decode bool) error {
	return each(r, w, func(row *ordered.Object) (*ordered.Object, error) {
		if decode {
			ids, err := ReadIDs(row)
			if err != nil {
				return nil, err
			}
			return ordered.NewObject("text", t.Decode(ids, false)), nil
		}
		text, err := field[string](row, "text", nil)
		if err != nil {
			return nil, err
		}
		return ordered.NewObject("ids", writeIDs(t.Encode(text))), nil
	})
}

// Render reads {"messages","tools","add_generation_prompt","enable_thinking","template_kwargs"} lines and writes
// {"text","ids"} lines. Only messages is required. The default of add_generation_prompt is false, as in Hugging Face's
// apply_chat_template.
func Render(t *tokenizer.Tokenizer, r io.Reader, w io.Writer) error {
	return each(r, w, func(row *ordered.Object) (*ordered.Object, error) {
		chat, err := ReadChat(row)
		if err != nil {
			return nil, err
		}
		text, err := t.Render(chat)
		if err != nil {
			return nil, err
		}
		return ordered.NewObject("text", text, "ids", writeIDs(t.Encode(text))), nil
	})
}

// ReadChat reads the chat of a line of Render.
func ReadChat(row *ordered.Object) (c tokenizer.Chat, err error) {
	if c.Messages, err = field[[]any](row, "messages", nil); err != nil {
		return c, err
	}
	if c.Tools, err = field(row, "tools", new([]any)); err != nil { // [] differs from an absent key
		return c, err
	}
	if c.AddGenerationPrompt, err = field(row, "add_generation_prompt", new(bool)); err != nil {
		return c, err
	}
	if v, _ := row.Get("enable_thinking"); v != nil {
		thinking, err := field[bool](row, "enable_thinking", nil)
		if err != nil {
			return c, err
		}
		c.EnableThinking = &thinking
	}
	c.Kwargs, err = field(row, "template_kwargs", new(*ordered.Object))
	return c, err
}

// each applies f to each line. It skips empty lines.
func each(r io.Reader, w io.Writer, f func(*ordered.Object) (*ordered.Object, error)) error {
	lines := bufio.NewScanner(textfile.NewReader(r))
	lines.Buffer(nil, MaxLine)
	out := bufio.NewWriter(w)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		if err := line(lines.Bytes(), out, f); err != nil {
			return errors.Join(fmt.Errorf("line %d: %w", n, err), out.Flush())
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("line %d: longer than %d MiB", n+1, MaxLine>>20)
	} else if err != nil {
		return fmt.Errorf("after line %d: %w", n, err)
	}
	return nil
}

func line(data []byte, out *bufio.Writer, f func(*ordered.Object) (*ordered.Object, error)) error {
	v, err := ordered.Parse(data)
	if err != nil {
		return err
	}
	row, ok := v.(*ordered.Object)
	if !ok {
		return fmt.Errorf("want an object, have %s", ordered.TypeName(v))
	}
	result, err := f(row)
	if err != nil {
		return err
	}
	text, err := ordered.Dumps(result, ordered.Format{})
	if err != nil {
		return err
	}
	out.WriteString(text)
	return out.WriteByte('\n')
}

// field returns a key's value, or *fallback if the key is absent or null. Without a fallback, an absent key is an error.
func field[T any](row *ordered.Object, key string, fallback *T) (T, error) {
	v, _ := row.Get(key)
	if v == nil && fallback != nil {
		return *fallback, nil
	}
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("%q is of type %s, want %s", key, ordered.TypeName(v), ordered.TypeName(any(t)))
	}
	return t, nil
}

// ReadIDs reads the token ids of a line: "ids", integers from 0 to 2^31-1.
func ReadIDs(row *ordered.Object) ([]int32, error) {
	list, err := field[[]any](row, "ids", nil)
	if err != nil {
		return nil, err
	}
	ids := make([]int32, len(list))
	for i, v := range list {
		id, ok := v.(int64)
		if !ok || id < 0 || id > 1<<31-1 {
			return nil, fmt.Errorf("ids[%d] is not a token id", i)
		}
		ids[i] = int32(id)
	}
	return ids, nil
}

func writeIDs(ids []int32) []any {
	list := make([]any, len(ids))
	for i, id := range ids {
		list[i] = int64(id)
	}
	return list
}
