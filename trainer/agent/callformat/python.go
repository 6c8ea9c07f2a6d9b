package callformat

import (
	"regexp"
	"strings"
)

// python is a list of Python calls between marks: [f(a='text', b=[1, None]), g()]. In OLMo 3's notation, each call is on its own line
// instead. LFM2 may be asked for JSON between its marks: [{"name": ..., "arguments": {...}}].
type python struct {
	open, close string
	lines       bool
}

func (p python) Hint() string {
	if p.lines {
		return "Write " + p.open + "\n" + `NAME(KEY="...")` + "\n" + p.close + "."
	}
	return `Write ` + p.open + `[NAME(KEY="...")]` + p.close + `.`
}

func (p python) Mark() string { return p.open }

func (p python) SafeLen(text string) int { return SafeLen(text, p.open) }

func (p python) Read(text string, _ Functions) Reading {
	return readMarked(text, p.open, func(at int) ([]Call, int) {
		at = skipSpace(text, at)
		var calls []Call
		var end int
		if inner := strings.TrimLeft(text[at:], "[ \t\r\n"); !strings.HasPrefix(inner, "{") {
			calls, end = pythonCalls(text, at, p.Hint())
		} else {
			calls, end = readValues(text, at, func(raw []byte) Call { return callOf(raw, "name", "arguments", p.Hint()) }, p.Hint())
		}
		if c := skipSpace(text, end); strings.HasPrefix(text[c:], p.close) {
			end = c + len(p.close)
		}
		return calls, end
	})
}

// pythonCalls reads a list of calls, or one call without a list around it, and returns the index of their end. Some
// templates do not escape the quotes in a text. If a text cannot be read as Python, pythonCalls reads it again and lets
// a quote end a text only if the call can continue after it.
func pythonCalls(text string, at int, hint string) ([]Call, int) {
	for _, lenient := range []bool{false, true} {
		p := &literals{text: text, at: at, python: true, lenient: lenient}
		if calls, err := p.calls(); err == nil {
			return calls, p.at
		}
	}
	return []Call{{Problem: "the tool calls are not a list of calls as Python writes them. " + hint}}, at
}

func (p *literals) calls() (calls []Call, err error) {
	list := p.next("[")
	for {
		p.space()
		if list && p.next("]") {
			return calls, nil
		}
		call, err := p.call()
		if err != nil {
			return nil, err
		}
		calls = append(calls, call)
		end := p.at
		p.space()
		if !p.next(",") && !p.next(";") && !strings.HasPrefix(p.text[p.at:], "]") {
			if list {
				return nil, errLiteral
			}
			if nextLine.MatchString(p.text[end:]) {
				continue
			}
			return calls, nil
		}
	}
}

// nextLine matches a call on another line.
var nextLine = regexp.MustCompile(`^[ \t\r]*\n\s*[\pL_][\pL\pN_.-]*\(`)

// call reads NAME(KEY=VALUE, ...).
func (p *literals) call() (Call, error) {
	name, err := p.key("(")
	if err != nil {
		return Call{}, err
	}
	arguments, err := p.pairs("=", ")", 0)
	return Call{Name: name, Arguments: arguments}, err
}

func learnPython(p *probes) Format {
	parts, ok := around(p.one, probeName+"("+probeKey+"=", probeValue)
	if !ok {
		return nil
	}
	open := p.opening(strings.TrimSuffix(strings.TrimSpace(parts[0]), "["))
	_, after, _ := strings.Cut(parts[2], ")")
	closing := firstMark(strings.TrimPrefix(p.closing(after), "]"))
	if open == "" {
		return bare{tagged{name: "name", arguments: "parameters"}}
	}
	return python{open, closing, !strings.HasSuffix(strings.TrimSpace(parts[0]), "[")}
}
