package verify

import (
	"context"
	"slices"
	"strings"
	"unicode"
)

// squad normalises an answer as the evaluations of SQuAD, HotpotQA, MuSiQue and 2WikiMultihopQA do: lower case, without
// ASCII punctuation, without the articles a, an and the, single spaces.
func squad(s string) string {
	const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune(punctuation, r) {
			return -1
		}
		return r
	}, strings.ToLower(s))
	return strings.Join(strings.Fields(withoutArticles(s)), " ")
}

// withoutArticles replaces each article by a space. A word is a run of letters and digits.
func withoutArticles(s string) string {
	var b strings.Builder
	word := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }
	for s != "" {
		end := strings.IndexFunc(s, func(r rune) bool { return !word(r) })
		if end < 0 {
			end = len(s)
		}
		if w := s[:end]; w == "a" || w == "an" || w == "the" {
			b.WriteByte(' ')
		} else {
			b.WriteString(w)
		}
		s = s[end:]
		start := strings.IndexFunc(s, word)
		if start < 0 {
			start = len(s)
		}
		b.WriteString(s[:start])
		s = s[start:]
	}
	return b.String()
}

// exactMatch says whether both are the same text once normalised.
func exactMatch(reference string, c Case) (bool, error) {
	return squad(c.Attempt.Answer) == squad(reference), nil
}

// f1 is the score of the words that an answer and the closest accepted answer have in common.
type f1 struct{}

func (f1) Score(_ context.Context, c Case) (best float64, _ error) {
	for _, reference := range c.Accepted() {
		best = max(best, wordF1(squad(c.Attempt.Answer), squad(reference)))
	}
	return best, nil
}

// wordF1 is the harmonic mean of precision and recall over words, counted with their repetitions. Of two different texts
// one of which is yes, no or noanswer it is 0, as in the evaluations of HotpotQA and 2WikiMultihopQA; those of SQuAD and MuSiQue
// compare their words as others. Texts without words have none in common.
func wordF1(answer, reference string) float64 {
	whole := []string{"yes", "no", "noanswer"}
	if answer != reference && (slices.Contains(whole, answer) || slices.Contains(whole, reference)) {
		return 0
	}
	got, want := strings.Fields(answer), strings.Fields(reference)
	left := map[string]int{}
	for _, w := range want {
		left[w]++
	}
	common := 0
	for _, w := range got {
		if left[w] > 0 {
			left[w]--
			common++
		}
	}
	if common == 0 {
		return 0
	}
	// The harmonic mean of common/got and common/want in a single division, so that equal scores have equal bits.
	return float64(2*common) / float64(len(got)+len(want))
}
