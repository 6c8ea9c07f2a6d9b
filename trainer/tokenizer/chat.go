package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mgrpo/mgrpo/trainer/tokenizer/jinja"
	"github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"
)

// ErrNoTemplate is Render's error for a tokenizer without a chat template.
var ErrNoTemplate = errors.New("tokenizer: no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json")

type template = jinja.Template

// Chat is what a chat template renders. Its values are ordered ones (see package ordered).
type Chat struct {
	Messages            []any // usually *ordered.Object each; see Messages and Message.JSON
	Tools               []any // function definitions; nil: none are passed, which templates may tell from an empty list
	AddGenerationPrompt bool
	EnableThinking      *bool           // nil: not passed to the template
	Date                time.Time       // what strftime_now prints; zero: the clock's
	Kwargs              *ordered.Object // further variables of the template; nil: none
}

// HasTemplate says whether the tokenizer came with a chat template.
func (t *Tokenizer) HasTemplate() bool { return t.template != nil }

// Render renders a chat as Hugging Face's apply_chat_template(tokenize=False) does. Encode gives its ids.
// What Jinja and Python refuse (something looked up in an undefined value, None added to a string) is an
// error, and so is a template that runs or writes without end.
func (t *Tokenizer) Render(c Chat) (string, error) {
	if t.template == nil {
		return "", ErrNoTemplate
	}
	vars := map[string]any{}
	for name, text := range t.named {
		vars[name] = text
	}
	vars["messages"] = c.Messages
	if c.Messages == nil {
		vars["messages"] = []any{}
	}
	vars["tools"], vars["documents"] = nil, nil
	if c.Tools != nil {
		vars["tools"] = c.Tools
	}
	vars["add_generation_prompt"] = c.AddGenerationPrompt
	if c.EnableThinking != nil {
		vars["enable_thinking"] = *c.EnableThinking
	}
	for _, k := range c.Kwargs.Keys() {
		vars[k], _ = c.Kwargs.Get(k)
	}
	now := c.Date
	if now.IsZero() {
		now = time.Now()
	}
	text, err := t.template.Render(vars, now)
	if err != nil {
		return "", fmt.Errorf("chat template: %w", err)
	}
	return text, nil
}

// TemplateUsesTools says whether the chat template shows the model the tools it is given. Where it does
// not, the tools have to be described in the system message.
func (t *Tokenizer) TemplateUsesTools() bool {
	const marker = "tool_that_marks_the_prompt"
	tool := ordered.NewObject("type", "function", "function", ordered.NewObject(
		"name", marker, "description", marker,
		"parameters", ordered.NewObject("type", "object", "properties", &ordered.Object{}, "required", []any{})))
	text, err := t.Render(Chat{
		Messages: Messages(Message{Role: "user", Content: "x"}), Tools: []any{tool}, AddGenerationPrompt: true})
	return err == nil && strings.Contains(text, marker)
}
