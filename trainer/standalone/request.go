package standalone

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/lines"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// request is a parsed line.
type request struct {
	id   json.RawMessage // the line's "id", copied to the reply; nil if absent
	ids  []int32
	text bool // ids were encoded from text or messages
}

// parseRequest reads {"ids"}, {"text"} or, if chat is true, {"messages", ...} with the other inputs of a chat template.
// Text gets the tokens that the tokenizer's post-processor adds, such as a beginning-of-text token. Messages end with
// the template's generation prompt unless the line sets add_generation_prompt: false. Other keys are ignored.
func parseRequest(c *Checkpoint, in input, chat bool) (q request, err error) {
	if in.err != nil {
		return q, in.err
	}
	value, err := ordered.Parse(in.data)
	if err != nil {
		return q, err
	}
	row, ok := value.(*ordered.Object)
	if !ok {
		return q, fmt.Errorf("want an object, have %s", ordered.TypeName(value))
	}
	if id, ok := row.Get("id"); ok {
		text, err := ordered.Dumps(id, ordered.Format{})
		if err != nil {
			return q, fmt.Errorf("id: %w", err)
		}
		q.id = json.RawMessage(text)
	}
	q.ids, q.text, err = tokens(c, row, chat)
	if err != nil {
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

func tokens(c *Checkpoint, row *ordered.Object, chat bool) (ids []int32, text bool, err error) {
	keys := []string{"ids", "text"}
	if chat {
		keys = append(keys, "messages")
	}
	var given []string
	for _, key := range keys {
		if v, _ := row.Get(key); v != nil {
			given = append(given, key)
		}
	}
	if len(given) != 1 {
		return nil, false, fmt.Errorf("the line must have exactly one of %q, but has %q", keys, given)
	}
	if given[0] == "ids" {
		ids, err = lines.ReadIDs(row)
		return ids, false, err
	}
	if c.Tokenizer == nil {
		return nil, true, c.NoTokenizerError()
	}
	if given[0] == "messages" {
		if _, ok := row.Get("add_generation_prompt"); !ok {
			row.Set("add_generation_prompt", true)
		}
		conversation, err := lines.ReadChat(row)
		if err != nil {
			return nil, true, err
		}
		prompt, err := c.Tokenizer.Render(conversation)
		return c.Tokenizer.Encode(prompt), true, err
	}
	v, _ := row.Get("text")
	s, ok := v.(string)
	if !ok {
		return nil, true, fmt.Errorf(`"text" is of type %s, want str`, ordered.TypeName(v))
	}
	return c.Tokenizer.EncodeWithSpecial(s), true, nil
}
