// Package pretokenize cuts texts into the pieces that a model encodes one by one, as the pre-tokenizers of Hugging Face's
// tokenizers library do. It also has the patterns of Split, which Replace has, too.
package pretokenize

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// fragment is a part of a text between added tokens.
type fragment struct {
	text  string
	first bool // it begins at the start of the whole text
}

// Step is one pre-tokenizer: it cuts a fragment into fragments, which may have other texts. One of the fields is set.
type Step struct {
	split splitter                            // cuts the text into pieces without changing it
	cut   func(f fragment, to func(fragment)) // any other step; it passes its results to `to`, in order
}

// Apply applies the steps to a text between added tokens, one after the other, and calls f for each piece that is not empty.
// first reports whether the text begins at the start of the whole text.
func Apply(steps []Step, text string, first bool, f func(piece string)) {
	apply(steps, fragment{text, first}, f)
}

func apply(steps []Step, in fragment, f func(piece string)) {
	switch {
	case in.text == "":
	case len(steps) == 0:
		f(in.text)
	case steps[0].split != nil:
		for s, first := in.text, in.first; len(s) > 0; first = false {
			n := steps[0].split(s)
			apply(steps[1:], fragment{s[:n], first}, f)
			s = s[n:]
		}
	default:
		steps[0].cut(in, func(part fragment) { apply(steps[1:], part, f) })
	}
}

// ByteLevel returns the steps of ByteLevel before text is converted to byte-level text. With prefix, they put a space before
// a text that does not begin with one. With regex, they cut the text by PatternGPT2.
func ByteLevel(prefix, regex bool) (steps []Step) {
	if prefix {
		steps = append(steps, Step{cut: func(f fragment, to func(fragment)) {
			if !strings.HasPrefix(f.text, " ") {
				f.text = " " + f.text
			}
			to(f)
		}})
	}
	if regex {
		steps = append(steps, Step{split: splitGPT2})
	}
	return steps
}

// Digits returns the step that separates digits from other text, and from each other if individual is true.
func Digits(individual bool) Step {
	if individual {
		return Step{split: splitDigits}
	}
	return Step{split: splitDigitRuns}
}

// Whitespace returns the step that keeps the matches of \w+|[^\w\s]+.
func Whitespace() Step { return Step{cut: dropSpaces(splitWordsAndMarks)} }

// WhitespaceSplit returns the step that keeps the text between white space.
func WhitespaceSplit() Step { return Step{cut: dropSpaces(splitWords)} }

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

// Metaspace returns the steps that replace spaces by mark. The scheme "always" also puts the mark before a text that does not
// begin with it, and "first" before the first text only. With split, they cut the text before each mark.
func Metaspace(mark, scheme string, split bool) []Step {
	steps := []Step{{cut: func(f fragment, to func(fragment)) {
		f.text = strings.ReplaceAll(f.text, " ", mark)
		if (scheme == "always" || scheme == "first" && f.first) && !strings.HasPrefix(f.text, mark) {
			f.text = mark + f.text
		}
		to(f)
	}}}
	if split {
		steps = append(steps, Split(Literal(mark), MergedWithNext, false))
	}
	return steps
}

// Behavior determines to which piece Split assigns a match of its pattern.
type Behavior int

// The behaviors of the tokenizers library.
const (
	Removed Behavior = iota
	Isolated
	MergedWithPrevious
	MergedWithNext
	Contiguous
)

// KnownSplit returns the step of Split for an expression that has a hand-written splitter. ok is false for other expressions,
// which need [CompileRegex] and [Split].
func KnownSplit(expression string, b Behavior, invert bool) (step Step, ok bool) {
	// If the pattern matches all of a text, keeping the matches is the same as removing the rest.
	if split, ok := scanners[expression]; ok && (b == Isolated || b == Removed && invert) {
		return Step{split: split}, true
	}
	if split, ok := isolators[expression]; ok && b == Isolated {
		return Step{split: split}, true
	}
	return Step{}, false
}

// Split returns the step of Split, as NormalizedString::split of the tokenizers library does it.
func Split(p Pattern, b Behavior, invert bool) Step {
	return Step{cut: func(f fragment, to func(fragment)) {
		parts := segments(p, f.text, invert)
		for i := 0; i < len(parts); {
			start, end := parts[i].start, parts[i].end
			j := i + 1
			for j < len(parts) && b.joins(parts, j) {
				end = parts[j].end
				j++
			}
			if start < end && !(b == Removed && parts[i].matched) {
				to(fragment{f.text[start:end], f.first && start == 0})
			}
			i = j
		}
	}}
}

// Punctuation returns the step that splits at each ASCII or Unicode punctuation character.
func Punctuation(b Behavior) Step { return Split(punctuation{}, b, false) }

// punctuation matches each ASCII or Unicode punctuation character.
type punctuation struct{}

func (punctuation) Matches(s string, f func(start, end int)) {
	for i, r := range s {
		if unicode.IsPunct(r) || r < utf8.RuneSelf && unicode.IsSymbol(r) {
			f(i, i+utf8.RuneLen(r))
		}
	}
}

// segment is a part of a text that matches a pattern, or that lies between two matches.
type segment struct {
	start, end int
	matched    bool
}

// segments cuts s into matches and the parts between them. With invert, the parts between matches count as matches and the
// matches do not.
func segments(p Pattern, s string, invert bool) []segment {
	var list []segment
	done := 0
	p.Matches(s, func(start, end int) {
		if start > done {
			list = append(list, segment{done, start, invert})
		}
		list = append(list, segment{start, end, !invert})
		done = end
	})
	if done < len(s) {
		list = append(list, segment{done, len(s), invert})
	}
	return list
}

// joins reports whether parts[i] belongs to the piece of parts[i-1].
func (b Behavior) joins(parts []segment, i int) bool {
	switch b {
	case Contiguous:
		return parts[i].matched == parts[i-1].matched
	case MergedWithPrevious:
		return parts[i].matched && !parts[i-1].matched
	case MergedWithNext:
		return parts[i-1].matched && !parts[i].matched
	}
	return false
}
