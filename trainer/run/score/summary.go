// Package score summarises the scores of answers: accuracy and its interval, pass@k, best@k, and the difference between
// two evaluations. Its results are functions of the arguments only.
package score

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// Question is a held-out question with the score of each of its answers.
type Question struct {
	Query   task.Query
	Correct []float64
	Calls   int   // calls of sub-agents, in all answers
	Tokens  []int // tokens of all agents, in each answer; 0: unknown
}

// Summary summarises an evaluation in which every rollout has a score: each set as a whole, then by each property in
// which its questions differ.
func Summary(questions []Question, seed uint64) []metrics.Score {
	var scores []metrics.Score
	for _, set := range distinct(questions, func(q task.Query) string { return q.Set }) {
		scores = append(scores, scoreOf(set.questions, metrics.Score{Set: set.name}, seed))
		for _, by := range []struct {
			name string
			of   func(q task.Query) string
		}{
			{"kind", func(q task.Query) string { return q.Kind }},
			{"level", func(q task.Query) string { return q.Level }},
			{"parts", func(q task.Query) string { return strconv.Itoa(len(q.Parts)) }},
		} {
			some := distinct(set.questions, by.of)
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
	questions []Question
}

// distinct splits questions by a name, in the order of its first occurrence.
func distinct(questions []Question, name func(task.Query) string) (subsets []subset) {
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
func scoreOf(questions []Question, s metrics.Score, seed uint64) metrics.Score {
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
	s.Interval = bootstrap(means, seed, s.Set+"\x00"+s.By+"\x00"+s.Of)
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

// PassAtK returns the unbiased estimate of the probability that at least one of k samples of a query is right, averaged
// over queries (Chen et al. 2021). Each query has n samples; right[c] is the number of queries with c right ones, and
// 1 <= k <= n. Without queries it returns NaN.
func PassAtK(right map[int]int64, n, k int) float64 {
	var sum float64
	var queries int64
	for c := range n + 1 { // in a fixed order, since sums of floats depend on it
		missed := 1.0 // C(n-c, k) / C(n, k)
		for i := n - c + 1; i <= n; i++ {
			missed *= max(1-float64(k)/float64(i), 0)
		}
		sum += float64(right[c]) * (1 - missed)
		queries += right[c]
	}
	return sum / float64(queries)
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

// Table formats scores as a table of at most 80 columns.
func Table(scores []metrics.Score) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "questions\tn\taccuracy\t95 %\tpass@k\tbest@k\tcalls\ttokens")
	for _, s := range scores {
		name := cmp.Or(s.Set, "task.eval")
		if s.By != "" {
			name = fmt.Sprintf("  %s %s", s.By, cmp.Or(metrics.Printable(s.Of), "-"))
		}
		fmt.Fprintf(t, "%.20s\t%d\t%.4f\t%.3f-%.3f\t%.4f\t%.4f\t%.2f\t%s\n", name, s.Questions, s.Accuracy, s.Interval[0], s.Interval[1],
			s.Pass[s.Samples], s.Best[s.Samples], s.Calls, Figure(s.Tokens, s.Tokens > 0, 0))
	}
	t.Flush()
	return b.String()
}

// Figure formats a number with some decimals; "-" if it is unknown.
func Figure(v float64, known bool, decimals int) string {
	if !known {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
