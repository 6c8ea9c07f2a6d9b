package trainer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/store"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// bestOf is the mean, over all subsets of k scores, of the best in each.
func TestBestOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 8).Draw(t, "scores")
		k := rapid.IntRange(1, len(scores)).Draw(t, "k")
		var sum float64
		var subsets int
		for chosen := range 1 << len(scores) {
			best, n := 0.0, 0
			for i, s := range scores {
				if chosen>>i&1 == 1 {
					best, n = max(best, s), n+1
				}
			}
			if n == k {
				sum, subsets = sum+best, subsets+1
			}
		}
		if got := bestOf(scores, k); math.Abs(got-sum/float64(subsets)) > 1e-12 {
			t.Errorf("the best of %d of %v is %v, want %v", k, scores, got, sum/float64(subsets))
		}
	})
}

// Of many questions the interval is the normal approximation's, and it is a function of seed and name.
func TestBootstrap(t *testing.T) {
	values := make([]float64, 400)
	for i := range 120 {
		values[i] = 1
	}
	const p, error95 = 0.3, 1.96 * 0.0229 // sqrt(p (1 - p) / n)
	got := bootstrap(values, 7, "all")
	if math.Abs(got[0]-(p-error95)) > 0.006 || math.Abs(got[1]-(p+error95)) > 0.006 {
		t.Errorf("%v, want about %v and %v", got, p-error95, p+error95)
	}
	if got != bootstrap(values, 7, "all") {
		t.Error("the interval is no function of seed and name")
	}
	seeds, names := map[[2]float64]bool{}, map[[2]float64]bool{} // a few may be equal: ends are multiples of 1/400
	for i := range 10 {
		seeds[bootstrap(values, uint64(i), "all")] = true
		names[bootstrap(values, 7, fmt.Sprint(i))] = true
	}
	if len(seeds) < 3 || len(names) < 3 {
		t.Errorf("ten seeds have %d intervals, ten names %d", len(seeds), len(names))
	}
	if got := bootstrap([]float64{1, 1, 1}, 7, ""); got != [2]float64{1, 1} {
		t.Errorf("of equal values: %v", got)
	}
}

func TestScores(t *testing.T) {
	part := task.SubQuestion{Question: "?"}
	questions := []task.Query{
		{ID: "a", Kind: "hop", Parts: []task.SubQuestion{part, part}}, {ID: "b", Kind: "sum", Parts: slices.Repeat([]task.SubQuestion{part}, 10)},
		{ID: "c", Kind: "hop", Parts: []task.SubQuestion{part, part}}, {ID: "d", Set: "hard", Level: "3"},
	}
	var outcomes []store.Outcome
	tokens := map[string]int{"a": 10, "b": 0, "c": 20, "d": 30} // those of b are not known
	for id, correct := range map[string][]float64{"a": {1, 0}, "b": {0, 0}, "c": {0.5, 1}, "d": {1, 1}} {
		for k, c := range correct {
			outcomes = append(outcomes, store.Outcome{Query: id, Rollout: k, Correct: c, Calls: map[string]int{"x": k, "y": 1}, Tokens: tokens[id] * (k + 1)})
		}
	}
	got := scoresOf(answersOf(questions, outcomes, 2), 1)
	type row struct {
		set, by, of    string
		n              int
		mean, pass2    float64
		best1, best2   float64
		callsPerAnswer float64
		tokens         float64
	}
	want := []row{
		{"", "", "", 3, 2.5 / 6, 2.0 / 3, 2.5 / 6, 2.0 / 3, 1.5, 0},
		{"", "kind", "hop", 2, 0.625, 1, 0.625, 1, 1.5, 22.5}, {"", "kind", "sum", 1, 0, 0, 0, 0, 1.5, 0},
		{"", "parts", "2", 2, 0.625, 1, 0.625, 1, 1.5, 22.5}, {"", "parts", "10", 1, 0, 0, 0, 0, 1.5, 0},
		{"hard", "", "", 1, 1, 1, 1, 1, 1.5, 45},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }
	for i, w := range want {
		g := got[i]
		if g.Set != w.set || g.By != w.by || g.Of != w.of || g.Questions != w.n || g.Samples != 2 || !near(g.Accuracy, w.mean) || !near(g.Pass[2], w.pass2) ||
			!near(g.Best[1], w.best1) || !near(g.Best[2], w.best2) || !near(g.Calls, w.callsPerAnswer) || !near(g.Tokens, w.tokens) || g.Interval[0] > g.Accuracy || g.Interval[1] < g.Accuracy {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	if own := ofOwnSet(questions, outcomes); len(own) != 6 || slices.ContainsFunc(own, func(o store.Outcome) bool { return o.Query == "d" }) {
		t.Errorf("versions are compared by %+v", own)
	}
}

func TestEvaluationOfSets(t *testing.T) {
	scores := []metrics.Score{
		{Questions: 3, Samples: 4, Accuracy: 0.5, Interval: [2]float64{0.2, 0.8}, Pass: map[int]float64{4: 0.75}, Best: map[int]float64{4: 0.8}, Calls: 2.25, Tokens: 60},
		{By: "kind", Of: "a kind with a name that is far too long for a column", Questions: 2, Samples: 4, Pass: map[int]float64{}, Best: map[int]float64{}},
		{Set: "hard", Questions: 1, Samples: 4, Accuracy: 0.25, Pass: map[int]float64{}, Best: map[int]float64{}, Tokens: 20},
	}
	e := Evaluation{StepDir: "step-000030", Samples: 4, Records: []metrics.Record{
		{Agent: "planner", Values: map[string]float64{"accuracy": 0.5, "tokens": 600, "rollout_seconds": 8}, Scores: scores},
		{Agent: "researcher", Values: map[string]float64{"tokens": 200, "rollout_seconds": 7}},
	}}
	text := e.String()
	for _, want := range []string{"task.eval", "0.200-0.800", "  kind a kind with a", "hard", "0.2500", "a question took 200 tokens and 2.00 seconds"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	raw, err := e.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Scores  []metrics.Score  `json:"scores"`
		Tokens  float64          `json:"tokens_per_question"`
		Seconds float64          `json:"seconds_per_question"`
		Agents  []metrics.Record `json:"agents"`
	}
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Scores) != 3 || got.Scores[0].Pass[4] != 0.75 || got.Tokens != 200 || got.Seconds != 2 || len(got.Agents) != 2 || got.Agents[1].Agent != "researcher" {
		t.Errorf("%v in\n%s", err, raw)
	}
}

// The spread of calls is that within queries: 1, 3 has variance 2, and 5, 5, 5 none, however far apart their means are.
func TestSpreadWithin(t *testing.T) {
	if std, ok := SpreadWithin(map[string][]int{"a": {1, 3}, "b": {5, 5, 5}, "alone": {9}}); !ok || std != 1 {
		t.Errorf("%v (%v), want 1", std, ok)
	}
	if std, ok := SpreadWithin(map[string][]int{"alone": {9}}); ok {
		t.Errorf("%v of queries with one rollout each", std)
	}
}
