package callformat

import (
	"encoding/json"
	"slices"
	"strings"
)

const (
	pythonTag = "<|python_tag|>"
	llamaOpen = "<|python_start|><|python_end|>" // as Llama 4's template prints it
)

// bare is a turn that consists only of calls, without any mark: JSON objects with semicolons or spaces between them, a
// list of them, or a list of Python calls. Such a turn may also be an answer, so an object is a call only if it has the
// keys of a call. Models also write text before the calls, although templates do not. Calls of known functions that begin a later line
// and end the turn are calls, too.
type bare struct{ tagged }

// bareOpenings are marks that may precede the calls.
var bareOpenings = []string{pythonTag, "<|python_start|>", "<|python_end|>"}

func (b bare) Hint() string { return "Write " + b.example() + " and nothing else." }

// Mark implements Format. The notation has no mark.
func (bare) Mark() string { return "" }

// begin returns the index of the turn's first character after openings and white space.
func (bare) begin(text string) int {
	at := skipSpace(text, 0)
	for _, o := range bareOpenings {
		if strings.HasPrefix(text[at:], o) {
			at = skipSpace(text, at+len(o))
		}
	}
	return at
}

func (b bare) SafeLen(text string) int {
	at := b.begin(text)
	if at == len(text) || text[at] == '{' || text[at] == '[' {
		return 0
	}
	for _, o := range bareOpenings {
		if strings.HasPrefix(o, text[at:]) {
			return 0
		}
	}
	return SafeLen(text, pythonTag, "\n{", "\n[")
}

func (b bare) Read(text string, functions Functions) Reading {
	if r := b.readAt(text, b.begin(text), functions); len(r.Calls) > 0 {
		return r
	}
	if tag := IndexUnquoted(text, 0, pythonTag); tag < len(text) {
		r := b.readAt(text, skipSpace(text, tag+len(pythonTag)), functions)
		r.Start = tag
		if len(r.Calls) > 0 {
			return r
		}
	}
	return b.readLater(text, functions)
}

// maxBeginnings is the number of lines of a turn at which calls may begin.
const maxBeginnings = 32

// readLater reads calls of known functions that follow other lines and end the turn.
func (b bare) readLater(text string, functions Functions) Reading {
	at, tried := 0, 0
	for line := range strings.Lines(text) {
		if at > 0 && (line[0] == '{' || line[0] == '[') {
			if tried++; tried > maxBeginnings {
				break
			}
			if raw, _, err := decode(text[at:]); err == nil && b.isCall(raw, functions) {
				calls, end := readValues(text, at, b.call, b.Hint())
				if offered(calls, functions) && skipSpace(text, end) == len(text) {
					return Reading{Calls: calls, Start: at, End: end}
				}
			}
		}
		at += len(line)
	}
	return noCalls(text)
}

// readAt reads calls that begin at an index.
func (b bare) readAt(text string, at int, functions Functions) Reading {
	if strings.HasPrefix(text[at:], "[") {
		if calls, end := pythonCalls(text, at, b.Hint()); offered(calls, functions) {
			return Reading{Calls: calls, End: end}
		}
	}
	if at == len(text) || text[at] != '{' && text[at] != '[' {
		return noCalls(text)
	}
	raw, _, err := decode(text[at:])
	switch {
	case err != nil && b.begun(text[at:], functions):
		return Reading{Calls: []Call{invalid(err, b.Hint())}, End: len(text)}
	case err != nil || !b.isCall(raw, functions):
		return noCalls(text)
	}
	calls, end := readValues(text, at, b.call, b.Hint())
	return Reading{Calls: calls, End: end}
}

// offered reports whether there are calls and all of them are of known functions.
func offered(calls []Call, functions Functions) bool {
	return len(calls) > 0 && !slices.ContainsFunc(calls, func(c Call) bool {
		_, known := functions[c.Name]
		return !known || c.Problem != ""
	})
}

// isCall reports whether a value, or each element of a list, has the keys of a call and no others. If the arguments are
// missing, the name must be a known function's.
func (b bare) isCall(raw json.RawMessage, functions Functions) bool {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil {
		return len(list) > 0 && !slices.ContainsFunc(list, func(one json.RawMessage) bool { return !b.isCall(one, functions) })
	}
	fields := object(raw)
	var name string
	if json.Unmarshal(fields[b.name], &name) != nil || name == "" {
		return false
	}
	for key := range fields {
		if !slices.Contains([]string{b.name, b.arguments, "arguments", "parameters", "type", "id"}, key) {
			return false
		}
	}
	_, known := functions[name]
	return known || object(fields[b.argumentsOf(fields)]) != nil
}

// argumentsOf returns the key of a call's arguments. A model may write "arguments" or "parameters" although its template has
// another key.
func (b bare) argumentsOf(call map[string]json.RawMessage) string {
	for _, key := range []string{b.arguments, "arguments", "parameters"} {
		if call[key] != nil {
			return key
		}
	}
	return b.arguments
}

// call reads one call.
func (b bare) call(raw []byte) Call {
	t := b.tagged
	t.arguments = b.argumentsOf(object(raw))
	return t.call(raw)
}

// begun reports whether a text that is not JSON begins like a call of a known function.
func (b bare) begun(text string, functions Functions) bool {
	dec := json.NewDecoder(strings.NewReader(text))
	if first, err := dec.Token(); err == nil && first == json.Delim('[') {
		if _, err = dec.Token(); err != nil {
			return false
		}
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return false
		}
		if key == b.name {
			name, err := dec.Token()
			text, _ := name.(string)
			_, known := functions[text]
			return err == nil && known
		}
		var skipped json.RawMessage
		if dec.Decode(&skipped) != nil {
			return false
		}
	}
	return false
}
