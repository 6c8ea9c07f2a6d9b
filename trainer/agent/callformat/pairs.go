package callformat

import (
	"regexp"
	"strings"
)

// pairs is a function's name followed by keys and values, each between marks that the template prints. Values have no
// quotes: the function's parameters determine their types.
type pairs struct {
	callMarks
	inner    string         // last word of the mark, if it has several: some models omit the others, or write them once for several calls
	begin    *regexp.Regexp // the mark, or its last word
	call     *regexp.Regexp // from the mark to the end of the name; its group is the name
	key      *regexp.Regexp // from the mark of a key to the value; its groups are the key, and the type if the template writes one
	keyMark  string         // mark before a key
	valueEnd string         // mark after a value
	callEnd  string         // mark after the last value of a call
	padded   bool           // each value is on its own lines
}

// PairsFormat is a Format whose arguments are keys and values between marks, without quotes.
type PairsFormat interface {
	Format
	// ValueEnd returns the mark that ends a value.
	ValueEnd() string
}

func (f *pairs) ValueEnd() string { return f.valueEnd }

func (f *pairs) SafeLen(text string) int {
	first, _, _ := strings.Cut(f.mark, "\n")
	return SafeLen(text, f.open, strings.TrimSpace(first), f.inner)
}

func (f *pairs) Read(text string, functions Functions) Reading {
	r := noCalls(text)
	for at := 0; ; {
		found := f.begin.FindStringIndex(text[at:])
		if found == nil {
			break
		}
		i, end := at+found[0], at+found[1]
		if quotedAt(text, i, end) {
			at = end
			continue
		}
		m := f.call.FindStringSubmatchIndex(text[i:])
		at = end
		if m == nil && (f.mark == HermesOpen && strings.HasPrefix(text[skipSpace(text, at):], "{") || text[i:end] == f.inner) {
			continue // another notation
		}
		r.Start = min(r.Start, i)
		if m == nil {
			r.Calls, r.End = append(r.Calls, Call{Problem: "the tool call has no name. " + f.Hint()}), at
			continue
		}
		name := text[i+m[2] : i+m[3]]
		arguments, end, closed := f.arguments(text, i+m[1], functions[name])
		call := Call{Name: name, Arguments: arguments}
		if !closed {
			call = Call{Name: name, Problem: "the tool call is not closed with " + f.callEnd + ". " + f.Hint()}
		}
		r.Calls, r.End, at = append(r.Calls, call), end, end
	}
	if i := lastUnquoted(text, 0, HermesOpen); len(r.Calls) == 0 && f.open == HermesOpen && i >= 0 &&
		strings.HasPrefix(strings.TrimSpace(text[i+len(f.open):]), "{") {
		return noCalls(text) // another notation
	}
	return f.extend(text, r)
}

// arguments reads keys and values from an index to the end of the call, and returns the index of that end.
func (f *pairs) arguments(text string, at int, known map[string]types) (arguments []byte, end int, closed bool) {
	var out fields
	for {
		at = skipSpace(text, at)
		if strings.HasPrefix(text[at:], f.callEnd) {
			return out.json(), at + len(f.callEnd), true
		}
		m := f.key.FindStringSubmatchIndex(text[at:])
		if m == nil {
			return nil, at, false
		}
		key := text[at+m[2] : at+m[3]]
		declared := ""
		if len(m) > 4 && m[4] >= 0 {
			declared = text[at+m[4] : at+m[5]]
		}
		from := at + m[1]
		to := f.valueTo(text, from)
		if cut := f.unclosedTo(text, from, key, known); cut >= 0 {
			to = cut
		}
		if to < 0 {
			return nil, at, false
		}
		out.set(key, f.value(text[from:to], declared, known[key]))
		at = skipMark(text, to, f.valueEnd)
	}
}

// valueTo returns the end of a value: the first valueEnd that is followed by another key or the end of the call, so
// that a text may contain marks. If the model omitted the last valueEnd, valueTo returns the position of the first valueEnd
// after from, or -1.
func (f *pairs) valueTo(text string, from int) int {
	first := -1
	for at := from; ; {
		i := strings.Index(text[at:], f.valueEnd)
		if i < 0 {
			return first
		}
		i += at
		at = i + len(f.valueEnd)
		if first < 0 {
			first = i
		}
		next := text[skipSpace(text, at):]
		if strings.HasPrefix(next, f.keyMark) || strings.HasPrefix(next, f.callEnd) {
			return i
		}
	}
}

