package verify

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/mgrpo/mgrpo/trainer/task"
)

// Parts returns a verifier that compares a sub-agent's answer, using v, with the part of the question that its sub-task
// asks for (see Asked). A sub-task that asks for no part scores 0. A query without parts has no score.
func Parts(v Verifier, overlap float64) Verifier { return partsVerifier{v, overlap} }

type partsVerifier struct {
	verifier Verifier
	overlap  float64
}

func (v partsVerifier) Score(ctx context.Context, c Case) (float64, error) {
	parts := c.Query.Parts
	if len(parts) == 0 {
		return 0, fmt.Errorf("verifier: parts: the question has no parts")
	}
	i, ok := Asked(parts, c.Attempt.Subtask, v.overlap)
	if !ok {
		return 0, nil
	}
	c.Query.Answer, c.Query.Accepted, c.Choices = parts[i].Answer, parts[i].Accepted, nil
	return v.verifier.Score(ctx, c)
}

// Close closes the verifier of the parts.
func (v partsVerifier) Close() error { return Close(v.verifier) }

// Asked returns the index of the part that a sub-task asks for. It compares texts as sets of words, normalised like the
// verifier normalized, without filler words. A sub-task asks for a part if it has
//   - the fraction overlap, from 0 to 1, of the part's words,
//   - all words of the part that some other part lacks, and
//   - no word of another part that this part lacks.
//
// If several parts have the same words, it asks for the first with the same text, otherwise for the first with the same
// normalised text, and otherwise for the first. ok is false if the sub-task asks for no part or for several at once.
func Asked(parts []task.SubQuestion, subtask string, overlap float64) (i int, ok bool) {
	asked := wordSet(subtask)
	words := make([]map[string]bool, len(parts))
	for i, p := range parts {
		words[i] = wordSet(p.Question)
	}
	var candidates []int // several have the same words
	for i := range parts {
		if asksFor(asked, words, i, overlap) {
			candidates = append(candidates, i)
		}
	}
	for _, plain := range []func(string) string{strings.TrimSpace, normalize} {
		for _, i := range candidates {
			if plain(parts[i].Question) == plain(subtask) {
				return i, true
			}
		}
	}
	if len(candidates) == 0 {
		return 0, false
	}
	return candidates[0], true
}

// asksFor reports whether a sub-task with the words asked asks for part i of the parts with the given words.
func asksFor(asked map[string]bool, words []map[string]bool, i int, overlap float64) bool {
	part, shared := words[i], 0
	for w := range part {
		if asked[w] {
			shared++
		}
	}
	if shared == 0 || float64(shared) < overlap*float64(len(part)) {
		return false
	}
	for _, other := range words {
		for w := range part {
			if !other[w] && !asked[w] {
				return false
			}
		}
		for w := range other {
			if !part[w] && asked[w] {
				return false
			}
		}
	}
	return true
}

// filler holds words that do not change what a question asks for.
var filler = map[string]bool{"what": true, "which": true, "who": true, "whose": true, "is": true, "are": true, "was": true, "were": true, "of": true,
	"in": true}

// wordSet returns the words of a text, except filler words and words without letters or digits.
func wordSet(text string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(normalize(text)) {
		if !filler[w] && strings.ContainsFunc(w, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			set[w] = true
		}
	}
	return set
}
