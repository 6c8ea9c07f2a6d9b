package verify

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// sameText returns a comparison of answer and reference after the same normalisation.
func sameText(treat func(string) string) comparison {
	return func(reference string, c Case) (bool, error) {
		want, got := treat(reference), treat(c.Attempt.Answer)
		if want == "" { // nothing is left to compare, for example if the reference is "?"
			want, got = strings.TrimSpace(reference), strings.TrimSpace(c.Attempt.Answer)
		}
		return got == want, nil
	}
}

// normalize folds case and compatibility forms, drops articles before a word, and replaces punctuation with spaces. It keeps
// punctuation with meaning: the sign of a number, its decimal point, the per cent sign and the hash. Initials become one
// word: J.K., J. K. and JK are the same.
func normalize(s string) string {
	runes := []rune(cases.Fold().String(norm.NFKC.String(raisedDigits(s))))
	at := func(i int) rune {
		if i < 0 || i >= len(runes) {
			return ' '
		}
		return runes[i]
	}
	digit := func(i int) bool { return unicode.IsDigit(at(i)) }
	word := func(i int) bool { return unicode.IsLetter(at(i)) || digit(i) }
	// fraction reports whether the point at i begins the decimals of a number, as in 1.5 and .5.
	fraction := func(i int) bool {
		return at(i) == '.' && digit(i+1) && (digit(i-1) || !word(i-1) && at(i-1) != '.')
	}
	// signed reports whether the text at i can follow the sign of a number, as in -5, -.5 and -$5.
	signed := func(i int) bool {
		if unicode.Is(unicode.Sc, at(i)) {
			i++
		}
		return digit(i) || at(i) == '.' && digit(i+1)
	}
	initial := func(i int) bool { return unicode.IsLetter(at(i-1)) && !word(i-2) } // the point at i follows a single letter
	var b strings.Builder
	for i, r := range runes {
		switch {
		case r == '.' && initial(i):
			b.WriteRune(afterInitial)
		case r == '\'' || r == '’', unicode.Is(unicode.Cf, r): // Cf: byte order marks, soft hyphens and others that are not seen
		case r == ' ' && digit(i-1) && at(i+1) == '%', r == ' ' && digit(i+1) && unicode.Is(unicode.Sc, at(i-1)): // 50 % and $ 5
		case r == ',' && digit(i-1) && digit(i+1) && digit(i+2) && digit(i+3) && !digit(i+4): // thousands
		case fraction(i), r == '%', r == '#':
			b.WriteRune(r)
		case strings.ContainsRune("-−–‐‒", r) && signed(i+1) && !word(i-1) && at(i-1) != ')' && at(i-1) != '-':
			b.WriteRune('-')
		case unicode.IsPunct(r), r == '`':
			b.WriteRune(' ')
		default:
			b.WriteRune(r)
		}
	}
	words := strings.Fields(joinInitials(b.String()))
	var kept []string
	for i, w := range words {
		if (w == "a" || w == "an" || w == "the") && i+1 < len(words) {
			continue
		}
		kept = append(kept, w)
	}
	return strings.Join(kept, " ")
}

// afterInitial stands for the point after a single letter.
const afterInitial = '\x01'

// joinInitials removes the points between initials, and replaces other points after single letters with spaces.
func joinInitials(s string) string {
	runes := append([]rune(s), ' ', ' ', ' ')
	word := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	var b strings.Builder
	for i := 0; i < len(runes)-3; i++ {
		r, next := runes[i], runes[i+1:]
		switch {
		case r != afterInitial:
			b.WriteRune(r)
		case unicode.IsLetter(next[0]) && !word(next[1]): // J.K
		case next[0] == ' ' && unicode.IsLetter(next[1]) && next[2] == afterInitial: // J. K.
			i++
		default:
			b.WriteRune(' ')
		}
	}
	return b.String()
}

// lastMatch compares the pattern's last match, because an answer usually ends with its conclusion.
func lastMatch(pattern *regexp.Regexp) comparison {
	return func(reference string, c Case) (bool, error) {
		matches := pattern.FindAllStringSubmatch(c.Attempt.Answer, -1)
		if len(matches) == 0 {
			return false, nil
		}
		last := matches[len(matches)-1]
		found := last[min(1, len(last)-1)]
		return strings.TrimSpace(found) == strings.TrimSpace(reference), nil
	}
}

