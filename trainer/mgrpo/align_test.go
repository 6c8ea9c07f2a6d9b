package mgrpo

import (
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"pgregory.net/rapid"
)

func TestAlignmentGolden(t *testing.T) {
	var f struct {
		Cases []struct {
			RunSeed      string `json:"run_seed"`
			Query        string
			Rollout      int
			Agent        string
			D            int
			DK           int `json:"d_k"`
			Draws        []uint32
			Multiplicity []int
			Dropped      []int
			Balanced     *float64
		}
		Groups []struct {
			RunSeed         string `json:"run_seed"`
			Query, Agent    string
			D               int
			DK              []int `json:"d_k"`
			Multiplicity    [][]int
			Balanced        [][]float64
			RolloutsCounted int     `json:"rollouts_counted"`
			WeightSum       float64 `json:"weight_sum"`
		}
	}
	golden.Read(t, "mgrpo", "alignment.json", &f)
	for _, c := range f.Cases {
		seed := parseSeed(t, c.RunSeed)
		m, draws := Draw(AlignKey(seed, c.Query, c.Rollout, c.Agent), c.D, c.DK)
		if !slices.Equal(m, c.Multiplicity) || !slices.Equal(draws, c.Draws) {
			t.Errorf("%s d=%d d_k=%d: got %v by %v, want %v by %v", c.Query, c.D, c.DK, m, draws, c.Multiplicity, c.Draws)
		}
		for i := range m {
			if (m[i] == 0) != slices.Contains(c.Dropped, i) {
				t.Errorf("%s: invocation %d has multiplicity %d, dropped are %v", c.Query, i, m[i], c.Dropped)
			}
		}
		balanced := Align{Mode: AlignBalanced, D: c.D}.Weights(seed, c.Query, c.Rollout, c.Agent, c.DK)
		for _, w := range balanced {
			if w != *c.Balanced {
				t.Errorf("%s: balanced %v, want %v", c.Query, w, *c.Balanced)
			}
		}
	}
	for _, g := range f.Groups {
		rollouts := make([]RolloutRewards, len(g.DK))
		for k, dk := range g.DK {
			rollouts[k] = RolloutRewards{Rollout: k, Rewards: make([]float64, dk)}
		}
		for mode, want := range map[AlignMode][]float64{AlignDraw: flatten(g.Multiplicity), AlignBalanced: flatten(g.Balanced)} {
			got := Align{Mode: mode, D: g.D}.Group(parseSeed(t, g.RunSeed), g.Query, g.Agent, rollouts)
			if !slices.Equal(got.Weights(), want) {
				t.Errorf("%s %s: weights %v, want %v", g.Query, mode, got.Weights(), want)
			}
			if got.Rollouts != g.RolloutsCounted || math.Abs(got.WeightSum-g.WeightSum) > 1e-9 {
				t.Errorf("%s %s: %d rollouts of weight %v, want %d of %v", g.Query, mode, got.Rollouts, got.WeightSum, g.RolloutsCounted, g.WeightSum)
			}
		}
	}
	golden.Count("mgrpo/alignment", len(f.Cases)+len(f.Groups))
}

func flatten[T int | float64](rows [][]T) []float64 {
	out := []float64{}
	for _, row := range rows {
		for _, x := range row {
			out = append(out, float64(x))
		}
	}
	return out
}

func TestDrawSumsToD(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, dk := rapid.IntRange(1, 40).Draw(t, "d"), rapid.IntRange(0, 60).Draw(t, "d_k")
		key := AlignKey(rapid.Uint64().Draw(t, "seed"), rapid.String().Draw(t, "query"), 0, "s")
		m, draws := Draw(key, d, dk)
		sum, most := 0, slices.Max(append(m, 0))
		for _, x := range m {
			sum += x
		}
		switch {
		case len(m) != dk || (dk > 0 && sum != d) || (dk == 0 && sum != 0):
			t.Fatalf("d=%d d_k=%d: %v", d, dk, m)
		case dk > 0 && len(draws) != max(d-dk, dk-d):
			t.Fatalf("d=%d d_k=%d: %d draws", d, dk, len(draws))
		case dk >= d && most > 1, dk > 0 && dk <= d && slices.Min(m) < 1:
			t.Fatalf("d=%d d_k=%d: %v", d, dk, m)
		}
	})
}

// The draw's expectation is the balanced weight d/d_k: a mean over 4000 rollouts stays within 5 standard
// errors of it. The variance of one multiplicity is (d-d_k)(1/d_k)(1-1/d_k) when duplicating and
// d/d_k(1-d/d_k) when dropping.
func TestDrawMeanIsBalanced(t *testing.T) {
	const rollouts = 4000
	for _, c := range []struct{ d, dk int }{{8, 3}, {8, 1}, {8, 8}, {4, 6}, {1, 5}, {8, 11}} {
		sums := make([]float64, c.dk)
		for k := range rollouts {
			for i, w := range (Align{Mode: AlignDraw, D: c.d}).Weights(3, "q", k, "s", c.dk) {
				sums[i] += w
			}
		}
		want := float64(c.d) / float64(c.dk)
		variance := want * (1 - want)
		if c.dk <= c.d {
			p := 1 / float64(c.dk)
			variance = float64(c.d-c.dk) * p * (1 - p)
		}
		for i, sum := range sums {
			if got := sum / rollouts; math.Abs(got-want) > 5*math.Sqrt(variance/rollouts)+1e-12 {
				t.Errorf("d=%d d_k=%d: E[m_%d] = %.3f, want %.3f", c.d, c.dk, i, got, want)
			}
		}
	}
}

func TestAlignNone(t *testing.T) {
	none := Align{Mode: AlignNone, D: 3}
	if got := none.Weights(0, "q", 0, "s", 5); !slices.Equal(got, []float64{1, 1, 1, 1, 1}) {
		t.Errorf("mode none: %v", got)
	}
	main := MainGroup("q", "planner", []RolloutRewards{{0, []float64{1}}, {3, []float64{0}}})
	if main.WeightSum != 2 || main.Rollouts != 2 || main.Members[1].Rollout != 3 || !slices.Equal(main.Rewards(), []float64{1, 0}) {
		t.Errorf("main group: %+v", main)
	}
}
