package worker

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/run/score"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestScores: outcomes are summarised for all questions, for each kind and number of parts, and for each set of its own.
func TestScores(t *testing.T) {
	part := task.SubQuestion{Question: "?"}
	questions := []task.Query{
		{ID: "a", Kind: "hop", Parts: []task.SubQuestion{part, part}}, {ID: "b", Kind: "sum", Parts: slices.Repeat([]task.SubQuestion{part}, 10)},
		{ID: "c", Kind: "hop", Parts: []task.SubQuestion{part, part}}, {ID: "d", Set: "hard", Level: "3"},
	}
	var outcomes []store.Outcome
	tokens := map[string]int{"a": 10, "b": 0, "c": 20, "d": 30} // 0: not known
	for id, correct := range map[string][]float64{"a": {1, 0}, "b": {0, 0}, "c": {0.5, 1}, "d": {1, 1}} {
		for k, c := range correct {
			outcomes = append(outcomes, store.Outcome{Query: id, Rollout: k, Correct: c, Calls: map[string]int{"x": k, "y": 1}, Tokens: tokens[id] * (k + 1)})
		}
	}
	got := score.Summary(groupedByQuery(questions, outcomes, 2), 1)
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
		t.Fatalf("got %d rows %+v, want %d", len(got), got, len(want))
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }
	for i, w := range want {
		g := got[i]
		if g.Set != w.set || g.By != w.by || g.Of != w.of || g.Questions != w.n || g.Samples != 2 || !near(g.Accuracy, w.mean) || !near(g.Pass[2], w.pass2) ||
			!near(g.Best[1], w.best1) || !near(g.Best[2], w.best2) || !near(g.Calls, w.callsPerAnswer) || !near(g.Tokens, w.tokens) || g.Interval[0] > g.Accuracy || g.Interval[1] < g.Accuracy {
			t.Errorf("row %d: got %+v, want %+v", i, g, w)
		}
	}
	if own := bySet(questions, outcomes)[""]; len(own) != 6 || slices.ContainsFunc(own, func(o store.Outcome) bool { return o.Query == "d" }) {
		t.Errorf("outcomes for comparing versions: got %+v, want the 6 of questions outside named sets", own)
	}
}

// TestOutcomesOfPlan: an outcome of an unknown query, or of a rollout beyond the plan, is refused and not counted for another question.
func TestOutcomesOfPlan(t *testing.T) {
	queries := []task.Query{{ID: "q"}}
	for _, o := range []store.Outcome{{Query: "other"}, {Query: "q", Rollout: 2}} {
		if err := checkPlanned([]store.Outcome{o}, queries, 2); err == nil || !strings.Contains(err.Error(), o.ID()) {
			t.Errorf("outcome %s: got error %v", o.ID(), err)
		}
	}
	if err := checkPlanned([]store.Outcome{{Query: "q", Rollout: 1}}, queries, 2); err != nil {
		t.Error(err)
	}
}