// unclosedTo returns the end of a value without valueEnd, or -1. Such a value ends at the mark of another parameter, or at a callEnd
// that another call or the end of the turn follows.
func (f *pairs) unclosedTo(text string, from int, key string, known map[string]types) int {
	within := text[from:]
	value, _, closed := strings.Cut(within, f.valueEnd)
	end := -1
	for at := 0; end < 0; at += len(f.keyMark) {
		i := strings.Index(value[at:], f.keyMark)
		if i < 0 {
			break
		}
		at += i
		if m := f.key.FindStringSubmatchIndex(within[at:]); m != nil {
			other := within[at+m[2] : at+m[3]]
			if _, declared := known[other]; declared && other != key {
				end = at
			}
		}
	}
	if i := strings.Index(value, f.callEnd); i >= 0 && (end < 0 || i < end) {
		rest := within[skipMark(within, i+len(f.callEnd), f.end):]
		next := f.begin.FindStringIndex(rest)
		if !closed || strings.TrimSpace(rest) == "" || next != nil && strings.TrimSpace(rest[:next[0]]) == "" {
			end = i
		}
	}
	if end < 0 {
		return -1
	}
	return from + end
}

// value returns a value as JSON. If the template writes types, "string" or string="true" means a text, and any other
// type means JSON.
func (f *pairs) value(text, declared string, known types) []byte {
	if f.padded {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "\n"), "\n")
	}
	if inner, ok := strings.CutPrefix(text, "<![CDATA["); ok && strings.HasSuffix(inner, "]]>") {
		return quoted(strings.TrimSuffix(inner, "]]>"))
	}
	switch declared {
	case "":
		return known.value(text)
	case "string", "true":
		return quoted(text)
	}
	return types{"other"}.value(text)
}

// learnPairs finds the marks around the name, the keys and the values of printed calls.
func learnPairs(p *probes) Format {
	begin := strings.LastIndex(p.keys[:max(strings.Index(p.keys, probeKey), 0)], probeName)
	if begin < 0 {
		return nil
	}
	parts, ok := around(p.keys[begin:], probeName, probeKey, probeValue, probeKey2, probeValue2)
	if !ok {
		return nil
	}
	head, middle, next, tail := parts[1], parts[2], parts[3], p.closing(parts[5])
	keyMark := commonEnd(head, next)
	f := &pairs{keyMark: strings.TrimSpace(keyMark), padded: strings.HasSuffix(middle, "\n")}
	behind := strings.TrimSuffix(head, keyMark) // the marks after the name
	f.valueEnd = strings.TrimSpace(strings.TrimSuffix(next, keyMark))
	rest, closed := strings.CutPrefix(strings.TrimSpace(tail), f.valueEnd)
	rest = strings.TrimSpace(rest)
	f.callEnd = firstMark(rest)
	if f.keyMark == "" || f.valueEnd == "" || !closed || f.callEnd == "" {
		return nil
	}
	f.end = strings.TrimSpace(strings.TrimPrefix(rest, f.callEnd))
	opening := p.opening(p.keys[:begin])
	if i := strings.LastIndex(opening, probeName); i >= 0 { // the name also precedes the marks
		opening = opening[i+len(probeName):]
	}
	f.mark = opening
	if from, to := strings.LastIndex(p.two, probeValue), strings.LastIndex(p.two, probeOther); from >= 0 && from < to {
		f.mark = strings.TrimSpace(commonEnd(opening, p.two[from+len(probeValue):to]))
		f.open = strings.TrimSpace(strings.TrimSuffix(opening, f.mark))
	}
	if f.mark == "" {
		return nil
	}
	marked := pattern(f.mark)
	if words := strings.Fields(f.mark); len(words) > 1 {
		f.inner = words[len(words)-1]
		marked = `(?:` + pattern(strings.TrimSuffix(f.mark, f.inner)) + `)?` + pattern(f.inner)
	}
	f.begin = regexp.MustCompile(marked)
	f.call = regexp.MustCompile(`^` + marked + `\s*([^\s<>\[\]{}|"]+)` + pattern(strings.TrimSpace(behind)))
	f.key = regexp.MustCompile(`^` + pattern(f.keyMark) + `\s*([^<>"]+?)` + attributes(strings.TrimSuffix(middle, "\n")))
	f.hint = f.open + f.mark + "NAME" + behind + keyMark + "KEY" + middle + "..." + strings.TrimSuffix(next, keyMark) + rest
	return f
}

// attributes returns the pattern of the text between a key and its value, with a group for the value of an attribute.
func attributes(text string) string {
	i := attribute.FindStringSubmatchIndex(text)
	if i == nil {
		return pattern(text)
	}
	return pattern(text[:i[2]]) + `([^"]*)` + pattern(text[i[3]:])
}

var attribute = regexp.MustCompile(`\w+="([^"]*)"`)
