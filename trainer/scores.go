package trainer

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/mgrpo/mgrpo/trainer/assemble"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// answered is a held-out question with the score of each of its answers.
type answered struct {
	query   task.Query
	correct []float64
	calls   int   // of sub-agents, in all answers
	tokens  []int // of all agents, in each answer
}

// scoresOf summarises an evaluation in which every rollout has a score: each set as a whole, then by each property in
// which its questions differ.
func scoresOf(questions []answered, seed uint64) []metrics.Score {
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
				return cmp.Or(cmp.Compare(len(a.name), len(b.name))*b2i(by.name == "parts"), cmp.Compare(a.name, b.name))
			})
			for _, s := range some {
				scores = append(scores, scoreOf(s.questions, metrics.Score{Set: set.name, By: by.name, Of: s.name}, seed))
			}
		}
	}
	return scores
}

func b2i(b bool) int { return int(b2f(b)) }

// subset is a set of questions with a common property.
type subset struct {
	name      string
	questions []answered
}

// distinct splits questions by a name, in the order of its first occurrence.
func distinct(questions []answered, name func(task.Query) string) (subsets []subset) {
	at := map[string]int{}
	for _, q := range questions {
		n := name(q.query)
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
func scoreOf(questions []answered, s metrics.Score, seed uint64) metrics.Score {
	s.Questions, s.Samples = len(questions), len(questions[0].correct)
	s.Pass, s.Best = map[int]float64{}, map[int]float64{}
	means := make([]float64, len(questions))
	right := map[int]int64{}
	var accuracy, calls mean
	var tokens []int
	for i, q := range questions {
		var own mean
		n := 0
		for _, c := range q.correct {
			own.add(c)
			n += b2i(c >= 1)
		}
		right[n]++
		means[i] = own.value()
		accuracy.add(own.value())
		calls.add(float64(q.calls) / float64(s.Samples))
		tokens = append(tokens, q.tokens...)
	}
	s.Accuracy, s.Calls = accuracy.value(), calls.value()
	s.Tokens = float64(totalTokens(tokens)) / float64(s.Questions*s.Samples)
	s.Interval = bootstrap(means, seed, s.Set+"\x00"+s.By+"\x00"+s.Of)
	for k := 1; k <= s.Samples; k = nextK(k, s.Samples) {
		var best mean
		for _, q := range questions {
			best.add(bestOf(q.correct, k))
		}
		s.Pass[k], s.Best[k] = PassAtK(right, s.Samples, k), best.value()
	}
	return s
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

// bootstrap returns the interval that holds the mean in 95 % of resamples with replacement: a function of the values,
// the seed and the name only.
func bootstrap(values []float64, seed uint64, name string) [2]float64 {
	const resamples = 2000
	rng := rand.New(rand.NewPCG(seed, assemble.Hash("bootstrap "+name)))
	means := make([]float64, resamples)
	for i := range means {
		var m mean
		for range values {
			m.add(values[rng.IntN(len(values))])
		}
		means[i] = m.value()
	}
	slices.Sort(means)
	return [2]float64{means[resamples*25/1000], means[resamples*975/1000-1]}
}

// questionsOf returns the queries of a plan.
func (w *worker) questionsOf(plan store.Plan) ([]task.Query, error) {
	questions := make([]task.Query, len(plan.Queries))
	for i, id := range plan.Queries {
		var err error
		if questions[i], err = w.Player.Task.Lookup(id); err != nil {
			return nil, err
		}
	}
	return questions, nil
}

// ofOwnSet returns the outcomes of the questions of task.eval, by which versions are compared.
func ofOwnSet(questions []task.Query, outcomes []store.Outcome) (own []store.Outcome) {
	set := map[string]string{}
	for _, q := range questions {
		set[q.ID] = q.Set
	}
	for _, o := range outcomes {
		if set[o.Query] == "" {
			own = append(own, o)
		}
	}
	return own
}

// answersOf groups outcomes by question, in the order of the questions.
func answersOf(questions []task.Query, outcomes []store.Outcome, samples int) []answered {
	all, at := make([]answered, len(questions)), map[string]int{}
	for i, q := range questions {
		all[i], at[q.ID] = answered{query: q, correct: make([]float64, samples)}, i
	}
	for _, o := range outcomes {
		q := &all[at[o.Query]]
		q.correct[o.Rollout] = o.Correct
		q.tokens = append(q.tokens, o.Tokens)
		for _, n := range o.Calls {
			q.calls += n
		}
	}
	return all
}

// scoreTable formats scores as a table of at most 80 columns.
func scoreTable(scores []metrics.Score) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "questions\tn\taccuracy\t95 %\tpass@k\tbest@k\tcalls\ttokens")
	for _, s := range scores {
		name := cmp.Or(s.Set, "task.eval")
		if s.By != "" {
			name = fmt.Sprintf("  %s %s", s.By, cmp.Or(metrics.Printable(s.Of), "-"))
		}
		fmt.Fprintf(t, "%.20s\t%d\t%.4f\t%.3f-%.3f\t%.4f\t%.4f\t%.2f\t%s\n", name, s.Questions, s.Accuracy, s.Interval[0], s.Interval[1],
			s.Pass[s.Samples], s.Best[s.Samples], s.Calls, figure(s.Tokens, s.Tokens > 0, 0))
	}
	t.Flush()
	return b.String()
}
