package callformat

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strings"
)

// callMarks has the marks around the calls of a turn, and an example of a call.
type callMarks struct {
	open string // mark before the first call; may be empty
	mark string // mark at the beginning of each call
	end  string // mark after the last call; may be empty
	hint string
}

func (s *callMarks) Hint() string { return "Write " + s.hint + "." }

func (s *callMarks) Mark() string { return cmp.Or(s.open, s.mark) }

// extend extends a reading to the marks around all calls.
func (s *callMarks) extend(text string, r Reading) Reading {
	if i := IndexUnquoted(text, 0, s.open); s.open != "" && i < r.Start {
		if len(r.Calls) == 0 {
			r.Calls, r.End = []Call{{Problem: s.open + " without a call. " + s.Hint()}}, len(text)
		}
		r.Start = i
	}
	r.End = skipMark(text, r.End, s.end)
	return r
}

// namedFormat is a function's name followed by its arguments as JSON, each between marks that the template prints.
type namedFormat struct {
	callMarks
	call  *regexp.Regexp // from the mark to the arguments; its group is the name
	close string         // mark after the arguments; may be empty
}

func (n *namedFormat) SafeLen(text string) int { return SafeLen(text, n.open, n.mark) }

func (n *namedFormat) Read(text string, _ Functions) Reading {
	r := readMarked(text, n.mark, func(at int) ([]Call, int) {
		begin := at - len(n.mark)
		m := n.call.FindStringSubmatchIndex(text[begin:])
		if m == nil {
			return []Call{{Problem: "the tool call has no name before its arguments. " + n.Hint()}}, at
		}
		name, at := text[begin+m[2]:begin+m[3]], begin+m[1]
		if end := skipMark(text, at, n.close); end > at { // some models write nothing for a call without arguments
			return []Call{{Name: name, Arguments: json.RawMessage("{}")}}, end
		}
		raw, length, err := decode(text[at:])
		if err != nil {
			return []Call{invalid(err, n.Hint())}, at
		}
		return []Call{withArguments(name, raw, "arguments", n.Hint())}, skipMark(text, at+length, n.close)
	})
	return n.extend(text, r)
}

// namespace precedes the name in Kimi's ids of calls. Models leave it out.
const namespace = "functions."

// learnNamed finds the JSON that has the arguments but not the name, and the marks before and after both.
func learnNamed(p *probes) Format {
	i := strings.LastIndex(p.one, probeName)
	value, raw := jsonWith(p.one, probeKey)
	if raw == nil || value < i || strings.Contains(string(raw), probeName) {
		return nil
	}
	begin := p.opening(p.one[:i])
	middle := p.one[i+len(probeName) : value]
	behind := p.closing(p.one[value+len(raw):])
	n := &namedFormat{callMarks: callMarks{mark: begin}, close: behind}
	if between := p.between(); between != "" { // the text between two calls is the end of one and the beginning of the other
		n.mark = strings.TrimSpace(commonEnd(begin, between))
		n.open = strings.TrimSpace(strings.TrimSuffix(begin, n.mark))
		n.close = strings.TrimSpace(strings.TrimSuffix(between, commonEnd(begin, between)))
		n.end = strings.TrimSpace(strings.TrimPrefix(behind, n.close))
	}
	if n.mark == "" {
		return nil
	}
	whole := n.mark
	n.mark, _, _ = strings.Cut(n.mark, ProbeID) // ids differ between calls
	marked := pattern(whole)
	if before, ok := strings.CutSuffix(whole, namespace); ok && before != "" {
		n.mark = strings.TrimSpace(before)
		marked = pattern(n.mark) + `\s*(?:` + pattern(namespace) + `)?`
	}
	at := max(strings.IndexByte(middle, '<'), 0)
	n.call = regexp.MustCompile(`^` + marked + `\s*([^\s<>\[\]{}|"]+?)` + pattern(middle[:at]) + `\s*` + pattern(middle[at:]) + `\s*`)
	n.hint = n.open + whole + "NAME" + middle + "{...}" + n.close + n.end
	return n
}

// between returns the text that the template prints between the arguments of one call and the name of the next.
func (p *probes) between() string {
	i := strings.LastIndex(p.two, probeOther)
	value, raw := jsonWith(p.two, probeKey)
	if i < 0 || raw == nil || value+len(raw) > i {
		return ""
	}
	return p.two[value+len(raw) : i]
}

// pattern returns a regular expression for a text that a template printed. It allows any amount of white space,
// including none, other numbers, and another id in place of the probe's.
func pattern(text string) string {
	var b strings.Builder
	for _, part := range varyingText.FindAllString(text, -1) {
		switch {
		case part == ProbeID:
			b.WriteString(`[^\s<>\[\]{}|"]*`)
		case strings.TrimSpace(part) == "":
			b.WriteString(`\s*`)
		case strings.Trim(part, "0123456789") == "":
			b.WriteString(`\d+`)
		default:
			b.WriteString(regexp.QuoteMeta(part))
		}
	}
	return b.String()
}

var varyingText = regexp.MustCompile(ProbeID + `|\s+|\d+|[^\s\d]`)
