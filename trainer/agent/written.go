package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/tokenizer/ordered"
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
	switch {
	case len(turn.Calls) == 0 && turn.Thinking == "", len(turn.Calls) > 0 && c.prompt != "" && turn.Thinking == "":
		return c.plain(turn)
	case c.prompt != "" && len(turn.Calls) > 0:
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

// plain returns a text, with calls in the Hermes format. Where the template opens the turn's thinking, the text begins with its end.
func (c *Chat) plain(turn WrittenTurn) (string, error) {
	text := turn.Text
	for _, call := range turn.Calls {
		object, err := marshalPlain(struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}{call.Name, call.Arguments})
		if err != nil {
			return "", err
		}
		text = strings.TrimPrefix(text+"\n"+callOpen+"\n"+string(object)+"\n"+callClose, "\n")
	}
	if c.thinks.opened && !strings.Contains(text, thinkClose) {
		text = emptyThinking + text
	}
	return text, nil
}

// emptyThinking ends a thinking that the template has opened.
const emptyThinking = "\n" + thinkClose + "\n\n"

var errNoReasoning = errors.New("its reasoning_content is not printed by the model's chat template: leave it out, or write the thinking into the content as the model writes it")

var (
	openedThinking = regexp.MustCompile(`\s*` + thinkOpen + `\s*$`)
	closedThinking = regexp.MustCompile(`(?:` + thinkOpen + `)?\s*` + thinkClose + `\s*$`)
	emptyBlock     = regexp.MustCompile(`^\s*` + thinkOpen + `\s*` + thinkClose + `\s*`)
)

// printed returns the text of a turn as the template prints it after the opening of the assistant's turn.
func (c *Chat) printed(turn WrittenTurn) (string, error) {
	message := tokenizer.Message{Role: "assistant", Content: turn.Text, Reasoning: turn.Thinking}
	for i, call := range turn.Calls {
		arguments, err := ordered.Parse(call.Arguments)
		if err != nil {
			return "", fmt.Errorf("the arguments of %s: %w", call.Name, err)
		}
		// Some templates demand ids of nine letters and digits.
		message.ToolCalls = append(message.ToolCalls, tokenizer.ToolCall{ID: fmt.Sprintf("call%05d", i+1), Name: call.Name, Arguments: arguments})
	}
	question := tokenizer.Message{Role: "user", Content: probeUser}
	opening, err := c.render([]tokenizer.Message{question}, c.tools, true)
	if err != nil {
		return "", err
	}
	whole, err := c.render([]tokenizer.Message{question, message}, c.tools, false)
	if err != nil {
		return "", err
	}
	after, same := strings.CutPrefix(whole, opening)
	if !same {
		// The template opens the turn with thinking, and does not print that of a turn without.
		bare := closedThinking.ReplaceAllString(opening, "")
		if bare == opening {
			bare = openedThinking.ReplaceAllString(opening, "")
		}
		if after, same = strings.CutPrefix(whole, bare); !same {
			return "", errors.New("the model's chat template does not print it after the opening of a turn: write the calls into the content")
		}
		after = strings.TrimLeft(after, "\n")
		if c.thinks.opened && !strings.Contains(after, thinkClose) {
			after = emptyThinking + after
		}
	}
	if turn.Thinking == "" && !c.thinks.opened {
		after = emptyBlock.ReplaceAllString(after, "")
	}
	if !strings.Contains(after, strings.TrimSpace(turn.Thinking)) {
		return "", errNoReasoning
	}
	return after, nil
}

// readsBack returns an error unless the calls of a turn are read from its tokens.
func (c *Chat) readsBack(ids []int32, turn WrittenTurn) error {
	read := c.Reply(ids).Calls
	same := len(read) == len(turn.Calls)
	for i := 0; same && i < len(read); i++ {
		same = read[i].Name == turn.Calls[i].Name && sameJSON(read[i].Arguments, turn.Calls[i].Arguments)
	}
	if !same {
		return fmt.Errorf("its calls are printed by the model's chat template as %.200q, which is not read back: write them into the content, as in %s", c.Text(ids), strings.TrimPrefix(callFormatHint, "Write "))
	}
	return nil
}

// sameJSON reports whether two JSON texts have the same value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
