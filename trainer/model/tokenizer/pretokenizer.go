package tokenizer

import (
	"fmt"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// PatternError is the value with which Encode panics if a regular expression of tokenizer.json takes too long. Load tries
// each pattern on texts that are known to be hard and refuses slow patterns. So only a text that was made for the pattern
// can cause this.
type PatternError = pretokenize.PatternError

// preTokenizer holds the steps. byteLevel reports whether the last one converts text to byte-level text; the model then
// reads bytes.
type preTokenizer struct {
	steps     []pretokenize.Step
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

func preTokenizerSteps(c *component) []pretokenize.Step {
	switch c.kind {
	case "ByteLevel":
		c.only("add_prefix_space", "trim_offsets", "use_regex")
		return pretokenize.ByteLevel(c.flag("add_prefix_space", true), c.flag("use_regex", true))
	case "Digits":
		c.only("individual_digits")
		return []pretokenize.Step{pretokenize.Digits(c.flag("individual_digits", false))}
	case "Split":
		return []pretokenize.Step{splitStep(c)}
	case "Metaspace":
		mark, scheme := metaspace(c)
		return pretokenize.Metaspace(mark, scheme, c.flag("split", true))
	case "Punctuation":
		c.only("behavior")
		return []pretokenize.Step{pretokenize.Punctuation(c.behavior(pretokenize.Isolated))}
	case "Whitespace":
		c.only()
		return []pretokenize.Step{pretokenize.Whitespace()}
	case "WhitespaceSplit":
		c.only()
		return []pretokenize.Step{pretokenize.WhitespaceSplit()}
	}
	c.unsupported("pre-tokenizer")
	return nil
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

// behaviors has the names of tokenizer.json.
var behaviors = map[string]pretokenize.Behavior{"Removed": pretokenize.Removed, "Isolated": pretokenize.Isolated,
	"MergedWithPrevious": pretokenize.MergedWithPrevious, "MergedWithNext": pretokenize.MergedWithNext, "Contiguous": pretokenize.Contiguous}

func (c *component) behavior(absent pretokenize.Behavior) pretokenize.Behavior {
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

func splitStep(c *component) pretokenize.Step {
	c.only("pattern", "behavior", "invert")
	if _, ok := c.object.Get("behavior"); !ok {
		c.fail("behavior is missing")
	}
	invert, b := c.flag("invert", false), c.behavior(pretokenize.Isolated)
	if step, ok := pretokenize.KnownSplit(c.regex(), b, invert); ok {
		return step
	}
	return pretokenize.Split(readPattern(c), b, invert)
}

// regex returns the text of the component's regular expression, or "" if its pattern is not a regular expression.
func (c *component) regex() string {
	o, _ := ordered.Value[*ordered.Object](c.object, "pattern")
	text, _ := ordered.Value[string](o, "Regex")
	return text
}

// readPattern reads {"String": …} or {"Regex": …}.
func readPattern(c *component) pretokenize.Pattern {
	o, _ := ordered.Value[*ordered.Object](c.object, "pattern")
	text, _ := ordered.Value[string](o, "String")
	expression := c.regex()
	switch {
	case o.Len() == 1 && text != "" && len(text) <= pretokenize.MaxPattern:
		return pretokenize.Literal(text)
	case o.Len() == 1 && expression != "":
		p, err := pretokenize.CompileRegex(expression)
		if err != nil {
			c.fail("%w", err)
		}
		return p
	}
	c.fail("pattern is neither {\"String\": text} nor {\"Regex\": text}")
	return nil
}
