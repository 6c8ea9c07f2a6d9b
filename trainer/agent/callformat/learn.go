package callformat

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ProbeCall is a call for a template to print.
type ProbeCall struct {
	ID, Name  string
	Arguments []Argument
}

// Argument is one argument of a printed call: a string or an int64.
type Argument struct {
	Key   string
	Value any
}

// Texts of the calls that a template prints. No template contains these texts.
const (
	probeText   = "mgrpo-probe-turn"
	probeName   = "mgrpo_probe_function"
	probeOther  = "mgrpo_probe_second"
	probeKey    = "mgrpo_probe_key"
	probeKey2   = "mgrpo_probe_other"
	probeValue  = "mgrpo-probe-argument"
	probeValue2 = "mgrpo-probe-further"
	probeNumber = int64(7081352946)
	ProbeID     = "probe0001" // nine letters and digits, because Mistral's templates require that
	probeID2    = "probe0002"
)

var (
	// ErrNotPrinted is the error that InferFormat returns for a template that does not print calls.
	ErrNotPrinted = errors.New("the chat template does not print calls")
	// ErrUnknown is the error that InferFormat returns for a template that prints calls in a notation that no
	// Format can read.
	ErrUnknown = errors.New("the chat template prints calls in a notation that cannot be read")
)

// probes are a template's renderings of an assistant's message.
type probes struct {
	before, after string // around a message that is a text
	one           string // a call with one argument, a text
	number        string // a call with one argument, a number
	keys          string // a call with two arguments
	none          string // a call without arguments
	two           string // two calls with one argument each; "" if the template allows one call only
}

