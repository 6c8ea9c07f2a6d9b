package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// fragment is a part of a text between added tokens.
type fragment struct {
	text  string
	first bool // it begins at the start of the text that was passed to Encode
}

// step is one pre-tokenizer: it cuts a fragment into fragments, which may have other texts. One of the fields is set.
type step struct {
	split splitter                            // cuts the text into pieces without changing it
	cut   func(f fragment, to func(fragment)) // any other step; it passes its results to `to`, in order
}

// preTokenize applies the steps to a fragment, one after the other, and calls f for each piece that is not empty.
func preTokenize(steps []step, in fragment, f func(piece string)) {
	switch {
	case in.text == "":
	case len(steps) == 0:
		f(in.text)
	case steps[0].split != nil:
		for s, first := in.text, in.first; len(s) > 0; first = false {
			n := steps[0].split(s)
			preTokenize(steps[1:], fragment{s[:n], first}, f)
			s = s[n:]
		}
	default:
		steps[0].cut(in, func(part fragment) { preTokenize(steps[1:], part, f) })
	}
}

// preTokenizer holds the steps. byteLevel reports whether the last one converts text to byte-level text; the model then
// reads bytes.
type preTokenizer struct {
	steps     []step
	byteLevel bool
}

func buildPreTokenizer(v any) (p preTokenizer, err error) {
	list, err := flatten(v, "pretokenizers")
	if err != nil {
		return p, err
	}
	for i, c := range list {
		if c.kind == "ByteLevel" && i < len(list)-1 {
			return p, fmt.Errorf("ByteLevel before another step is not supported")
		}
		p.steps = append(p.steps, preTokenizerSteps(c)...)
		if c.err != nil {
			return p, c.err
		}
		p.byteLevel = c.kind == "ByteLevel"
	}
	return p, nil
}

func preTokenizerSteps(c *component) []step {
	switch c.kind {
	case "ByteLevel":
		return byteLevelSteps(c)
	case "Digits":
		return []step{digitsStep(c)}
	case "Split":
		return []step{splitStep(c)}
	case "Metaspace":
		return metaspaceSteps(c)
	case "Punctuation":
		c.only("behavior")
		return []step{{cut: splitBy(punctuation{}, c.behavior(isolated), false)}}
	case "Whitespace":
		c.only()
		return []step{{cut: dropSpaces(splitWordsAndMarks)}}
	case "WhitespaceSplit":
		c.only()
		return []step{{cut: dropSpaces(splitWords)}}
	}
	c.unsupported("pre-tokenizer")
	return nil
}

func byteLevelSteps(c *component) (steps []step) {
	c.only("add_prefix_space", "trim_offsets", "use_regex")
	if c.flag("add_prefix_space", true) {
		steps = append(steps, step{cut: func(f fragment, to func(fragment)) {
			if !strings.HasPrefix(f.text, " ") {
				f.text = " " + f.text
			}
			to(f)
		}})
	}
	if c.flag("use_regex", true) {
		steps = append(steps, step{split: splitGPT2})
	}
	return steps
}

func digitsStep(c *component) step {
	c.only("individual_digits")
	if c.flag("individual_digits", false) {
		return step{split: splitDigits}
	}
	return step{split: splitDigitRuns}
}

// dropSpaces applies a splitter that keeps white space apart, and drops the white space.
func dropSpaces(split splitter) func(fragment, func(fragment)) {
	return func(f fragment, to func(fragment)) {
		for s, first := f.text, f.first; len(s) > 0; first = false {
			n := split(s)
			if r, _ := utf8.DecodeRuneInString(s); !unicode.IsSpace(r) {
				to(fragment{s[:n], first})
			}
			s = s[n:]
		}
	}
}

// metaspaceSteps replaces spaces by a character. It may also put that character before the text and split the text before
// each such character.
func metaspaceSteps(c *component) []step {
	mark, scheme := metaspace(c)
	steps := []step{{cut: func(f fragment, to func(fragment)) {
		f.text = strings.ReplaceAll(f.text, " ", mark)
		if (scheme == "always" || scheme == "first" && f.first) && !strings.HasPrefix(f.text, mark) {
			f.text = mark + f.text
		}
		to(f)
	}}}
	if c.flag("split", true) {
		steps = append(steps, step{cut: splitBy(literal(mark), mergedWithNext, false)})
	}
	return steps
}

