package tokenizer

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/internal/pretokenize"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// A normalizer changes a text before it is split. Each follows the component of the tokenizers library with its name.
type normalizer func(string) string

var normalForms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

// maxContent is the largest number of bytes of a content of Replace and Prepend. maxGrowth limits the length of a text after all
// steps, as a multiple of its length: several steps after which it may be longer are refused.
const (
	maxContent = 64
	maxGrowth  = 256
)

// buildNormalizer reads a normaliser, or nil for none.
func buildNormalizer(v any) (normalizer, error) {
	list, err := flatten(v, "normalizers")
	if err != nil {
		return nil, err
	}
	var steps []normalizer
	growth := 1
	for _, c := range list {
		steps = append(steps, normalizerStep(c))
		if growth = c.growthAfter(growth); c.err != nil {
			return nil, c.err
		}
	}
	switch len(steps) {
	case 0:
		return nil, nil
	case 1:
		return steps[0], nil
	}
	return func(s string) string {
		for _, step := range steps {
			s = step(s)
		}
		return s
	}, nil
}

func normalizerStep(c *component) normalizer {
	if form, ok := normalForms[c.kind]; ok {
		c.only()
		return func(s string) string { return normalForm(form, s) }
	}
	switch c.kind {
	case "Lowercase":
		c.only()
		return lowercase
	case "Strip":
		return stripStep(c)
	case "Prepend":
		return prependStep(c)
	case "Replace":
		return replaceStep(c)
	}
	c.unsupported("normalizer")
	return nil
}

// lowercase lowers each character by itself, as Rust's char::to_lowercase does.
func lowercase(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return unicode.ToLower(r) != r || r == 'İ' }) {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if r == 'İ' {
			out.WriteString("i\u0307")
			continue
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

func stripStep(c *component) normalizer {
	c.only("strip_left", "strip_right")
	left, right := c.flag("strip_left", true), c.flag("strip_right", true)
	return func(s string) string {
		if left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s
	}
}

func prependStep(c *component) normalizer {
	c.only("prepend")
	prefix := c.content("prepend")
	c.growth = 1 + len(prefix)
	return func(s string) string {
		if s == "" {
			return s
		}
		return prefix + s
	}
}

func replaceStep(c *component) normalizer {
	c.only("pattern", "content")
	from, to := readPattern(c), c.content("content")
	c.growth = len(to)
	if from, ok := from.(pretokenize.Literal); ok && from != "" {
		c.growth = (len(to) + len(from) - 1) / len(from)
	}
	return func(s string) string { return replace(from, s, to) }
}

// replace replaces every match.
func replace(from pretokenize.Pattern, s, to string) string {
	if from, ok := from.(pretokenize.Literal); ok {
		return strings.ReplaceAll(s, string(from), to)
	}
	var out strings.Builder
	done := 0
	from.Matches(s, func(start, end int) {
		out.WriteString(s[done:start])
		out.WriteString(to)
		done = end
	})
	if done == 0 && out.Len() == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// growthAfter returns the growth of a text after this step, given the growth before it.
func (c *component) growthAfter(before int) int {
	after := before * max(c.growth, 1)
	if c.err == nil && after > maxGrowth {
		c.fail("this and the earlier steps let a text grow to %d times its length: at most %d are allowed", after, maxGrowth)
	}
	return after
}

// content reads a short text.
func (c *component) content(key string) string {
	v, _ := c.object.Get(key)
	s, ok := v.(string)
	if !ok {
		c.fail("%s is of type %s, not a text", key, ordered.TypeName(v))
	}
	if len(s) > maxContent {
		c.fail("%s has %d bytes: at most %d are allowed", key, len(s), maxContent)
	}
	return s
}
