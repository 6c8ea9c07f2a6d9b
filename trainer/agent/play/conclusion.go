package play

import (
	"math/big"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// conclude states what follows from the answers found to the parts, some of which may be wrong or notFound. What follows
// is read off the right answers: the answer of a query that is the sum of its parts, the answer of its last part, yes or
// no as they are equal or not, or the one that the highest or lowest part asks about. Another answer is stated as it is.
func (e *partsExpert) conclude(found []string) {
	switch q := e.query; {
	case len(q.Parts) > 1 && isSum(q):
		e.say(e.total(found))
	case q.Answer == q.Parts[len(q.Parts)-1].Answer:
		e.say(found[len(found)-1])
	case len(q.Parts) > 1 && q.Answer == same(rightAnswers(q)):
		e.say(same(found))
	default:
		e.say(pick(q, found))
	}
}

// same says whether all answers are equal, yes or no.
func same(answers []string) string {
	if slices.ContainsFunc(answers, func(a string) bool { return a != answers[0] }) {
		return "no"
	}
	return "yes"
}

// numbers reads answers that are numbers and nothing else; the others are left out.
func numbers(answers []string) (out []*big.Rat) {
	for _, a := range answers {
		if n, ok := number(a); ok {
			out = append(out, n)
		}
	}
	return out
}

func number(answer string) (*big.Rat, bool) {
	return new(big.Rat).SetString(strings.ReplaceAll(strings.TrimSpace(answer), ",", ""))
}

func rightAnswers(q task.Query) []string {
	answers := make([]string, len(q.Parts))
	for i, p := range q.Parts {
		answers[i] = p.Answer
	}
	return answers
}

func isSum(q task.Query) bool {
	want, ok := number(q.Answer)
	parts := numbers(rightAnswers(q))
	if !ok || len(parts) != len(q.Parts) {
		return false
	}
	sum := new(big.Rat)
	for _, n := range parts {
		sum.Add(sum, n)
	}
	return sum.Cmp(want) == 0
}

// total adds the numbers found, with the calculator if there is one.
func (e *partsExpert) total(found []string) string {
	var terms []string
	sum := new(big.Rat)
	for _, f := range found {
		if n, ok := number(f); ok {
			terms = append(terms, strings.ReplaceAll(f, ",", ""))
			sum.Add(sum, n)
		}
	}
	switch {
	case len(terms) == 0:
		return notFound
	case len(terms) == 1:
		return terms[0]
	case e.calculate == nil:
		return tool.FormatRational(sum)
	}
	return e.use(e.calculate, "expression", strings.Join(terms, " + "))
}

// pick is the name of the highest or lowest number found, or the query's answer if that is neither.
func pick(q task.Query, found []string) string {
	right := numbers(rightAnswers(q))
	names, at := subjects(q)
	if at < 0 || len(right) != len(found) {
		return q.Answer
	}
	highest := slices.MaxFunc(right, (*big.Rat).Cmp).Cmp(right[at]) == 0
	if !highest && slices.MinFunc(right, (*big.Rat).Cmp).Cmp(right[at]) != 0 {
		return q.Answer
	}
	best := -1
	var most *big.Rat
	for i, f := range found {
		if n, ok := number(f); ok && (best < 0 || n.Cmp(most) != 0 && highest == (n.Cmp(most) > 0)) {
			best, most = i, n
		}
	}
	if best < 0 {
		return notFound
	}
	return names[best]
}

// subjects are what each part asks about, where their questions differ in nothing else; at is the part that asks about
// the query's answer, -1 if the parts are not of that kind.
func subjects(q task.Query) (names []string, at int) {
	for at, p := range q.Parts {
		before, after, ok := strings.Cut(p.Question, q.Answer)
		if !ok {
			continue
		}
		names = names[:0]
		for _, other := range q.Parts {
			name, begins := strings.CutPrefix(other.Question, before)
			name, ends := strings.CutSuffix(name, after)
			if begins && ends && strings.Contains(q.Text, name) {
				names = append(names, name)
			}
		}
		if len(names) == len(q.Parts) {
			return names, at
		}
	}
	return nil, -1
}
