package callformat

import (
	"fmt"
	"strings"
)

const (
	mistralMark = "[TOOL_CALLS]"
	mistralID   = "[CALL_ID]"
	mistralArgs = "[ARGS]"
)

// mistral reads the notations of all versions of Mistral's models:
//
//	[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}, ...]
//	[TOOL_CALLS]NAME[ARGS]{...}[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}
//
// In the second form a model may leave out [ARGS].
type mistral struct{ names bool } // the template prints the second form

func (m mistral) Hint() string {
	if m.names {
		return `Write ` + mistralMark + `NAME` + mistralArgs + `{...}.`
	}
	return `Write ` + mistralMark + `[{"name": "...", "arguments": {...}}].`
}

func (mistral) Mark() string { return mistralMark }

func (mistral) SafeLen(text string) int { return SafeLen(text, mistralMark) }

func (m mistral) Read(text string, _ Functions) Reading {
	r := noCalls(text)
	i := IndexUnquoted(text, 0, mistralMark)
	if i == len(text) {
		return r
	}
	r.Start = i
	for strings.HasPrefix(text[i:], mistralMark) {
		at := skipSpace(text, i+len(mistralMark))
		if rest := text[at:]; strings.HasPrefix(rest, "[") && !strings.HasPrefix(rest, mistralMark) || strings.HasPrefix(rest, "{") {
			calls, end := readValues(text, at, func(raw []byte) Call { return callOf(raw, "name", "arguments", m.Hint()) }, m.Hint())
			r.Calls, r.End = append(r.Calls, calls...), end
		} else {
			call, end := m.named(text, at)
			r.Calls, r.End = append(r.Calls, call), end
		}
		if i = skipSpace(text, r.End); strings.HasPrefix(text[i:], ",") {
			i = skipSpace(text, i+1)
		}
		if n := len(r.Calls); n > 0 && r.Calls[n-1].Problem != "" { // readable calls may follow an unreadable one
			if next := strings.Index(text[r.End:], mistralMark); next >= 0 {
				i = r.End + next
			}
		}
	}
	return r
}

// named reads NAME[ARGS]{...} at an index and returns the call and the index of its end.
func (m mistral) named(text string, at int) (Call, int) {
	name, arguments, found := strings.Cut(text[at:], mistralArgs)
	if i := strings.IndexByte(name, '{'); i >= 0 {
		name, arguments, found = name[:i], text[at+i:], true
	}
	name, _, _ = strings.Cut(name, mistralID)
	name = strings.TrimSpace(name)
	if !found || name == "" || strings.ContainsAny(name, "[]{}\n") {
		return Call{Problem: fmt.Sprintf("no name and %s follow %s. %s", mistralArgs, mistralMark, m.Hint())}, at
	}
	raw, n, err := decode(arguments)
	if err != nil {
		return invalid(err, m.Hint()), len(text) - len(arguments)
	}
	return withArguments(name, raw, mistralArgs, m.Hint()), len(text) - len(arguments) + n
}

func learnMistral(p *probes) Format {
	if before, _, _ := strings.Cut(p.one, probeName); !strings.Contains(before, mistralMark) {
		return nil
	}
	return mistral{names: strings.Contains(p.one, mistralArgs)}
}