// metaspace reads the character and the scheme of a Metaspace pre-tokenizer or decoder.
func metaspace(c *component) (mark, scheme string) {
	c.only("replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep")
	mark, _ = ordered.Value[string](c.object, "replacement")
	if utf8.RuneCountInString(mark) != 1 {
		c.fail("replacement %q is not one character", mark)
	}
	scheme = "always"
	declared, isDeclared := c.object.Get("prepend_scheme")
	if isDeclared {
		scheme, _ = declared.(string)
	}
	if scheme != "always" && scheme != "first" && scheme != "never" {
		c.fail("prepend_scheme %q is neither always, first nor never", scheme)
	}
	if !c.flag("add_prefix_space", scheme != "never") && scheme != "never" {
		if isDeclared {
			c.fail("add_prefix_space is false and prepend_scheme %s", scheme)
		}
		scheme = "never"
	}
	return mark, scheme
}

// behavior determines to which piece Split assigns a match of its pattern.
type behavior int

const (
	removed behavior = iota
	isolated
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviors = map[any]behavior{"Removed": removed, "Isolated": isolated, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous}

func (c *component) behavior(absent behavior) behavior {
	v, ok := c.object.Get("behavior")
	if !ok {
		return absent
	}
	name, _ := v.(string)
	b, ok := behaviors[name]
	if !ok {
		c.fail("behavior %v is not supported", v)
	}
	return b
}

func splitStep(c *component) step {
	c.only("pattern", "behavior", "invert")
	if _, ok := c.object.Get("behavior"); !ok {
		c.fail("behavior is missing")
	}
	invert, b := c.flag("invert", false), c.behavior(isolated)
	// If the pattern matches all of a text, keeping the matches is the same as removing the rest.
	if split, ok := scanners[c.regex()]; ok && (b == isolated || b == removed && invert) {
		return step{split: split}
	}
	if split, ok := isolators[c.regex()]; ok && b == isolated {
		return step{split: split}
	}
	return step{cut: splitBy(readPattern(c), b, invert)}
}

// regex returns the text of the component's regular expression, or "" if its pattern is not a regular expression.
func (c *component) regex() string {
	o, _ := ordered.Value[*ordered.Object](c.object, "pattern")
	text, _ := ordered.Value[string](o, "Regex")
	return text
}

// punctuation matches each ASCII or Unicode punctuation character.
type punctuation struct{}

func (punctuation) matches(s string, f func(start, end int)) {
	for i, r := range s {
		if unicode.IsPunct(r) || r < utf8.RuneSelf && unicode.IsSymbol(r) {
			f(i, i+utf8.RuneLen(r))
		}
	}
}

// stretch is a part of a text that matches a pattern, or that lies between two matches.
type stretch struct {
	start, end int
	matched    bool
}

// stretches cuts s into matches and the parts between them. With invert, the parts between matches count as matches and the
// matches do not.
func stretches(p pattern, s string, invert bool) []stretch {
	var list []stretch
	done := 0
	p.matches(s, func(start, end int) {
		if start > done {
			list = append(list, stretch{done, start, invert})
		}
		list = append(list, stretch{start, end, !invert})
		done = end
	})
	if done < len(s) {
		list = append(list, stretch{done, len(s), invert})
	}
	return list
}

// splitBy implements Split, as NormalizedString::split of the tokenizers library does.
func splitBy(p pattern, b behavior, invert bool) func(fragment, func(fragment)) {
	return func(f fragment, to func(fragment)) {
		parts := stretches(p, f.text, invert)
		for i := 0; i < len(parts); {
			start, end := parts[i].start, parts[i].end
			j := i + 1
			for j < len(parts) && b.joins(parts, j) {
				end = parts[j].end
				j++
			}
			if start < end && !(b == removed && parts[i].matched) {
				to(fragment{f.text[start:end], f.first && start == 0})
			}
			i = j
		}
	}
}

// joins reports whether parts[i] belongs to the piece of parts[i-1].
func (b behavior) joins(parts []stretch, i int) bool {
	switch b {
	case contiguous:
		return parts[i].matched == parts[i-1].matched
	case mergedWithPrevious:
		return parts[i].matched && !parts[i-1].matched
	case mergedWithNext:
		return parts[i-1].matched && !parts[i].matched
	}
	return false
}
