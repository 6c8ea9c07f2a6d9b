package pretokenize

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A splitter returns the length of the first piece of s, which is not empty. Applied repeatedly, it cuts a text into
// pieces that are tokenised separately.
type splitter func(s string) int

// Patterns of Split and ByteLevel that most files have, written as in tokenizer.json. Each has a hand-written splitter,
// which is many times as fast as a regular expression. The matches of each pattern cover the whole of any text.
const (
	PatternGPT2   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	PatternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	PatternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// OpenAI's o200k, which GPT-OSS uses, and Mistral's variant for Tekken.
	PatternO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	PatternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|` +
		`\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	// The last of three patterns of DeepSeek V3. It does not match digits: an earlier step splits them off.
	PatternDeepSeek = `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_` + "`" + `{|}~][A-Za-z]+|[^` + "\r\n" + `\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|` +
		` ?[\p{P}\p{S}]+[` + "\r\n" + `]*|\s*[` + "\r\n" + `]+|\s+(?!\S)|\s+`
	PatternDigits3 = `\p{N}{1,3}`
	PatternCJK     = "[一-龥\u3040-ゟ゠-ヿ]+"
)

// scanners maps patterns whose matches cover the whole of any text to their splitters.
var scanners = map[string]splitter{
	PatternGPT2:   splitGPT2,
	PatternQwen2:  func(s string) int { return splitTiktoken(s, 1) },
	PatternLlama3: func(s string) int { return splitTiktoken(s, 3) },
	PatternO200k:  func(s string) int { return splitByCase(s, 3, true) },
	PatternTekken: func(s string) int { return splitByCase(s, 1, false) },
}

// isolators maps further patterns with the behaviour Isolated to their splitters. A piece is a match, or the text before a
// match.
var isolators = map[string]splitter{
	PatternDeepSeek: splitDeepSeek,
	PatternDigits3:  splitDigits3,
	PatternCJK:      splitCJK,
}

type class uint8

const (
	other class = iota
	letter
	number
	space
	newline // \r or \n
)

var asciiClass = func() (table [utf8.RuneSelf]class) {
	for b := range table {
		table[b] = runeClass(rune(b))
	}
	return table
}()

func runeClass(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r): // agrees with Unicode's White_Space
		return space
	}
	return other
}

// classAt returns the class and the length of the character at s[i], i < len(s).
func classAt(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return asciiClass[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return runeClass(r), n
}

// run returns the end of the run of characters of class want that begins at s[i], after at most limit characters.
func run(s string, i int, want class, limit int) int {
	for ; i < len(s) && limit > 0; limit-- {
		c, n := classAt(s, i)
		if c != want {
			break
		}
		i += n
	}
	return i
}

// splitGPT2 implements PatternGPT2.
func splitGPT2(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	start := 0
	c, n := classAt(s, 0)
	if s[0] == ' ' && len(s) > 1 {
		start = 1
		c, n = classAt(s, 1)
	}
	if c == letter || c == number || c == other {
		return run(s, start+n, c, len(s))
	}
	return whitespace(s)
}

// splitTiktoken implements PatternQwen2 and PatternLlama3. digits is the largest number of digits in a piece.
func splitTiktoken(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	c, n := classAt(s, 0)
	switch c {
	case letter:
		return run(s, n, letter, len(s))
	case number:
		return run(s, n, number, digits-1)
	case other, space:
		if n < len(s) {
			if next, m := classAt(s, n); next == letter {
				return run(s, n+m, letter, len(s))
			}
		}
	}
	start := 0
	if s[0] == ' ' {
		start = 1
	}
	if end := run(s, start, other, len(s)); end > start {
		return run(s, end, newline, len(s))
	}
	return whitespaceLines(s)
}

// contraction returns the length of 's 't 're 've 'm 'll 'd at the start of s. With ignoreCase, ſ also counts as s.
func contraction(s string, ignoreCase bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if b := s[i]; !ignoreCase || b < 'A' || b > 'Z' {
			return b
		}
		return s[i] + 'a' - 'A'
	}
	switch a, b := lower(1), lower(2); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e' || a == 'v' && b == 'e' || a == 'l' && b == 'l':
		return 3
	case ignoreCase && a == 0xc5 && b == 0xbf: // U+017F
		return 3
	}
	return 0
}

// whitespace matches \s+(?!\S)|\s+ at the start of s, which must be white space. It matches all white space; but if other
// text follows and there is more than one character, it leaves the last one.
func whitespace(s string) int {
	end, last := 0, 0
	for end < len(s) {
		c, n := classAt(s, end)
		if c != space && c != newline {
			if last == 0 {
				return end
			}
			return last
		}
		last = end
		end += n
	}
	return end
}

// whitespaceLines matches \s*[\r\n]+|\s+(?!\S)|\s+. If the white space has a line end, it matches everything up to the last
// line end.
func whitespaceLines(s string) int {
	lines := 0
	for i := 0; i < len(s); {
		c, n := classAt(s, i)
		if c != space && c != newline {
			break
		}
		i += n
		if c == newline {
			lines = i
		}
	}
	if lines > 0 {
		return lines
	}
	return whitespace(s)
}

// splitDigits implements the Digits step with individual_digits: each digit is a piece.
func splitDigits(s string) int {
	c, n := classAt(s, 0)
	for c != number && n < len(s) {
		next, m := classAt(s, n)
		if next == number {
			break
		}
		n += m
	}
	return n
}

// splitDigitRuns implements the Digits step without individual_digits.
func splitDigitRuns(s string) int {
	if c, n := classAt(s, 0); c == number {
		return run(s, n, number, len(s))
	}
	return splitDigits(s)
}

// prefixLen returns the length of the longest prefix of s whose characters are all in a class.
func prefixLen(s string, in func(rune) bool) int {
	if n := strings.IndexFunc(s, func(r rune) bool { return !in(r) }); n >= 0 {
		return n
	}
	return len(s)
}

// splitWords implements the WhitespaceSplit step. The caller drops the white space pieces.
func splitWords(s string) int {
	first, _ := utf8.DecodeRuneInString(s)
	space := unicode.IsSpace(first)
	return prefixLen(s, func(r rune) bool { return unicode.IsSpace(r) == space })
}

// splitWordsAndMarks implements the Whitespace step, \w+|[^\w\s]+. The caller drops the white space pieces.
func splitWordsAndMarks(s string) int {
	first, _ := utf8.DecodeRuneInString(s)
	space, word := unicode.IsSpace(first), IsWord(first)
	return prefixLen(s, func(r rune) bool { return unicode.IsSpace(r) == space && IsWord(r) == word })
}

// IsWord reports whether r is in Unicode's \w (UTS 18, annex C).
func IsWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic) ||
		r == 0x200c || r == 0x200d
}
