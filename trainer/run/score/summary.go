package score

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// AnsweredQuery is a held-out query with the score of each of its answers.
type AnsweredQuery struct {
	Query   task.Query
	Correct []float64
	Calls   int   // calls of sub-agents, in all answers
	Tokens  []int // tokens of all agents, in each answer; 0: unknown
}

// Summary summarises an evaluation in which every rollout has a score: each set as a whole, then by each property in
// which its questions differ.
func Summary(questions []AnsweredQuery, seed uint64) []metrics.Score {
	var scores []metrics.Score
	for _, set := range groupBy(questions, func(q task.Query) string { return q.Set }) {
		scores = append(scores, scoreOf(set.questions, metrics.Score{Set: set.name}, seed))
		for _, by := range []struct {
			name string
			of   func(q task.Query) string
		}{
			{"kind", func(q task.Query) string { return q.Kind }},
			{"level", func(q task.Query) string { return q.Level }},
			{"parts", func(q task.Query) string { return strconv.Itoa(len(q.Parts)) }},
		} {
			some := groupBy(set.questions, by.of)
			if len(some) < 2 {
				continue
			}
			slices.SortStableFunc(some, func(a, b subset) int {
				if by.name == "parts" && len(a.name) != len(b.name) {
					return cmp.Compare(len(a.name), len(b.name))
				}
				return cmp.Compare(a.name, b.name)
			})
			for _, s := range some {
				scores = append(scores, scoreOf(s.questions, metrics.Score{Set: set.name, By: by.name, Of: s.name}, seed))
			}
		}
	}
	return scores
}

// subset is a set of questions with a common property.
type subset struct {
	name      string
	questions []AnsweredQuery
}

// groupBy groups questions by a name, in the order in which the names first occur.
func groupBy(questions []AnsweredQuery, name func(task.Query) string) (subsets []subset) {
	at := map[string]int{}
	for _, q := range questions {
		n := name(q.Query)
		i, ok := at[n]
		if !ok {
			i = len(subsets)
			at[n] = i
			subsets = append(subsets, subset{name: n})
		}
		subsets[i].questions = append(subsets[i].questions, q)
	}
	return subsets
}

// scoreOf fills in a score's numbers. All questions have the same number of answers.
func scoreOf(questions []AnsweredQuery, s metrics.Score, seed uint64) metrics.Score {
	s.Questions, s.Samples = len(questions), len(questions[0].Correct)
	s.Pass, s.Best = map[int]float64{}, map[int]float64{}
	means := make([]float64, len(questions))
	right := map[int]int64{}
	var accuracy, calls Mean
	var tokens []int
	for i, q := range questions {
		var own Mean
		n := 0
		for _, c := range q.Correct {
			own.Add(c)
			if c >= 1 {
				n++
			}
		}
		right[n]++
		means[i] = own.Value()
		accuracy.Add(own.Value())
		calls.Add(float64(q.Calls) / float64(s.Samples))
		tokens = append(tokens, q.Tokens...)
	}
	s.Accuracy, s.Calls = accuracy.Value(), calls.Value()
	s.Tokens = float64(TotalTokens(tokens)) / float64(s.Questions*s.Samples)
	s.Interval = Interval(means, seed, s.Set+"\x00"+s.By+"\x00"+s.Of)
	for _, k := range SampleCounts(s.Samples) {
		var best Mean
		for _, q := range questions {
			best.Add(bestOf(q.Correct, k))
		}
		s.Pass[k], s.Best[k] = PassAtK(right, s.Samples, k), best.Value()
	}
	return s
}

// SampleCounts returns the k of pass@k and best@k that are reported for n samples: the powers of two below n, and n.
func SampleCounts(n int) (counts []int) {
	for k := 1; k < n; k *= 2 {
		counts = append(counts, k)
	}
	return append(counts, n)
}

// bestOf returns the expected best of k of these scores, drawn without replacement.
func bestOf(scores []float64, k int) float64 {
	sorted, n := slices.Sorted(slices.Values(scores)), len(scores)
	// The best is the i-th lowest score with probability C(i, k-1) / C(n, k), i counted from 0.
	share, expected := float64(k)/float64(n), 0.0
	for i := n - 1; i >= k-1; i-- {
		expected += share * sorted[i]
		share *= float64(i-k+1) / float64(max(i, 1))
	}
	return expected
}

// TotalTokens returns the sum of numbers of tokens, where 0 means unknown. The sum is 0 if any of them is unknown.
func TotalTokens(tokens []int) (total int) {
	for _, n := range tokens {
		if n == 0 {
			return 0
		}
		total += n
	}
	return total
}