// InferFormat asks a template to print calls and returns the format that reads them. It returns a format only if the format
// reads back the printed calls. Its error is ErrNotPrinted, ErrUnknown, or an error of print. print prints an assistant's
// message with the template and returns the text from the end of the user's message to the end.
func InferFormat(print func(content string, calls ...ProbeCall) (string, error)) (Format, error) {
	p, err := takeProbes(print)
	if err != nil {
		return nil, err
	}
	for _, learn := range []func(*probes) Format{learnHarmony, learnMistral, learnGemma, learnHermes, learnTagged, learnPython, learnPairs, learnNamed} {
		if f := learn(p); f != nil && p.readBy(f) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("%w: it prints %.300q", ErrUnknown, strings.TrimPrefix(p.one, p.before))
}

func takeProbes(print func(content string, calls ...ProbeCall) (string, error)) (*probes, error) {
	p := &probes{}
	text, err := print(probeText)
	if err != nil {
		return nil, err
	}
	p.before, p.after, _ = strings.Cut(text, probeText)
	call := func(id, name string, arguments ...Argument) ProbeCall {
		return ProbeCall{ID: id, Name: name, Arguments: arguments}
	}
	first := Argument{probeKey, probeValue}
	for _, c := range []struct {
		to    *string
		calls []ProbeCall
	}{
		{&p.one, []ProbeCall{call(ProbeID, probeName, first)}},
		{&p.number, []ProbeCall{call(ProbeID, probeName, Argument{probeKey, probeNumber})}},
		{&p.keys, []ProbeCall{call(ProbeID, probeName, first, Argument{probeKey2, probeValue2})}},
		{&p.none, []ProbeCall{call(ProbeID, probeName)}},
		{&p.two, []ProbeCall{call(ProbeID, probeName, first), call(probeID2, probeOther, Argument{probeKey, probeValue2})}},
	} {
		if *c.to, err = print("", c.calls...); err != nil && c.to != &p.two {
			return nil, err
		}
	}
	if !strings.Contains(p.one, probeName) {
		return nil, ErrNotPrinted
	}
	p.two = strings.ReplaceAll(p.two, probeID2, ProbeID)
	return p, nil
}

// readBy reports whether a format reads back the printed calls.
func (p *probes) readBy(f Format) bool {
	for text, want := range map[string][]string{
		p.one: {probeName, probeValue}, p.keys: {probeName, probeValue, probeKey2, probeValue2}, p.none: {probeName},
		p.number: {probeName, fmt.Sprint(probeNumber)}, p.two: {probeName, probeValue, probeOther, probeValue2},
	} {
		if text == "" || text == p.two && strings.Count(text, probeOther) == 0 {
			continue
		}
		r := f.Read(TrimOpening(text, p.before), Functions{probeName: nil, probeOther: nil})
		var read strings.Builder
		for _, c := range r.Calls {
			if c.Problem != "" {
				return false
			}
			fmt.Fprintf(&read, "%s %s ", c.Name, c.Arguments)
		}
		for _, w := range want {
			if !strings.Contains(read.String(), w) {
				return false
			}
		}
		if calls := 1 + strings.Count(strings.Join(want, " "), probeOther); len(r.Calls) != calls {
			return false
		}
	}
	return true
}

// pieces splits a text into marks, words, white space and single characters, so that a common part of two texts never
// ends inside a mark.
func pieces(text string) []string { return piecePattern.FindAllString(text, -1) }

var piecePattern = regexp.MustCompile(`</?[^<>\s]*>?|\[/?[A-Z_]+\]|\s+|[\pL\pN_:-]+|.`)

// commonEnd returns the longest common end of both texts that begins at a piece of both.
func commonEnd(a, b string) string {
	as, bs := pieces(a), pieces(b)
	n := 0
	for n < len(as) && n < len(bs) && as[len(as)-1-n] == bs[len(bs)-1-n] {
		n++
	}
	return strings.Join(as[len(as)-n:], "")
}

// commonBegin returns the longest common beginning of both texts that ends at a piece of both.
func commonBegin(a, b string) string {
	as, bs := pieces(a), pieces(b)
	n := 0
	for n < len(as) && n < len(bs) && as[n] == bs[n] {
		n++
	}
	return strings.Join(as[:n], "")
}

// emptyThought matches an empty thought that a template prints before a turn's text or calls, or the end of a thought.
var emptyThought = regexp.MustCompile(`(?s)^.*(</[\w:]*think[\w:]*>|\[/THINK\]|<\|END_THINKING\|>)`)

// opening returns the part of a printed text that belongs to the calls, without the opening of the assistant's turn and
// any thought before them. The text must end at the first name or value of the calls.
func (p *probes) opening(text string) string {
	text = TrimOpening(text, p.before)
	return strings.TrimSpace(emptyThought.ReplaceAllString(text, ""))
}

// TrimOpening returns a printed text without the opening of the assistant's turn that it shares with the text before. Some templates
// print other white space before the opening of a turn with calls.
func TrimOpening(text, before string) string {
	common := commonBegin(text, before)
	text, before = strings.TrimPrefix(text, common), strings.TrimPrefix(before, common)
	if rest, ok := strings.CutPrefix(strings.TrimLeft(text, " \n"), strings.TrimSpace(before)); ok {
		return rest
	}
	return text
}

// closing returns the part of a printed text that belongs to the calls, without the end of the assistant's turn. The
// text must begin after the last value.
func (p *probes) closing(text string) string {
	return strings.TrimSpace(strings.TrimSuffix(text, commonEnd(text, p.after)))
}

// around splits a printed text at the first occurrence of each of the given texts. All of them must occur, in this
// order.
func around(text string, at ...string) (parts []string, ok bool) {
	for _, a := range at {
		var before string
		if before, text, ok = strings.Cut(text, a); !ok {
			return nil, false
		}
		parts = append(parts, before)
	}
	return append(parts, text), true
}

// firstMark returns the mark at the beginning of a text, or the text up to its first white space.
func firstMark(text string) string {
	if m := leadingMark.FindString(text); m != "" {
		return m
	}
	if words := strings.Fields(text); len(words) > 0 {
		return words[0]
	}
	return ""
}

var leadingMark = regexp.MustCompile(`^[^\s<>]*<[^<>]*>`)
