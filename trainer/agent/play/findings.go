package play

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// withFindings replaces the answers of earlier parts in a question by what was found; known is false if the question
// needs one that was not found. An answer that the query itself mentions was not found by a part.
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

// words are the places at which old stands in text as words of its own: 12 stands neither in 2012 nor in 12.5.
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

// oneWord says whether a character belongs to the word that it stands beside. A letter or a digit does. So does the point or the comma of a
// number, which has digits on both sides. edge is the word's character beside it, further the one on its other side.
func oneWord(further, char, edge rune) bool {
	if (char == '.' || char == ',') && unicode.IsDigit(further) && unicode.IsDigit(edge) {
		return true
	}
	return ofSpacedScript(char) && ofSpacedScript(edge)
}

// ofSpacedScript says whether a character is a letter or a digit of a script that puts spaces between words.
func ofSpacedScript(r rune) bool {
	return (unicode.IsLetter(r) || unicode.IsDigit(r)) &&
		!unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}
