package play

import (
	"math/big"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent/tool"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// conclude states the conclusion from the answers found to the parts. Some of them may be wrong or notFound. The right
// answers determine the kind of conclusion, the first of these that fits:
//   - the sum of the parts
//   - the answer of the last part
//   - yes or no: whether all answers are equal
//   - the name that the part with the highest or the lowest answer asks about
//   - the query's answer
func (e *partsDemonstrator) conclude(found []string) {
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

// same returns "yes" if all answers are equal, and "no" otherwise.
func same(answers []string) string {
	if slices.ContainsFunc(answers, func(a string) bool { return a != answers[0] }) {
		return "no"
	}
	return "yes"
}

// numbers returns those answers that are plain numbers.
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

// total adds the numbers found. It uses the calculator if there is one.
func (e *partsDemonstrator) total(found []string) string {
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

// pick returns the name of the highest or lowest number found, or the query's answer if the query asks for neither.
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

// subjects returns the subject of each part's question, if the questions differ only in their subjects. at is the index
// of the part that asks about the query's answer, or -1 if the parts are not of that kind.
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
