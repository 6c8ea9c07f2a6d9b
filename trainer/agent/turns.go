package agent

import (
	"errors"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/callformat"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// probeTurns finds out whether the template has a tool role, how it opens a turn, and which token ends a turn.
func probeTurns(t *Template) error {
	delta, err := t.afterText([]tokenizer.Message{{Role: "user", Content: probeAnswer}})
	if err != nil {
		return err
	}
	probeThinks(t, delta)
	answer := []tokenizer.Message{{Role: "tool", Name: probeFunction, Content: probeAnswer}}
	t.history.toolRole = true
	if observed, err := t.delta(answer); t.describes() && !t.history.calls || err != nil || !strings.Contains(observed, probeAnswer) {
		t.history.toolRole = false
		if _, err := t.delta(answer); err != nil {
			return err
		}
	}
	return probeStops(t, delta)
}

// probeStops finds the tokens that end a turn. delta is the template's text after an assistant's message.
func probeStops(t *Template, delta string) error {
	t.stops = t.cfg.Tokenizer.StopIDs()
	ids := t.cfg.Tokenizer.Encode(delta)
	_, channels := t.calls.(callformat.Harmony)
	switch {
	case channels && len(t.stops) > 0: // the end of a message in a channel does not end the turn
		t.end = t.stops[0]
		for _, id := range t.cfg.Tokenizer.Encode("<|call|>") {
			if t.cfg.Tokenizer.Special(id) && !slices.Contains(t.stops, id) {
				t.stops = append(t.stops, id)
			}
		}
	case len(ids) > 0 && t.cfg.Tokenizer.Special(ids[0]):
		// The token right after an assistant's text ends the turn, even if the model's files name other tokens.
		if t.end = ids[0]; !slices.Contains(t.stops, t.end) {
			t.stops = append(t.stops, t.end)
		}
	case len(t.stops) > 0:
		t.end = t.stops[0]
	default:
		return errors.New("no token ends a turn: name an end-of-turn token in generation_config.json (eos_token_id) or in the chat template")
	}
	return nil
}

// delta returns the template's text between an assistant's turn and its next turn. It renders a fixed conversation
// instead of the real one. Some templates rewrite history (Qwen3 drops earlier thinking), so a rendering of the real
// conversation need not be a prefix of the next rendering. If the messages begin with results, the fixed conversation has a
// turn with the calls that they answer: some templates print results only then, or print them differently.
func (t *Template) delta(messages []tokenizer.Message) (string, error) {
	if t.history.toolRole && t.history.calls && len(messages) > 0 && messages[0].Role == "tool" {
		text, err := t.afterCalls(messages)
		if err == nil {
			return text, nil
		}
	}
	return t.afterText(messages)
}

// afterText returns the template's text after an assistant's text.
func (t *Template) afterText(messages []tokenizer.Message) (string, error) {
	fixed := []tokenizer.Message{{Role: "user", Content: probeUser}, {Role: "assistant", Content: probeTurn}}
	text, err := t.render(append(fixed, t.printable(messages)...), t.always, true)
	if err != nil {
		return "", err
	}
	_, delta, found := strings.Cut(text, probeTurn)
	if !found {
		return "", errors.New("the chat template does not print an assistant's message: use another template")
	}
	return delta, nil
}

// afterCalls returns the template's text after an assistant's calls. The messages begin with the results of those
// calls.
func (t *Template) afterCalls(messages []tokenizer.Message) (string, error) {
	calling := tokenizer.Message{Role: "assistant"}
	tools := t.tools
	messages = slices.Clone(messages)
	for i := range messages {
		m := &messages[i]
		if m.Role != "tool" {
			tools = t.always // some templates print the functions next to the last message of a user
			continue
		}
		if m.ToolCallID == "" {
			m.ToolCallID = callID(0, i)
		}
		if m.Name == "" {
			m.Name = probeFunction
		}
		calling.ToolCalls = append(calling.ToolCalls, tokenizer.ToolCall{ID: m.ToolCallID, Name: m.Name, Arguments: ordered.NewObject("key", probeArgument)})
	}
	fixed := []tokenizer.Message{{Role: "user", Content: probeUser}, calling}
	if t.history.oneCall { // all results follow the last call, because the turn already contains the others
		fixed[1].ToolCalls = calling.ToolCalls[:1]
	}
	fixed[1].ToolCalls = t.history.adapted(fixed[1].ToolCalls)
	if t.history.shortIDs {
		for i := range messages {
			if messages[i].ToolCallID != "" {
				messages[i].ToolCallID = shortID(messages[i].ToolCallID)
			}
		}
	}
	text, err := t.render(append(fixed, messages...), tools, true)
	if err != nil {
		return "", err
	}
	other := slices.Clone(messages)
	for i := range other {
		other[i].Content = probeAnswer
	}
	beside, err := t.render(append(fixed, other...), tools, true)
	if err != nil {
		return "", err
	}
	same := 0 // up to the first result
	for same < min(len(text), len(beside)) && text[same] == beside[same] {
		same++
	}
	return t.afterCallsIn(text, same, calling.ToolCalls)
}

// afterCallsIn returns the part of a rendering after the calls. The calls belong to the turn after the first user's
// message and end before the index before.
func (t *Template) afterCallsIn(text string, before int, calls []tokenizer.ToolCall) (string, error) {
	begin := strings.Index(text, probeUser) + len(probeUser)
	begin += len(text[begin:]) - len(callformat.TrimOpening(text[begin:], t.opening))
	if last := strings.LastIndex(text, probeArgument); last < begin || last > before {
		return "", errors.New("the chat template does not print an assistant's calls before their results")
	}
	functions := callformat.Functions{}
	for _, c := range calls {
		functions[c.Name] = nil
	}
	read := t.calls.Read(text[begin:before], functions)
	if len(read.Calls) == 0 {
		return "", errors.New("the calls that the chat template prints cannot be read")
	}
	return text[begin+read.End:], nil
}
