package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// ErrNoTemplate is Render's error for a tokenizer without a chat template.
var ErrNoTemplate = errors.New("tokenizer: no chat template: add chat_template.jinja, or chat_template in tokenizer_config.json")

type template = jinja.Template

// Chat is the input of a chat template. Its values are values of package ordered.
type Chat struct {
	Messages            []any // usually each an *ordered.Object; see Messages and Message.JSON
	Tools               []any // function definitions; nil: not passed to the template, which can distinguish this from an empty list
	AddGenerationPrompt bool
	EnableThinking      *bool           // nil: not passed to the template
	Date                time.Time       // time that strftime_now prints; zero: the current time
	Kwargs              *ordered.Object // further variables of the template; nil: none
}

// HasTemplate reports whether the tokenizer has a chat template.
func (t *Tokenizer) HasTemplate() bool { return t.chat.plain != nil || t.chat.withTools != nil }

// Render renders a chat as Hugging Face's apply_chat_template(tokenize=False) does. It uses the template
// named tool_use if that exists and the chat has tools. Encode the text with Encode. Render returns an
// error if Jinja or Python would raise an exception (an attribute of an undefined value, None added to a
// string). It also returns one if the template exceeds the limits on steps, memory or output.
func (t *Tokenizer) Render(c Chat) (string, error) {
	chosen, err := t.chat.choose(c.Tools != nil)
	if err != nil {
		return "", err
	}
	vars := map[string]any{}
	for name, text := range t.named {
		vars[name] = text
	}
	vars["messages"], vars["add_generation_prompt"] = append([]any{}, c.Messages...), c.AddGenerationPrompt
	vars["tools"], vars["documents"] = nil, nil
	if c.Tools != nil {
		vars["tools"] = c.Tools
	}
	if c.EnableThinking != nil {
		vars["enable_thinking"] = *c.EnableThinking
	}
	maps.Insert(vars, c.Kwargs.All())
	now := c.Date
	if now.IsZero() {
		now = time.Now()
	}
	text, err := chosen.Render(vars, now)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}
