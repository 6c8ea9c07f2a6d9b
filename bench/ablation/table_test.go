package main

import (
	"math"
	"strings"
	"testing"
)

func TestAt(t *testing.T) {
	curve := []Point{{0, 0, 0.2}, {5, 50, 0.4}, {10, 150, 0.8}}
	for _, c := range []struct {
		tokens, want float64
		known        bool
	}{{0, 0.2, true}, {25, 0.3, true}, {50, 0.4, true}, {100, 0.6, true}, {150, 0.8, true}, {151, 0, false}} {
		if got, known := at(curve, c.tokens); math.Abs(got-c.want) > 1e-12 || known != c.known {
			t.Errorf("at %v tokens: %v, %v; want %v, %v", c.tokens, got, known, c.want, c.known)
		}
	}
}

// Means and sample deviations over seeds, differences seed by seed.
func TestTable(t *testing.T) {
	expert := func(v float64) *float64 { return &v }
	run := func(arm string, seed int, steps int64, final float64) Run {
		return Run{Arm: arm, Seed: seed, Steps: steps, Tokens: 300e3,
			Final: Outcome{Accuracy: final, Hops: []float64{1, final, 0.25}, Greedy: 0.9, Calls: 2.5, Expert: expert(0.8)},
			Curve: []Point{{0, 0, 0.2}, {10, 100e3, 0.5}, {20, 200e3, 0.6}, {steps, 300e3, final}}}
	}
	r := &Results{
		Starts: []Start{{"team", 0, Outcome{Accuracy: 0.2, Calls: 2, Expert: expert(0.5)}}, {"team", 1, Outcome{Accuracy: 0.4, Calls: 2, Expert: expert(0.6)}}},
		Runs:   []Run{run("draw", 0, 28, 0.7), run("none", 1, 30, 0.6), run("draw", 1, 30, 0.9), run("none", 0, 30, 0.6)},
	}
	got := strings.Split(strings.TrimSpace(table(r, arms)), "\n")
	want := []string{
		"| co-train, duplicate/drop | 2 | 29 | 0.30 | 0.800 +- 0.141 | 0.90 | 1.00 .80 .25 | 2.0 -> 2.5 | .55 -> .80 | .50 / .60 | - |",
		"| co-train, no alignment (each sub weight 1) | 2 | 30 | 0.30 | 0.600 +- 0.000 | 0.90 | 1.00 .60 .25 | 2.0 -> 2.5 | .55 -> .80 | .50 / .60 | -0.200 +- 0.141 |",
	}
	if len(got) != 4 || got[2] != want[0] || got[3] != want[1] {
		t.Errorf("table:\n%s\nwant rows:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	columns := strings.Count(got[0], "|")
	for _, line := range got {
		if strings.Count(line, "|") != columns {
			t.Errorf("%q has other columns than the heading", line)
		}
	}
}
