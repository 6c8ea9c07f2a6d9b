package callformat

import (
	"encoding/json"
	"strings"
)

// tagged is JSON between marks: objects with a name and arguments, or a list of them.
type tagged struct {
	open, close string // without surrounding white space; close may be empty
	inner       string // key of an inner object with the call, such as "function"; may be empty
	name        string // key of the name; "": the name is the object's only key, and the arguments are its value
	arguments   string
	list        bool
}

func (t tagged) Hint() string { return "Write " + t.open + t.example() + t.close + "." }

func (t tagged) example() string {
	example := `{"` + t.name + `": "...", "` + t.arguments + `": {...}}`
	if t.name == "" {
		example = `{"NAME": {...}}`
	}
	if t.inner != "" {
		example = `{"` + t.inner + `": ` + example + "}"
	}
	if t.list {
		example = "[" + example + "]"
	}
	return example
}

func (t tagged) Mark() string { return t.open }

func (t tagged) SafeLen(text string) int { return SafeLen(text, t.open) }

func (t tagged) Read(text string, _ Functions) Reading {
	return readMarked(text, t.open, func(at int) ([]Call, int) {
		calls, end := readValues(text, skipSpace(text, at), t.call, t.Hint())
		return calls, skipMark(text, end, t.close)
	})
}

// call reads one object.
func (t tagged) call(raw []byte) Call {
	if t.inner != "" {
		if within := object(raw)[t.inner]; within != nil {
			raw = within
		}
	}
	if t.name != "" {
		return callOf(raw, t.name, t.arguments, t.Hint())
	}
	fields := object(raw)
	if len(fields) != 1 {
		return Call{Problem: "the tool call is not an object with the function's name as its only key. " + t.Hint()}
	}
	for name, arguments := range fields {
		return withArguments(name, arguments, name, t.Hint())
	}
	return Call{}
}

// readValues reads objects or lists of objects, separated by commas, semicolons or white space, and returns the index
// of their end.
func readValues(text string, at int, call func(raw []byte) Call, hint string) (calls []Call, end int) {
	for {
		raw, n, err := decode(text[at:])
		if err != nil {
			return append(calls, invalid(err, hint)), at
		}
		at += n
		var list []json.RawMessage
		if raw[0] == '[' && json.Unmarshal(raw, &list) == nil {
			for _, one := range list {
				calls = append(calls, call(one))
			}
		} else {
			calls = append(calls, call(raw))
		}
		next := skipSpace(text, at)
		if next < len(text) && strings.IndexByte(",;", text[next]) >= 0 {
			next = skipSpace(text, next+1)
		}
		if next == len(text) || text[next] != '{' {
			return calls, at
		}
		at = next
	}
}

// learnTagged finds the JSON that has the name and the arguments, and the marks around it. Without marks the format is
// bare.
func learnTagged(p *probes) Format {
	i, raw := jsonWith(p.one, probeName)
	if raw == nil {
		return nil
	}
	t := tagged{open: p.opening(p.one[:i]), close: firstMark(p.closing(p.one[i+len(raw):])), list: raw[0] == '['}
	if t.list {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil || len(list) != 1 {
			return nil
		}
		raw = list[0]
	}
	if !t.keys(raw) {
		return nil
	}
	if t.open == "" || t.open == llamaOpen {
		return bare{t}
	}
	return t
}

// jsonWith finds the outermost JSON value of a text that contains a name as a string, and the probe's value.
func jsonWith(text, name string) (int, json.RawMessage) {
	for i := range strings.Index(text, name) {
		if text[i] != '{' && text[i] != '[' {
			continue
		}
		if raw, _, err := decode(text[i:]); err == nil && strings.Contains(string(raw), `"`+name+`"`) && strings.Contains(string(raw), probeValue) {
			return i, raw
		}
	}
	return 0, nil
}

// keys finds the keys under which an object has the name and the arguments.
func (t *tagged) keys(raw json.RawMessage) bool {
	all := object(raw)
	for key, v := range all {
		var text string
		switch {
		case json.Unmarshal(v, &text) == nil && text == probeName:
			t.name = key
		case key == probeName && len(all) == 1:
			return true
		case object(v) != nil && object(v)[probeKey] != nil, strings.Contains(text, probeKey):
			t.arguments = key
		}
	}
	if t.name != "" && t.arguments != "" {
		return true
	}
	for key, v := range all {
		if t.inner == "" && object(v) != nil && strings.Contains(string(v), probeName) {
			within := tagged{inner: key}
			if within.keys(v) {
				t.inner, t.name, t.arguments = key, within.name, within.arguments
				return true
			}
		}
	}
	return false
}
