package tokenizer

import "unicode"

// isolate makes a splitter from a function that returns the length of the match at the start of a text, or 0 if there is
// none. A piece is a match, or the text before the next match.
func isolate(match func(s string) int) splitter {
	return func(s string) int {
		if n := match(s); n > 0 {
			return n
		}
		i := 0
		for i < len(s) {
			_, n := decodeRune(s[i:])
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
		end := 0
		for end < len(s) {
			r, n := decodeRune(s[end:])
			if !(r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff) {
				break
			}
			end += n
		}
		return end
	})
)

// matchDeepSeek matches patternDeepSeek at the start of s.
func matchDeepSeek(s string) int {
	r, n := decodeRune(s)
	if isMark(r) && r < 128 {
		if end := asciiLetters(s, 1); end > 1 {
			return end
		}
	}
	if end := letters(s, 0); end > 0 {
		return end
	}
	if c := runeClass(r); c != newline && !isMark(r) {
		if end := letters(s, n); end > n {
			return end
		}
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	end := start
	for end < len(s) {
		r, n := decodeRune(s[end:])
		if !isMark(r) {
			break
		}
		end += n
	}
	if end > start {
		return run(s, end, newline, len(s))
	}
	if c := runeClass(r); c != space && c != newline {
		return 0
	}
	return whitespaceLines(s)
}

// isMark reports whether r is in \p{P} or \p{S}.
func isMark(r rune) bool { return unicode.IsPunct(r) || unicode.IsSymbol(r) }

// letters returns the end of the match of [\p{L}\p{M}]* at s[i].
func letters(s string, i int) int {
	for i < len(s) {
		r, n := decodeRune(s[i:])
		if !unicode.IsLetter(r) && !unicode.IsMark(r) {
			break
		}
		i += n
	}
	return i
}

func asciiLetters(s string, i int) int {
	for i < len(s) && (s[i]|0x20) >= 'a' && (s[i]|0x20) <= 'z' {
		i++
	}
	return i
}
