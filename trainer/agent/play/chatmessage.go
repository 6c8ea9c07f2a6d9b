package play

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/task/jsonl"
)

// message is a message of a chat.
type message struct {
	task.Segment
	ids    []string // ids of its calls; "": the call has no id
	answer string   // only in a tool's message: the id of the call that it answers; may be empty
	name   string   // only in a tool's message: the name of the tool; may be empty
}

// parseMessage reads a message. It returns an error if an unsupported key has a value.
func parseMessage(raw json.RawMessage) (m message, err error) {
	var f fields
	if err := json.Unmarshal(raw, &f); err != nil || f == nil {
		return m, fmt.Errorf("not a JSON object: %v", err)
	}
	role, text := "", "content"
	from := "role"
	if f.has("from") && (f.has("value") || !f.has(from)) {
		from, text = "from", "value"
	}
	if err := f.read(from, &role); err != nil {
		return m, err
	}
	m.Role = jsonl.Role(role)
	m.Sampled = m.Role == "assistant"
	known := []string{"role", from, text, "weight"}
	switch m.Role {
	case "assistant":
		known = append(known, "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
	case "tool":
		known = append(known, "tool_call_id", "name")
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if slices.Contains(known, key) {
			continue
		}
		if err := f.refuse(key); err != nil {
			return m, fmt.Errorf("a message of the role %s: %w", m.Role, err)
		}
	}
	if m.Text, err = jsonl.Content(f[text]); err != nil {
		return m, fmt.Errorf("%q: %w", text, err)
	}
	if err := errors.Join(m.weigh(f["weight"]), f.read("tool_call_id", &m.answer), f.read("name", &m.name)); err != nil {
		return m, err
	}
	if m.Sampled {
		return m, m.readTurn(f, jsonl.WritesCall(role))
	}
	if _, given := f[text]; !given {
		return m, fmt.Errorf("it has no %q", text)
	}
	return m, nil
}

// weigh reads a weight, which must be 0 or 1. Only turns of the agent are trained on.
func (m *message) weigh(raw json.RawMessage) error {
	var weight *float64
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &weight); err != nil {
			return fmt.Errorf(`"weight": %w`, err)
		}
	}
	switch {
	case weight == nil, *weight == 1 && m.Sampled:
	case *weight == 0:
		m.Untrained = m.Sampled
	case m.Sampled:
		return fmt.Errorf(`"weight" %v is not supported: use 0 or 1`, *weight)
	default:
		return fmt.Errorf(`a message of the role %[2]s has the "weight" %[1]v: only messages of the assistant are trained on`, *weight, m.Role)
	}
	return nil
}

// readTurn reads the thinking and the calls of a turn of the agent.
func (m *message) readTurn(f fields, written bool) error {
	for _, key := range []string{"reasoning_content", "reasoning", "thinking"} {
		var thinking string
		if err := f.read(key, &thinking); err != nil {
			return err
		}
		if thinking != "" && m.Thinking != "" && thinking != m.Thinking {
			return fmt.Errorf("%q differs from the thinking under another key", key)
		}
		m.Thinking = cmp.Or(thinking, m.Thinking)
	}
	var calls []json.RawMessage
	if err := f.list("tool_calls", &calls); err != nil {
		return err
	}
	if f.has("function_call") { // OpenAI's form before tool_calls
		calls = append(calls, f["function_call"])
	}
	if written { // the whole text of a message
		if err := json.Unmarshal([]byte(m.Text), &calls); err != nil {
			calls = []json.RawMessage{json.RawMessage(m.Text)}
		}
		m.Text = ""
	}
	for i, raw := range calls {
		call, id, err := parseCall(raw)
		if err != nil {
			return fmt.Errorf("call %d: %w", i+1, err)
		}
		m.Calls, m.ids = append(m.Calls, call), append(m.ids, id)
	}
	if m.Text == "" && len(m.Calls) == 0 {
		return errors.New("it has neither content nor calls, so the model would learn an empty answer")
	}
	return nil
}

// parseCall reads a call of a function: {"id", "function": {"name", "arguments"}}, or only the name and the arguments.
// The arguments are an object or its JSON text.
func parseCall(raw json.RawMessage) (call task.FunctionCall, id string, err error) {
	var outer fields
	if err := json.Unmarshal(raw, &outer); err != nil || outer == nil {
		return call, "", fmt.Errorf("not a JSON object: %v", err)
	}
	var kind string
	if err := errors.Join(outer.read("id", &id), outer.read("type", &kind)); err != nil {
		return call, "", err
	}
	if kind != "" && kind != "function" {
		return call, "", fmt.Errorf("its type %q is not supported: use function", kind)
	}
	inner := outer
	if outer.has("function") {
		inner = nil
		if err := outer.read("function", &inner); err != nil {
			return call, "", err
		}
	}
	if err := inner.read("name", &call.Name); err != nil {
		return call, "", err
	}
	if call.Name == "" {
		return call, "", errors.New(`it has no "name" of a function`)
	}
	for _, key := range []string{"parameters", "args", "input"} {
		if inner.has(key) && !inner.has("arguments") {
			return call, "", fmt.Errorf(`the arguments of %s are under %q: put them under "arguments"`, call.Name, key)
		}
	}
	arguments := bytes.TrimSpace(inner["arguments"])
	var text string
	if json.Unmarshal(arguments, &text) == nil {
		arguments = []byte(strings.TrimSpace(text))
	}
	switch {
	case len(arguments) == 0, string(arguments) == "null":
		arguments = []byte("{}")
	case arguments[0] != '{' || !json.Valid(arguments):
		return call, "", fmt.Errorf("the arguments of %s are not a JSON object: %.80q", call.Name, arguments)
	}
	call.Arguments = arguments
	return call, id, nil
}

// inOrder returns the results of a turn's calls in the order of the calls.
func (m message) inOrder(results []message) ([]message, error) {
	if len(m.Calls) == 0 { // the calls are in its text, in the order of the results
		return results, nil
	}
	identified := !slices.Contains(m.ids, "")
	at := map[string]int{}
	for i, id := range m.ids {
		if _, taken := at[id]; taken && identified {
			return nil, fmt.Errorf("two calls have the id %q", id)
		}
		at[id] = i
	}
	ordered := slices.Clone(results)
	if identified && !slices.ContainsFunc(results, func(r message) bool { return r.answer == "" }) {
		given := map[string]bool{}
		for _, r := range results {
			if _, known := at[r.answer]; !known || given[r.answer] {
				return nil, fmt.Errorf("the tool_call_id %q does not name an unanswered call of the turn before it", r.answer)
			}
			given[r.answer] = true
		}
		slices.SortStableFunc(ordered, func(a, b message) int { return at[a.answer] - at[b.answer] })
	}
	for i, r := range ordered {
		if i < len(m.Calls) && r.name != "" && r.name != m.Calls[i].Name {
			return nil, fmt.Errorf("a result names the tool %q, but its call is of %q", r.name, m.Calls[i].Name)
		}
	}
	return ordered, nil
}
