package pretokenize

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// Limits on patterns, since they come from files.
const (
	MaxPattern     = 1 << 14          // bytes of a pattern
	maxBacktrack   = 1 << 24          // entries of the engine's stack during one match
	patternTimeout = 20 * time.Second // longest time of one match
	probeTimeout   = 2 * time.Second  // longest time of one match in the texts of probe
)

// A Pattern finds the matches of a Split or Replace component in a text.
type Pattern interface {
	// Matches calls f for each match, in order, with the match's bounds in bytes. A match may be empty.
	Matches(s string, f func(start, end int))
}

// PatternError is the value with which Matches and Apply panic if a regular expression takes too long. CompileRegex refuses
// patterns that are slow on texts that are known to be hard.
type PatternError struct {
	Pattern string
	Err     error
}

func (e *PatternError) Error() string {
	return fmt.Sprintf("tokenizer: the pattern %.200q failed: %v", e.Pattern, e.Err)
}

func (e *PatternError) Unwrap() error { return e.Err }

// Literal matches a text, which is not empty.
type Literal string

// Matches implements Pattern.
func (l Literal) Matches(s string, f func(start, end int)) {
	for from := 0; ; {
		i := strings.Index(s[from:], string(l))
		if i < 0 {
			return
		}
		f(from+i, from+i+len(l))
		from += i + len(l)
	}
}

// regex matches a regular expression in Oniguruma's Ruby syntax, which the tokenizers library uses.
type regex struct {
	text   string // as written in the file
	engine *regexp2.Regexp
}

func (r *regex) Matches(s string, f func(start, end int)) {
	text := []rune(s)
	runes, bytes := 0, 0 // the same place in text and in s
	to := func(rune int) int {
		for ; runes < rune; runes++ {
			bytes += utf8.RuneLen(text[runes])
		}
		return bytes
	}
	last := -1 // end of the previous match; an empty match there does not count
	err := r.engine.FindRunesMatches(text, 0, func(m regexp2.MatchView) bool {
		index, length, _ := m.GroupRange(0)
		if len(text) > 0 && (length > 0 || index != last) {
			start := to(index)
			f(start, to(index+length))
			last = index + length
		}
		return true
	})
	if err != nil {
		panic(&PatternError{r.text, err})
	}
}

// CompileRegex translates an expression for regexp2 and measures its time on hard texts. It returns an error for an
// expression that regexp2 reads differently, or that is slow.
func CompileRegex(text string) (Pattern, error) {
	if len(text) > MaxPattern {
		return nil, fmt.Errorf("a pattern of %d bytes: at most %d are allowed", len(text), MaxPattern)
	}
	r := &regex{text: text}
	translated, err := translate(text)
	if err == nil {
		r.engine, err = regexp2.Compile(translated, regexp2.Multiline, regexp2.OptionMaxBacktrackingStackSize(maxBacktrack))
	}
	if err == nil {
		err = r.probe()
	}
	if err != nil {
		return nil, fmt.Errorf("the pattern %.200q is not supported: %w", text, err)
	}
	r.engine.MatchTimeout = patternTimeout
	return r, nil
}

// probe refuses a pattern that is slow on long runs of characters. Expressions with nested repetitions take exponential
// time there.
func (r *regex) probe() (err error) {
	defer func() {
		if p, ok := recover().(*PatternError); ok {
			err = fmt.Errorf("it takes too long: %w", p.Err)
		}
	}()
	r.engine.MatchTimeout = probeTimeout
	for _, unit := range []string{"a", "A", "é", "1", " ", "\n", " \n", "!", "a1", "aA", "a ", "中", "a\u0301", "'s", "_a", "/"} {
		run := strings.Repeat(unit, 1<<11)
		for _, end := range []string{"", "\x00", "b", "\n!"} {
			r.Matches(run+end, func(int, int) {})
		}
	}
	return nil
}

// translator rewrites Oniguruma's Ruby syntax as regexp2's where the two differ. Possessive quantifiers become atomic groups, and \w and \b
// have Oniguruma's word characters. (?m) lets a point match line ends. Case-insensitive contractions match ſ, which folds to s.
// Classes inside classes are refused, since regexp2 reads them as characters.
type translator struct {
	in     string
	at     int
	out    []byte
	atom   int     // start of the last atom in out; -1: there is no atom to repeat
	groups []group // open groups
}

// group is an open group of the expression.
type group struct {
	start   int  // in out
	options bool // options inside an alternative, whose group ends with the group around it
}

const (
	wordSet       = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}Ⓐ-ⓩ🄰-🅉🅐-🅩🅰-🆉` // Oniguruma's \w in a class
	wordClass     = "[" + wordSet + "²³¹¼-¾]"                  // and elsewhere
	notWordClass  = "[^" + wordSet + "²³¹¼-¾]"
	boundary      = "(?:(?<=" + wordClass + ")(?!" + wordClass + ")|(?<!" + wordClass + ")(?=" + wordClass + "))"
	notBoundary   = "(?:(?<=" + wordClass + ")(?=" + wordClass + ")|(?<!" + wordClass + ")(?!" + wordClass + "))"
	contractions  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	contractions2 = `'(?i:[sdmt]|ll|ve|re)`
)

func translate(text string) (string, error) {
	text = strings.ReplaceAll(text, contractions, `(?:'[sSſ]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`)
	text = strings.ReplaceAll(text, contractions2, `'(?:[sSſdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])`)
	t := &translator{in: text, atom: -1}
	for t.at < len(t.in) {
		if err := t.next(); err != nil {
			return "", err
		}
	}
	t.endOptions()
	return string(t.out), nil
}

