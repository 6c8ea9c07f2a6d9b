package standalone

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// parsedLine is a line of token ids, or of text that was encoded.
type parsedLine struct {
	id   json.RawMessage // the line's "id", copied to the reply; nil if absent
	ids  []int32
	text bool // ids were encoded from text or messages
}

// parseLine reads {"ids"}, {"text"} or, if chat is true, {"messages", ...} with the other inputs of a chat template.
// Text gets the tokens that the tokenizer's post-processor adds, such as a beginning-of-text token. Messages end with
// the template's generation prompt unless the line sets add_generation_prompt: false. Other keys are ignored.
func parseLine(c *Checkpoint, in input, chat bool) (q parsedLine, err error) {
	id, row, err := parseRow(in)
	q.id = id
	if err != nil {
		return q, err
	}
	if q.ids, q.text, err = tokens(c, row, chat); err != nil {
		return q, err
	}
	if len(q.ids) == 0 {
		return q, errors.New("no tokens: at least one is needed")
	}
	for i, id := range q.ids {
		if int(id) >= c.model.Config.VocabSize {
			return q, fmt.Errorf("ids[%d] is %d, outside the vocabulary of %d", i, id, c.model.Config.VocabSize)
		}
	}
	return q, nil
}

// parseRow reads a line's object and its "id", which is nil if it is absent.
func parseRow(in input) (id json.RawMessage, row *ordered.Object, err error) {
	if in.err != nil {
		return nil, nil, in.err
	}
	value, err := ordered.Parse(in.data)
	if err != nil {
		return nil, nil, err
	}
	row, ok := value.(*ordered.Object)
	if !ok {
		return nil, nil, fmt.Errorf("want an object, have %s", ordered.TypeName(value))
	}
	if v, ok := row.Get("id"); ok {
		text, err := ordered.Dumps(v, ordered.Format{})
		if err != nil {
			return nil, nil, fmt.Errorf("id: %w", err)
		}
		id = json.RawMessage(text)
	}
	return id, row, nil
}

func tokens(c *Checkpoint, row *ordered.Object, chat bool) (ids []int32, text bool, err error) {
	keys := []string{"ids", "text"}
	if chat {
		keys = append(keys, "messages")
	}
	var fields []string
	for _, key := range keys {
		if v, _ := row.Get(key); v != nil {
			fields = append(fields, key)
		}
	}
	if len(fields) != 1 {
		return nil, false, fmt.Errorf("the line must have exactly one of %q, but has %q", keys, fields)
	}
	if fields[0] == "ids" {
		ids, err = readIDs(row)
		return ids, false, err
	}
	if c.Tokenizer == nil {
		return nil, true, c.NoTokenizerError()
	}
	if fields[0] == "messages" {
		if _, ok := row.Get("add_generation_prompt"); !ok {
			row.Set("add_generation_prompt", true)
		}
		conversation, err := readChat(row)
		if err != nil {
			return nil, true, err
		}
		prompt, err := c.Tokenizer.Render(conversation)
		return c.Tokenizer.Encode(prompt), true, err
	}
	s, err := field[string](row, "text", nil)
	return c.Tokenizer.EncodeWithSpecial(s), true, err
}

// readChat reads the keys of a line that are inputs of a chat template.
func readChat(row *ordered.Object) (c tokenizer.Chat, err error) {
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

// readIDs reads the token ids of a line: "ids", integers from 0 to 2^31-1.
func readIDs(row *ordered.Object) ([]int32, error) {
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

// field returns a key's value, or *fallback if the key is absent or null. Without a fallback, an absent key is an error.
func field[T any](row *ordered.Object, key string, fallback *T) (T, error) {
	v, _ := row.Get(key)
	if v == nil {
		if fallback == nil {
			var none T
			return none, fmt.Errorf("the key %q is missing", key)
		}
		return *fallback, nil
	}
	t, ok := v.(T)
	if !ok {
		return t, fmt.Errorf("%q is of type %s, want %s", key, ordered.TypeName(v), ordered.TypeName(any(t)))
	}
	return t, nil
}
