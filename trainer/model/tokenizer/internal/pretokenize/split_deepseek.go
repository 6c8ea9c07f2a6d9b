package pretokenize

import (
	"unicode"
	"unicode/utf8"
)

// isolate makes a splitter from a function that returns the length of the match at the start of a text, or 0 if there is
// none. A piece is a match, or the text before the next match.
func isolate(match func(s string) int) splitter {
	return func(s string) int {
		if n := match(s); n > 0 {
			return n
		}
		i := 0
		for i < len(s) {
			_, n := utf8.DecodeRuneInString(s[i:])
			i += n
			if i < len(s) && match(s[i:]) > 0 {
				break
			}
		}
		return i
	}
}

var (
	splitDeepSeek = isolate(matchDeepSeek)
	splitDigits3  = isolate(func(s string) int { return run(s, 0, number, 3) })
	splitCJK      = isolate(func(s string) int {
		return prefixLen(s, func(r rune) bool { return r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff })
	})
)

// matchDeepSeek matches PatternDeepSeek at the start of s.
func matchDeepSeek(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if isMark(r) && r < 128 {
		if letters := prefixLen(s[1:], isASCIILetter); letters > 0 {
			return 1 + letters
		}
	}
	if letters := prefixLen(s, isLetterOrMark); letters > 0 {
		return letters
	}
	if c := runeClass(r); c != newline && !isMark(r) {
		if letters := prefixLen(s[n:], isLetterOrMark); letters > 0 {
			return n + letters
		}
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := start + prefixLen(s[start:], isMark); end > start {
		return run(s, end, newline, len(s))
	}
	if c := runeClass(r); c != space && c != newline {
		return 0
	}
	return whitespaceLines(s)
}

// isMark reports whether r is in \p{P} or \p{S}.
func isMark(r rune) bool { return unicode.IsPunct(r) || unicode.IsSymbol(r) }

func isLetterOrMark(r rune) bool { return unicode.IsLetter(r) || unicode.IsMark(r) }
func isASCIILetter(r rune) bool  { return r|0x20 >= 'a' && r|0x20 <= 'z' }