func (t *translator) copy(n int) {
	t.out = append(t.out, t.in[t.at:t.at+n]...)
	t.at += n
}

func (t *translator) next() error {
	switch c := t.in[t.at]; c {
	case '\\':
		t.atom = len(t.out)
		return t.escape(false)
	case '[':
		t.atom = len(t.out)
		return t.class()
	case '(':
		inside := t.atom >= 0
		t.groups = append(t.groups, group{start: len(t.out)})
		t.copy(1)
		t.atom = -1
		if t.at < len(t.in) && t.in[t.at] == '?' {
			t.copy(1)
			return t.options(inside)
		}
	case ')':
		t.endOptions()
		if len(t.groups) == 0 {
			return fmt.Errorf("a ) without a (")
		}
		t.atom = t.groups[len(t.groups)-1].start
		t.groups = t.groups[:len(t.groups)-1]
		t.copy(1)
	case '?', '*', '+':
		t.quantifier()
	case '{':
		t.copy(max(1, strings.IndexByte(t.in[t.at:], '}')+1))
	case '|':
		t.copy(1)
		t.atom = -1
	default:
		_, n := utf8.DecodeRuneInString(t.in[t.at:])
		t.atom = len(t.out)
		t.copy(n)
	}
	return nil
}

// options copies the options of a group. Oniguruma's m is regexp2's s. Options inside an alternative, as in a(?i)b|c, begin a group up to
// the end of the group around them: a(?i:b|c).
func (t *translator) options(inside bool) error {
	letters := t.in[t.at : t.at+strings.IndexAny(t.in[t.at:]+")", ":)")]
	if strings.Trim(letters, "imx-") == "" {
		t.out = append(t.out, strings.ReplaceAll(letters, "m", "s")...)
		t.at += len(letters)
	}
	switch end := strings.HasPrefix(t.in[t.at:], ")"); {
	case letters == "" || !end:
	case !inside:
		t.groups = t.groups[:len(t.groups)-1]
		t.copy(1)
	case strings.Contains(letters, "x"): // a comment could hide the end of the group
		return fmt.Errorf("(?x) inside an alternative")
	default:
		t.groups[len(t.groups)-1].options = true
		t.out = append(t.out, ':')
		t.at++
	}
	return nil
}

// endOptions ends the groups of options inside the current group.
func (t *translator) endOptions() {
	for n := len(t.groups); n > 0 && t.groups[n-1].options; n-- {
		t.groups = t.groups[:n-1]
		t.out = append(t.out, ')')
	}
}

// quantifier copies a quantifier. A + after it makes it possessive.
func (t *translator) quantifier() {
	t.copy(1)
	if t.at < len(t.in) && t.in[t.at] == '+' && t.atom >= 0 {
		t.at++
		repeated := string(t.out[t.atom:])
		t.out = append(t.out[:t.atom], "(?>"+repeated+")"...)
		return
	}
	if t.at < len(t.in) && t.in[t.at] == '?' {
		t.copy(1)
	}
}

// escape copies an escape sequence.
func (t *translator) escape(inClass bool) error {
	if t.at+1 == len(t.in) {
		return fmt.Errorf("it ends in a backslash")
	}
	switch c := t.in[t.at+1]; c {
	case 'w', 'W', 'b', 'B':
		class, known := map[byte]string{'w': wordClass, 'W': notWordClass, 'b': boundary, 'B': notBoundary}[c], true
		if inClass {
			class, known = map[byte]string{'w': wordSet, 'b': `\b`}[c]
		}
		if !known {
			return fmt.Errorf(`\%c in a class`, c)
		}
		t.at += 2
		t.out = append(t.out, class...)
		return nil
	case 'p', 'P':
		return t.property()
	case 'h', 'H', 'R', 'X', 'K', 'G', 'g', 'k', 'y', 'Y', 'O', 'N':
		return fmt.Errorf(`\%c`, c)
	}
	_, n := utf8.DecodeRuneInString(t.in[t.at+1:])
	t.copy(1 + n)
	return nil
}

// property copies \p{Name}. \p{^Name} is \P{Name}.
func (t *translator) property() error {
	end := strings.IndexByte(t.in[t.at:], '}')
	if end < 0 || t.in[t.at+2] != '{' {
		return fmt.Errorf(`\p without a name in braces`)
	}
	name, letter := t.in[t.at+3:t.at+end], t.in[t.at+1]
	if rest, negated := strings.CutPrefix(name, "^"); negated {
		name, letter = rest, letter^('p'^'P')
	}
	t.out = fmt.Appendf(t.out, `\%c{%s}`, letter, name)
	t.at += end + 1
	return nil
}

// class copies a class of characters.
func (t *translator) class() error {
	t.copy(1)
	if t.at < len(t.in) && t.in[t.at] == '^' {
		t.copy(1)
	}
	for first := true; t.at < len(t.in); first = false {
		switch c := t.in[t.at]; {
		case c == ']' && !first:
			t.copy(1)
			return nil
		case c == '[':
			return fmt.Errorf("a class within a class")
		case strings.HasPrefix(t.in[t.at:], "&&"):
			return fmt.Errorf("an intersection of classes")
		case c == '\\':
			if err := t.escape(true); err != nil {
				return err
			}
		default:
			_, n := utf8.DecodeRuneInString(t.in[t.at:])
			t.copy(n)
		}
	}
	return fmt.Errorf("a class without an end")
}
