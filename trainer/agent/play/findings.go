package play

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// withFindings replaces the answers of earlier parts in a question by the answers found. known is false if the question
// needs an answer that was not found. An answer that already appears in the query stays, because no part had to find
// it.
func withFindings(question string, q task.Query, found []string) (asked string, known bool) {
	for i, f := range found {
		answer := q.Parts[i].Answer
		if len(words(q.Text, answer)) > 0 {
			continue
		}
		at := words(question, answer)
		if f == notFound && len(at) > 0 {
			return "", false
		}
		for _, start := range slices.Backward(at) {
			question = question[:start] + f + question[start+len(answer):]
		}
	}
	return question, true
}

// words returns the indices at which old is a whole word of text: 12 is a word of neither 2012 nor 12.5.
func words(text, old string) (at []int) {
	if old == "" {
		return nil
	}
	first, _ := utf8.DecodeRuneInString(old)
	last, _ := utf8.DecodeLastRuneInString(old)
	for from := 0; ; {
		i := strings.Index(text[from:], old)
		if i < 0 {
			return at
		}
		start, end := from+i, from+i+len(old)
		from = end
		before, n := utf8.DecodeLastRuneInString(text[:start])
		further, _ := utf8.DecodeLastRuneInString(text[:start-n])
		after, m := utf8.DecodeRuneInString(text[end:])
		next, _ := utf8.DecodeRuneInString(text[end+m:])
		if !oneWord(further, before, first) && !oneWord(next, after, last) {
			at = append(at, start)
		}
	}
}

// oneWord reports whether char belongs to the same word as its neighbour edge. A letter or a digit does, and so does
// the point or comma of a number, which has digits on both sides. further is the neighbour of char on the other side.
func oneWord(further, char, edge rune) bool {
	if (char == '.' || char == ',') && unicode.IsDigit(further) && unicode.IsDigit(edge) {
		return true
	}
	return ofSpacedScript(char) && ofSpacedScript(edge)
}

// ofSpacedScript reports whether a character is a letter or a digit of a script that puts spaces between words.
func ofSpacedScript(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r)) &&
		!unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}
