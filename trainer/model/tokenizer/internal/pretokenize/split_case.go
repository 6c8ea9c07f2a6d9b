package pretokenize

import (
	"unicode"
	"unicode/utf8"
)

// letterCase classifies letters and marks for PatternO200k and PatternTekken.
type letterCase uint8

const (
	noLetter  letterCase = iota
	upperCase            // \p{Lu}\p{Lt}
	lowerCase            // \p{Ll}
	bothCases            // \p{Lm}\p{Lo}\p{M}
)

var asciiCase = func() (table [128]letterCase) {
	for b := range table {
		table[b] = runeCase(rune(b))
	}
	return table
}()

func runeCase(r rune) letterCase {
	switch {
	case unicode.Is(unicode.Ll, r):
		return lowerCase
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return upperCase
	case unicode.In(r, unicode.Lm, unicode.Lo, unicode.M):
		return bothCases
	}
	return noLetter
}

// caseRun returns the end of the run of characters in one of two cases that begins at s[i].
func caseRun(s string, i int, a, b letterCase) int {
	for i < len(s) {
		c, n := caseAt(s, i)
		if c != a && c != b {
			break
		}
		i += n
	}
	return i
}

func caseAt(s string, i int) (letterCase, int) {
	if b := s[i]; b < 128 {
		return asciiCase[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return runeCase(r), n
}

// splitByCase implements PatternO200k and PatternTekken. digits is the largest number of digits in a piece. With
// contractions, a word includes the contraction that follows it.
func splitByCase(s string, digits int, contractions bool) int {
	c, n := classAt(s, 0)
	prefixed := c == other || c == space // [^\r\n\p{L}\p{N}]?
	end := 0
	if prefixed {
		end = lowerWord(s, n)
	}
	if end == 0 {
		end = lowerWord(s, 0)
	}
	if end == 0 && prefixed {
		end = upperWord(s, n)
	}
	if end == 0 {
		end = upperWord(s, 0)
	}
	if end > 0 {
		if contractions {
			end += contraction(s[end:], true)
		}
		return end
	}
	if c == number {
		return run(s, n, number, digits-1)
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := run(s, start, other, len(s)); end > start {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
			end++
		}
		return end
	}
	return whitespaceLines(s)
}

// lowerWord matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at s[i] and returns the end of the match, or
// 0 if there is no match.
func lowerWord(s string, i int) int {
	last := 0 // the end of the last character of both cases
	for i < len(s) {
		c, n := caseAt(s, i)
		if c == lowerCase {
			return caseRun(s, i, lowerCase, bothCases)
		}
		if c == noLetter {
			break
		}
		i += n
		if c == bothCases {
			last = i
		}
	}
	return last
}

// upperWord matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+ at s[i], after lowerWord has not matched there. It returns the end of
// the match, or 0 if there is no match.
func upperWord(s string, i int) int {
	if end := caseRun(s, i, upperCase, bothCases); end > i {
		return end
	}
	return 0
}
