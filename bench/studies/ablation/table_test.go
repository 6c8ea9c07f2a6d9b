package main

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// The interval of the mean of five seeds contains the true mean in 95 % of studies, whether seeds or questions vary more. For Student's sleep data
// (Biometrika 6, 1908), ten paired differences with mean 1.58 hours, it equals the textbook's interval, 0.70 to 2.46.
func TestHalfWidth(t *testing.T) {
	sleep := []float64{1.2, 2.4, 1.3, 1.3, 0, 1, 1.8, 0.8, 4.6, 1.4}
	if got := halfWidth(sleep); math.Abs(mean(sleep)-1.58) > 1e-9 || math.Abs(got-0.8798) > 1e-4 {
		t.Errorf("%.4f +- %.4f, want 1.58 +- 0.8798", mean(sleep), got)
	}
	const studies, truth = 4000, 0.1
	for _, c := range []struct{ seeds, questions float64 }{{0.05, 0.3}, {0.02, 0.3}, {0, 0.3}} {
		rng, held := rand.New(rand.NewPCG(1, 2)), 0
		for range studies {
			means := make([]float64, 5)
			for i := range means {
				means[i] = truth + c.seeds*rng.NormFloat64() + c.questions/math.Sqrt(192)*rng.NormFloat64()
			}
			if math.Abs(mean(means)-truth) <= halfWidth(means) {
				held++
			}
		}
		if got := float64(held) / studies; math.Abs(got-0.95) > 0.014 { // four standard errors
			t.Errorf("seeds vary by %v: %.3f of the intervals contain the mean, want 0.95", c.seeds, got)
		}
	}
}

func TestAverage(t *testing.T) {
	curve := []Point{{0, 0, 0.2}, {5, 50, 0.4}, {10, 150, 0.8}}
	if got, want := average(curve), (0.3*50+0.6*100)/150; math.Abs(got-want) > 1e-12 {
		t.Errorf("%v, want %v", got, want)
	}
}

// The effects of a study in which staleness costs 0.3 with alignment and 0.2 without, and alignment alone costs nothing.
func TestFactorial(t *testing.T) {
	r := &Results{}
	for seed, level := range []float64{0.7, 0.8, 0.9} {
		for arm, final := range map[string]float64{"lag-0": level, "lag-0-none": level, "lag-4": level - 0.3, "lag-4-none": level - 0.2} {
			r.Runs = append(r.Runs, Run{Arm: arm, Seed: seed, Final: Outcome{Accuracy: final}, Curve: []Point{{0, 0, 0}, {1, 1, final}}})
		}
	}
	r.Runs = append(r.Runs, Run{Arm: "lag-0", Seed: 3, Final: Outcome{Accuracy: 0.1}, Curve: []Point{{0, 0, 0}, {1, 1, 0}}})
	got := factorial(r)
	for _, want := range []string{
		"| effect, 3 seeds |", "| four versions stale, mean over both alignments | -0.125 [-0.125, -0.125] | -0.250 [-0.250, -0.250] |",
		"| no alignment, mean over both ages | +0.025 [+0.025, +0.025] | +0.050 [+0.050, +0.050] |", "| interaction: no alignment when stale minus when not | +0.050 [+0.050, +0.050] | +0.100 [+0.100, +0.100] |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	if got := factorial(&Results{Runs: r.Runs[:4]}); got != "" {
		t.Errorf("one seed: %s", got)
	}
}

// A study in which accuracy rises to 0.8 in the first third, stays there, and falls to 0.6 in the last third of one arm.
func TestDeclineTable(t *testing.T) {
	r := &Results{}
	for seed := range 2 {
		for arm, end := range map[string]float64{"draw": 0.6, "no-main": 0.8} {
			x := Run{Arm: arm, Seed: seed}
			for i := range 13 {
				x.Curve = append(x.Curve, Point{Step: int64(i), Tokens: float64(i), Accuracy: min(0.2*float64(i), 0.8, 0.8+(end-0.8)*(float64(i)-8)/4)})
			}
			r.Runs = append(r.Runs, x)
		}
	}
	got := declineTable(r, arms)
	for _, want := range []string{
		"| co-train, duplicate/drop, d = 4 | 2 | 0.800 | 0.700 | -0.100 [-0.100, -0.100] | 0.800 | 0.600 | +0.200 [+0.200, +0.200] |",
		"| co-train, sub reward without main answer | 2 | 0.800 | 0.800 | +0.000 [+0.000, +0.000] | 0.800 | 0.800 | +0.000 [+0.000, +0.000] |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	r.Runs[0].Curve = r.Runs[0].Curve[8:]
	if got := declineTable(r, arms); got != "" {
		t.Errorf("a run with five evaluations: %s", got)
	}
}

// The table has means and sample deviations over seeds, and differences seed by seed.
func TestTable(t *testing.T) {
	expert := func(v float64) *float64 { return &v }
	run := func(arm string, seed int, steps int64, final float64) Run {
		return Run{Arm: arm, Seed: seed, Steps: steps, Tokens: 300e3,
			Final: Outcome{Accuracy: final, Hops: []float64{1, final, 0.25}, Greedy: 0.9, Calls: Calls{Mean: 2.5, Deviation: 1.25}, Expert: expert(0.8)},
			Curve: []Point{{0, 0, 0.2}, {10, 100e3, 0.5}, {20, 200e3, 0.6}, {steps, 300e3, final}}}
	}
	r := &Results{
		Starts: []Start{{"team", 0, Outcome{Accuracy: 0.2, Calls: Calls{Mean: 2, Deviation: 1}, Expert: expert(0.5)}}, {"team", 1, Outcome{Accuracy: 0.4, Calls: Calls{Mean: 2, Deviation: 1}, Expert: expert(0.6)}}},
		Runs:   []Run{run("draw", 0, 28, 0.7), run("none", 1, 30, 0.6), run("draw", 1, 30, 0.9), run("none", 0, 30, 0.6)},
	}
	got := strings.Split(strings.TrimSpace(table(r, arms)), "\n")
	want := []string{
		"| co-train, duplicate/drop, d = 4 | 2 | 29 | 300 | 0.30 | 0.533 | 0.800 +- 0.141 | 0.90 | 1.00 .80 .25 | 2.0, 1.0 -> 2.5, 1.2 | .55 -> .80 | - | - |",
		"| co-train, no alignment (each sub weight 1) | 2 | 30 | 300 | 0.30 | 0.500 | 0.600 +- 0.000 | 0.90 | 1.00 .60 .25 | 2.0, 1.0 -> 2.5, 1.2 | .55 -> .80 | -0.033 [-0.245, +0.178] to draw | -0.200 [-1.471, +1.071] to draw |",
	}
	if len(got) != 4 || got[2] != want[0] || got[3] != want[1] {
		t.Errorf("table:\n%s\nwant rows:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	columns := strings.Count(got[0], "|")
	for _, line := range got {
		if strings.Count(line, "|") != columns {
			t.Errorf("%q and the heading have different columns", line)
		}
	}
}