// sameChoice compares the chosen options, which may be given by letter or by text.
func sameChoice(reference string, c Case) (bool, error) {
	want, ok := chosen(reference, c.Choices)
	if !ok {
		return false, fmt.Errorf("verifier: choice: the reference %.80q is not one of %d choices", reference, len(c.Choices))
	}
	answer := norm.NFKC.String(c.Attempt.Answer)
	if i := optionOf(answer, c.Choices); i >= 0 {
		return i == want, nil
	}
	for _, text := range conclusions(answer) {
		if got, ok := chosen(text, c.Choices); ok || doubtful(withoutNoun(text)) {
			return ok && got == want, nil
		}
	}
	return false, nil
}

var (
	soleLetter    = regexp.MustCompile(`^\W*([A-Za-z])\W*$`)
	leadingLetter = regexp.MustCompile("^[\\s*_\"'`]*(?:\\(([A-Za-z])\\)|([A-Za-z])[*_]*(?:[).:]|[ \\t]*\\n))")
	bracketed     = regexp.MustCompile(`\(([A-Za-z])\)`)
	optionWord    = regexp.MustCompile(`(?i)^[\s*_"'(]*(?:the\s+)?(?:(?:right|correct|final)\s+)?(?:option|choice|letter)\b(?:\s+is\b)?[:\s]*`)

	// as in "B, since it is hot" and "B, not A"
	reasoned = regexp.MustCompile(`^[\s*_]*\(?([A-Z])\)?[*_]*(?:[,;]?\s+not\s+\(?[A-Z]\b|[,;]?\s+(?:because|since|as)\b|(?:[,;]|\s[—–])\s)`)
	letter   = regexp.MustCompile(`(?:^|[^\pL\pN'’])([A-Z])(?:[^\pL\pN'’]|$)`)
)

var (
	hedged  = regexp.MustCompile(`(?i)^[\s*_]*\(?[a-z][).]*[*_]*\s*(?:,|/|or\b|and\b)\s*[*_]*\(?[a-z](?:[).]|\s*$)`) // as in "(A) or (B)"
	negated = regexp.MustCompile(`(?i)^[\s*_]*(?:(?:should|would|must|can|could|will)\s+)?(?:not|cannot|(?:ca|is|wo)n['’]t)\s+` +
		`(?:be\s+)?(?:(?:option|choice)\s+)?\(?[a-z](?:[).,;]|\s*$)`)
)

// doubtful reports whether a text begins with two letters, or excludes one.
func doubtful(text string) bool { return hedged.MatchString(text) || negated.MatchString(text) }

// withoutNoun returns a text without the words "the option" and similar at its beginning.
func withoutNoun(text string) string { return text[len(optionWord.FindString(text)):] }

// chosen returns the index of the chosen option, from 0. ok is false if the text names two letters, or excludes one.
func chosen(text string, choices []string) (int, bool) {
	if i := optionOf(text, choices); i >= 0 {
		return i, true
	}
	text = norm.NFKC.String(latexText.ReplaceAllString(withoutMath(text), " $1 "))
	if text = withoutNoun(text); doubtful(text) {
		return 0, false
	}
	n := len(choices)
	if n == 0 {
		n = 26
	}
	if i := withReason(text, n); i >= 0 {
		return i, true
	}
	for _, pattern := range []*regexp.Regexp{soleLetter, leadingLetter, bracketed} {
		found := -1
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			letter := strings.ToUpper(strings.Join(m[1:], ""))
			i := int(letter[0] - 'A')
			if i >= n || (found >= 0 && i != found) {
				return 0, false
			}
			found = i
		}
		if found >= 0 {
			return found, true
		}
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(text), " ") // as in "B London"
	if i := optionOf(rest, choices); i >= 0 && first == string(rune('A'+i)) {
		return i, true
	}
	return 0, false
}

// withReason returns the index of the option that a text names before a reason, or -1. The reason must not name another of the n options.
func withReason(text string, n int) int {
	m := reasoned.FindStringSubmatchIndex(text)
	if m == nil || int(text[m[2]]-'A') >= n {
		return -1
	}
	for _, other := range letter.FindAllStringSubmatch(text[m[1]:], -1) {
		if i := int(other[1][0] - 'A'); other[1] != "I" && i < n && other[1] != text[m[2]:m[3]] {
			return -1
		}
	}
	return int(text[m[2]] - 'A')
}
