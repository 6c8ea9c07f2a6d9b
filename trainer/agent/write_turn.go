package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// WrittenTurn holds the parts of an agent's turn, independent of a model's notation.
type WrittenTurn struct {
	Thinking string // without tags
	Text     string
	Calls    []callformat.Call // after Text
}

// Write returns the text of a turn as the model writes it, with the end-of-turn token if the template prints one.
// Thinking and calls have the form in which the template prints them. For a template that prints no functions, calls
// have the form that its system message describes. Write returns an error if the template does not print the thinking,
// or prints calls that Parse cannot read.
func (c *Chat) Write(turn WrittenTurn) (string, error) {
	t := c.template
	turn = c.withTemplateThinking(turn)
	switch {
	case len(turn.Calls) == 0 && turn.Thinking == "", len(turn.Calls) > 0 && t.describes() && !t.history.calls && turn.Thinking == "":
		return c.textWithCalls(turn), nil
	case t.describes() && !t.history.calls && len(turn.Calls) > 0:
		return "", errNoReasoning
	}
	text, err := t.printed(turn)
	if err != nil {
		return "", err
	}
	ids := t.cfg.Tokenizer.Encode(text)
	for last := len(ids) - 1; last >= 0; last-- {
		if slices.Contains(t.stops, ids[last]) {
			ids = ids[:last+1]
			text = t.Text(ids)
			break
		}
	}
	return text, c.readsBack(ids, turn)
}

// withTemplateThinking adapts a turn whose text begins with thinking in <think> and </think> to the template. If the template has
// other marks, the thinking moves from the text to the template's field for it. Without such a field, the template's
// marks replace <think> and </think>. If the template itself opens the thinking, the first mark is removed.
func (c *Chat) withTemplateThinking(turn WrittenTurn) WrittenTurn {
	t := c.template
	text := strings.TrimLeft(turn.Text, Blanks)
	if turn.Thinking != "" || !strings.HasPrefix(text, thinkOpen) {
		return turn
	}
	thought, rest, closed := plainThinking.split(text)
	switch {
	case !closed:
	case t.thinks.open != thinkOpen && t.thinks.key == "":
		turn.Text = t.thinks.open + "\n" + thought + "\n" + t.thinks.close + rest
	case t.thinks.open != thinkOpen:
		turn.Thinking, turn.Text = thought, strings.TrimLeft(rest, Blanks)
	case t.thinks.opened:
		turn.Text = strings.TrimPrefix(text, thinkOpen)
	}
	return turn
}

// textWithCalls returns the text of a turn, with its calls in the Hermes format. If the template opens the turn's thinking, the text
// first closes it.
func (c *Chat) textWithCalls(turn WrittenTurn) string {
	t, text := c.template, turn.Text
	if len(turn.Calls) > 0 {
		text = strings.TrimPrefix(text+"\n"+callformat.Hermes.Write(turn.Calls), "\n")
	}
	if t.thinks.opened && !strings.Contains(text, t.thinks.close) {
		text = t.thinks.empty() + text
	}
	return text
}

var errNoReasoning = errors.New("the model's chat template does not print reasoning_content: leave it out, or write the thinking into the content as " +
	"the model writes it")

// printed returns the text of a turn as the template prints it after the opening of the assistant's turn.
func (t *Template) printed(turn WrittenTurn) (string, error) {
	message := tokenizer.Message{Role: "assistant", Content: turn.Text, Reasoning: turn.Thinking}
	for _, call := range turn.Calls {
		arguments, err := ordered.Parse(call.Arguments)
		if err != nil {
			return "", fmt.Errorf("the arguments of %s: %w", call.Name, err)
		}
		message.ToolCalls = append(message.ToolCalls, tokenizer.ToolCall{Name: call.Name, Arguments: arguments})
	}
	question := tokenizer.Message{Role: "user", Content: probeUser}
	opening, err := t.render([]tokenizer.Message{question}, t.tools, true)
	if err != nil {
		return "", err
	}
	messages := t.printable([]tokenizer.Message{question, message})
	if len(messages) != 2 {
		return "", errors.New("the model's chat template prints only one call per turn: write one")
	}
	whole, err := t.render(messages, t.tools, false)
	if err != nil {
		return "", err
	}
	after, same := strings.CutPrefix(whole, opening)
	if !same { // the template opens a new turn with thinking, or with its end, but does not print that before a past turn
		_, after, _ = strings.Cut(whole, probeUser)
		before, err := t.beforeTurn()
		if err != nil {
			return "", err
		}
		if after, same = strings.CutPrefix(after, t.thinks.withoutThought(before)); !same {
			return "", errors.New("the model's chat template does not print the turn after the opening of a turn: write the calls into the content")
		}
		after = strings.TrimLeft(after, "\n")
		if t.thinks.opened && !strings.Contains(after, t.thinks.close) {
			after = t.thinks.empty() + after
		}
	}
	if turn.Thinking == "" && !t.thinks.opened {
		after = t.thinks.withoutEmptyThought(after)
	}
	if !strings.Contains(after, strings.TrimSpace(turn.Thinking)) {
		return "", errNoReasoning
	}
	return after, nil
}

// beforeTurn returns the text that the template prints between a user's message and an assistant's.
func (t *Template) beforeTurn() (string, error) {
	text, err := t.printCalls(probeTurn)
	text, _, _ = strings.Cut(text, probeTurn)
	return text, err
}

// readsBack returns an error unless the calls of a turn can be read from its tokens.
func (c *Chat) readsBack(ids []int32, turn WrittenTurn) error {
	read := c.template.Reply(ids).Calls
	same := len(read) == len(turn.Calls)
	for i := 0; same && i < len(read); i++ {
		same = read[i].Name == turn.Calls[i].Name && sameJSON(read[i].Arguments, turn.Calls[i].Arguments)
	}
	if !same {
		return fmt.Errorf("the model's chat template prints its calls as %.200q, which mgrpo cannot read back: write them into the content, as in %s",
			c.Text(ids), strings.TrimPrefix(callformat.Hermes.Hint(), "Write "))
	}
	return nil
}

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
