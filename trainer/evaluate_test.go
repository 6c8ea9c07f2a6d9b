package trainer

import (
	"math"
	"math/bits"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics"
)

// PassAtK is the share of k-subsets of a query's samples that hold a right one.
func TestPassAtK(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for k := 1; k <= n; k++ {
			right := map[int]int64{}
			var want, queries float64
			for c := 0; c <= n; c++ {
				right[c] = int64(1 + c%3)
				var hit, subsets float64
				for set := range 1 << n { // the first c samples are the right ones
					if bits.OnesCount(uint(set)) == k {
						subsets++
						if set&(1<<c-1) != 0 {
							hit++
						}
					}
				}
				want += float64(right[c]) * hit / subsets
				queries += float64(right[c])
			}
			if got := PassAtK(right, n, k); math.Abs(got-want/queries) > 1e-12 {
				t.Errorf("n=%d k=%d: %g, want %g", n, k, got, want/queries)
			}
		}
	}
}

// An accuracy of rollouts that were not all scored is no accuracy.
func TestEvaluationWithoutScores(t *testing.T) {
	const why = "accuracy unknown: 12 of 64 rollouts have no score: the judge is out"
	e := Evaluation{Samples: 4, Records: []metrics.Record{{Agent: "planner", Unknown: why, Values: map[string]float64{"trajectories": 64, "rollouts_failed": 12}}}}
	if err := e.Unknown(); err == nil || err.Error() != why {
		t.Errorf("%v, want %s", err, why)
	}
	text := e.String()
	if !strings.Contains(text, why) || strings.Contains(text, "pass@") || strings.Contains(text, "accuracy  ") {
		t.Error(text)
	}
}

func TestEvaluationTable(t *testing.T) {
	e := Evaluation{StepDir: "runs/x/checkpoints/step-000030", Dir: "runs/x/eval/step-000030-4x6", Samples: 6, Records: []metrics.Record{
		{Agent: "planner", Values: map[string]float64{"accuracy": 0.75, "accuracy_std": 0.1, "trajectories": 24, "format_valid": 1},
			Counts: map[string]map[string]int64{"right_samples": {"6": 3, "0": 1}}},
		{Agent: "a-researcher-with-quite-a-long-name", Values: map[string]float64{"expert_mean": 0.5, "trajectories": 40}},
	}}
	if err := e.Unknown(); err != nil {
		t.Error(err)
	}
	text := e.String()
	for _, want := range []string{"4 queries x 6 samples", "accuracy      0.7500  (standard deviation over the samples 0.1000)",
		"pass@1        0.7500\npass@2        0.7500\npass@4        0.7500\npass@6        0.7500\n", "0.500", "step-000030-4x6/trajectories"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("wider than 80: %q", line)
		}
	}
}

// TestEvaluationDirs: evaluations with other settings do not overwrite what an earlier one left.
func TestEvaluationDirs(t *testing.T) {
	dir := t.TempDir()
	of := func(set ...string) string {
		return evaluationDir(load(t, dir, set...), "eval", "checkpoints/step-000003")
	}
	first := of()
	if again := of(); again != first || !strings.HasPrefix(filepath.Base(first), "step-000003-") {
		t.Errorf("%s, and again %s", first, again)
	}
	for _, set := range []string{"eval.temperature=0", "eval.samples=7"} {
		if of(set) == first {
			t.Errorf("with %s it is %s, too", set, first)
		}
	}
}
