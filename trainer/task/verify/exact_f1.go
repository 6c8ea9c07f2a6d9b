package verify

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// normaliseAnswer normalises an answer like the evaluations of SQuAD, HotpotQA, MuSiQue and 2WikiMultihopQA: lower case, without
// ASCII punctuation, without the articles a, an and the, single spaces.
func normaliseAnswer(s string) string {
	const punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune(punctuation, r) {
			return -1
		}
		return r
	}, cases.Lower(language.Und).String(s))
	s = wordRun.ReplaceAllStringFunc(s, func(w string) string {
		if w == "a" || w == "an" || w == "the" {
			return " "
		}
		return w
	})
	return strings.Join(strings.Fields(s), " ")
}

var wordRun = regexp.MustCompile(`[\pL\pN]+`)

// exactMatch reports whether both texts are equal after normalisation.
func exactMatch(reference string, c Case) (bool, error) {
	return normaliseAnswer(c.Attempt.Answer) == normaliseAnswer(reference), nil
}

// f1 scores the words that an answer and the closest accepted answer have in common.
type f1 struct{}

func (f1) Score(_ context.Context, c Case) (best float64, _ error) {
	for _, reference := range c.Accepted() {
		best = max(best, wordF1(normaliseAnswer(c.Attempt.Answer), normaliseAnswer(reference)))
	}
	return best, nil
}

// wordF1 returns the harmonic mean of precision and recall over words, counted with repetitions. If the texts differ
// and one of them is yes, no or noanswer, it returns 0, as in the evaluations of HotpotQA and 2WikiMultihopQA. The
// evaluations of SQuAD and MuSiQue treat these words like any other. Texts without words have no common words.
func wordF1(answer, reference string) float64 {
	whole := []string{"yes", "no", "noanswer"}
	if answer != reference && (slices.Contains(whole, answer) || slices.Contains(whole, reference)) {
		return 0
	}
	got, want := strings.Fields(answer), strings.Fields(reference)
	unmatched := map[string]int{}
	for _, w := range want {
		unmatched[w]++
	}
	common := 0
	for _, w := range got {
		if unmatched[w] > 0 {
			unmatched[w]--
			common++
		}
	}
	if common == 0 {
		return 0
	}
	// The harmonic mean of common/got and common/want in a single division, so that equal scores have equal bits.
	return float64(2*common) / float64(len(got)+len(want))
}
