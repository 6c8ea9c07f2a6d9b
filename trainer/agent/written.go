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

// WrittenTurn is what a turn of an agent consists of, apart from how a model writes it.
type WrittenTurn struct {
	Thinking string // without tags
	Text     string
	Calls    []ParsedCall // after Text
}

// Write returns the text of a turn as the model writes it, with the token that ends the turn where the template prints one. Thinking and calls
// have the form in which the template prints them; calls for a template that prints no functions have the form that its system message
// describes. It is an error if the template does not print the thinking, or prints calls that Parse does not read.
func (c *Chat) Write(turn WrittenTurn) (string, error) {
	turn = c.parted(turn)
	switch {
	case len(turn.Calls) == 0 && turn.Thinking == "", len(turn.Calls) > 0 && c.describes() && !c.history.calls && turn.Thinking == "":
		return c.plain(turn), nil
	case c.describes() && !c.history.calls && len(turn.Calls) > 0:
		return "", errNoReasoning
	}
	text, err := c.printed(turn)
	if err != nil {
		return "", err
	}
	ids := c.cfg.Tokenizer.Encode(text)
	for last := len(ids) - 1; last >= 0; last-- {
		if slices.Contains(c.stops, ids[last]) {
			ids = ids[:last+1]
			text = c.Text(ids)
			break
		}
	}
	return text, c.readsBack(ids, turn)
}

// parted is a turn whose text begins with a thinking in <think> and </think>, as the template prints it: the thinking is a part of its own
// where the template has other marks, and the first mark is left out where the template opens the thinking itself.
func (c *Chat) parted(turn WrittenTurn) WrittenTurn {
	text := strings.TrimLeft(turn.Text, Blanks)
	if turn.Thinking != "" || !strings.HasPrefix(text, thinkOpen) {
		return turn
	}
	thought, rest, closed := plainThinking.split(text)
	switch {
	case !closed:
	case c.thinks.open != thinkOpen:
		turn.Thinking, turn.Text = thought, strings.TrimLeft(rest, Blanks)
	case c.thinks.opened:
		turn.Text = strings.TrimPrefix(text, thinkOpen)
	}
	return turn
}

// plain returns a text, with calls in the Hermes format. Where the template opens the turn's thinking, the text begins with its end.
func (c *Chat) plain(turn WrittenTurn) string {
	text := turn.Text
	if len(turn.Calls) > 0 {
		text = strings.TrimPrefix(text+"\n"+callformat.Hermes.Write(turn.Calls), "\n")
	}
	if c.thinks.opened && !strings.Contains(text, thinkClose) {
		text = c.emptyThinking() + text
	}
	return text
}

// emptyThinking ends a thinking that the template has opened.
func (t *Template) emptyThinking() string { return "\n" + t.thinks.close + "\n\n" }

var errNoReasoning = errors.New("its reasoning_content is not printed by the model's chat template: leave it out, or write the thinking into the content as the model writes it")

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
		return "", errors.New("the model's chat template prints one call a turn: write one")
	}
	whole, err := t.render(messages, t.tools, false)
	if err != nil {
		return "", err
	}
	after, same := strings.CutPrefix(whole, opening)
	if !same { // the template opens a turn with thinking, or the end of one, and does not print that before a turn in the past
		_, after, _ = strings.Cut(whole, probeUser)
		before, err := t.beforeTurn()
		if err != nil {
			return "", err
		}
		if after, same = strings.CutPrefix(after, t.withoutThought(before)); !same {
			return "", errors.New("the model's chat template does not print it after the opening of a turn: write the calls into the content")
		}
		after = strings.TrimLeft(after, "\n")
		if t.thinks.opened && !strings.Contains(after, t.thinks.close) {
			after = t.emptyThinking() + after
		}
	}
	if turn.Thinking == "" && !t.thinks.opened {
		after = t.withoutEmptyThought(after)
	}
	if !strings.Contains(after, strings.TrimSpace(turn.Thinking)) {
		return "", errNoReasoning
	}
	return after, nil
}

// beforeTurn is what the template prints between a user's message and an assistant's.
func (t *Template) beforeTurn() (string, error) {
	text, err := t.printCalls(probeTurn)
	text, _, _ = strings.Cut(text, probeTurn)
	return text, err
}

// withoutThought is the opening of a turn without an empty thought at its end.
func (t *Template) withoutThought(opening string) string {
	before, end := strings.CutSuffix(strings.TrimSpace(opening), t.thinks.close)
	if !end {
		return opening
	}
	return strings.TrimSuffix(strings.TrimSpace(before), t.thinks.open)
}

// withoutEmptyThought is a turn without an empty thought at its beginning.
func (t *Template) withoutEmptyThought(turn string) string {
	within, open := strings.CutPrefix(strings.TrimLeft(turn, Blanks), t.thinks.open)
	rest, end := strings.CutPrefix(strings.TrimLeft(within, Blanks), t.thinks.close)
	if !open || !end {
		return turn
	}
	return strings.TrimLeft(rest, Blanks)
}

// readsBack returns an error unless the calls of a turn are read from its tokens.
func (c *Chat) readsBack(ids []int32, turn WrittenTurn) error {
	read := c.Reply(ids).Calls
	same := len(read) == len(turn.Calls)
	for i := 0; same && i < len(read); i++ {
		same = read[i].Name == turn.Calls[i].Name && sameJSON(read[i].Arguments, turn.Calls[i].Arguments)
	}
	if !same {
		return fmt.Errorf("its calls are printed by the model's chat template as %.200q, which is not read back: write them into the content, as in %s", c.Text(ids), strings.TrimPrefix(callformat.Hermes.Hint(), "Write "))
	}
	return nil
}

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
