package constrained

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// exactPattern writes regular expressions for XGrammar, which matches whole texts and supports fewer constructs than
// JSON Schema.
type exactPattern struct {
	json    bool   // the text is within a JSON string
	without []rune // characters that texts must not contain
}

// firstControl and lastControl are the bounds of the control characters below space. No JSON string contains these
// characters.
const firstControl, lastControl = 0, 0x1f

// whole returns an expression for the texts that contain a match of pattern. Texts with an excluded character are left
// out.
func (e exactPattern) whole(pattern string) (string, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return "", err
	}
	return e.anchored(re)
}

// between returns the expression for any text with least to most characters. A negative most means no upper bound.
func (e exactPattern) between(least, most int) string {
	one, _ := e.class([]rune{0, unicode.MaxRune})
	switch {
	case most < 0:
		return fmt.Sprintf("%s{%d,}", one, least)
	case most == 0:
		return "()"
	}
	return fmt.Sprintf("%s{%d,%d}", one, least, most)
}

// anchored writes an expression that may match anywhere in a text, except for ends marked by ^ or $.
func (e exactPattern) anchored(re *syntax.Regexp) (string, error) {
	parts := []*syntax.Regexp{re}
	switch re.Op {
	case syntax.OpCapture:
		return e.anchored(re.Sub[0])
	case syntax.OpAlternate:
		return e.join(re.Sub, "|", e.anchored)
	case syntax.OpConcat:
		parts = re.Sub
	}
	rest := e.between(0, -1)
	before, after := rest, rest
	if len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		before, parts = "", parts[1:]
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		after, parts = "", parts[:n-1]
	}
	text, err := e.join(parts, "", e.exact)
	return before + text + after, err
}

// join writes parts as a group.
func (e exactPattern) join(parts []*syntax.Regexp, between string, write func(*syntax.Regexp) (string, error)) (string, error) {
	texts := make([]string, len(parts))
	for i, p := range parts {
		var err error
		if texts[i], err = write(p); err != nil {
			return "", err
		}
	}
	return "(" + strings.Join(texts, between) + ")", nil
}

func (e exactPattern) exact(re *syntax.Regexp) (string, error) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return "()", nil
	case syntax.OpLiteral:
		return e.literal(re)
	case syntax.OpCharClass:
		return e.class(re.Rune)
	case syntax.OpAnyChar:
		return e.class([]rune{0, unicode.MaxRune})
	case syntax.OpAnyCharNotNL:
		return e.class([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpCapture:
		return e.exact(re.Sub[0])
	case syntax.OpConcat:
		return e.join(re.Sub, "", e.exact)
	case syntax.OpAlternate:
		return e.join(re.Sub, "|", e.exact)
	}
	times := map[syntax.Op]string{syntax.OpStar: "*", syntax.OpPlus: "+", syntax.OpQuest: "?"}[re.Op]
	if re.Op == syntax.OpRepeat {
		if times = fmt.Sprintf("{%d,%d}", re.Min, re.Max); re.Max < 0 {
			times = fmt.Sprintf("{%d,}", re.Min)
		}
	}
	if times == "" {
		return "", fmt.Errorf("%s within a pattern cannot be enforced", re)
	}
	text, err := e.join(re.Sub, "", e.exact)
	return text + times, err
}

// literal writes a text, in both cases if the expression ignores case.
func (e exactPattern) literal(re *syntax.Regexp) (string, error) {
	var b strings.Builder
	for _, r := range re.Rune {
		same := []rune{r, r}
		for f := unicode.SimpleFold(r); re.Flags&syntax.FoldCase != 0 && f != r; f = unicode.SimpleFold(f) {
			same = append(same, f, f)
		}
		text := `\\` + escaped(r)
		if !e.json || r != '"' && r != '\\' {
			var err error
			if text, err = e.class(same); err != nil {
				return "", err
			}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// class writes a set of characters, given as pairs of bounds, without the excluded characters.
func (e exactPattern) class(bounds []rune) (string, error) {
	without := []rune{firstControl, firstControl, rune(markByte[0]), rune(markByte[0]), 0xd800, 0xdfff} // 0xd800 to 0xdfff are surrogates
	if e.json {
		without = append(without, firstControl, lastControl, '"', '"', '\\', '\\')
	}
	for _, r := range e.without {
		without = append(without, r, r)
	}
	for i := 0; i < len(without); i += 2 {
		bounds = minus(bounds, without[i], without[i+1])
	}
	if len(bounds) == 0 {
		return "", fmt.Errorf("a character that no value in the model's notation can contain cannot be enforced")
	}
	var b strings.Builder
	for i := 0; i < len(bounds); i += 2 {
		b.WriteString(escaped(bounds[i]))
		if bounds[i] != bounds[i+1] {
			b.WriteString("-" + escaped(bounds[i+1]))
		}
	}
	return "[" + b.String() + "]", nil
}

// minus removes the characters from low to high from pairs of bounds.
func minus(bounds []rune, low, high rune) []rune {
	var out []rune
	for pair := range slices.Chunk(bounds, 2) {
		if from, to := pair[0], min(pair[1], low-1); from <= to {
			out = append(out, from, to)
		}
		if from, to := max(pair[0], high+1), pair[1]; from <= to {
			out = append(out, from, to)
		}
	}
	return out
}

// escaped returns a character as it is written within a set.
func escaped(r rune) string {
	switch {
	case r < ' ' || r == 0x7f:
		return fmt.Sprintf(`\x%02x`, r)
	case strings.ContainsRune(`\]^-[`, r):
		return `\` + string(r)
	}
	return string(r)
}
