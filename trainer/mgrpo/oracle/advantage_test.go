package oracle

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"pgregory.net/rapid"
)

func compareGroup(t *testing.T, what string, got mgrpo.GroupAdvantage, want algorithm.Group) {
	t.Helper()
	algorithm.CompareGroup(t, what, got.GroupStats, got.Advantage, want, 1e-9, 1e-12)
}

func TestAdvantageGolden(t *testing.T) {
	f := algorithm.Advantages(t)
	if f.Convention != mgrpo.DefaultConvention() {
		t.Errorf("the default convention is %+v, want %+v", mgrpo.DefaultConvention(), f.Convention)
	}
	compareCases(t, f.Cases)
	for _, c := range f.Errors {
		_, err := Normalise(mgrpo.DefaultConvention(), []mgrpo.RewardGroup{c.Input()})
		golden.SameError(t, c.Name, err, c.Error)
	}
	golden.Count("mgrpo/advantages", len(f.Cases)+len(f.Errors))
}

// Groups of a total weight of about 1, as balanced alignment with d = 1 makes them.
func TestAdvantageSmallWeightGolden(t *testing.T) {
	cases := algorithm.SmallWeights(t)
	compareCases(t, cases)
	golden.Count("mgrpo/advantages_small_weight", len(cases))
}

func TestAdvantageLargeGolden(t *testing.T) {
	groups := algorithm.LargeGroups(t)
	compareCases(t, []algorithm.AdvantageCase{{Name: "large", Convention: "mgrpo", Groups: groups}})
	golden.Count("mgrpo/advantages_large", len(groups))
}

func compareCases(t *testing.T, cases []algorithm.AdvantageCase) {
	t.Helper()
	for _, c := range cases {
		convention, err := mgrpo.ConventionByName(c.Convention)
		if err != nil {
			t.Fatal(err)
		}
		inputs := make([]mgrpo.RewardGroup, len(c.Groups))
		for i, g := range c.Groups {
			inputs[i] = g.Input()
		}
		got, err := Normalise(convention, inputs)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for i, g := range c.Groups {
			compareGroup(t, fmt.Sprintf("%s, group %d", c.Name, i), got[i], g)
		}
		if totals := mgrpo.CountGroups(got); c.Totals != nil && (totals.Degenerate != c.Totals.Degenerate || totals.Empty != c.Totals.Empty) {
			t.Errorf("%s: totals %+v, want %+v", c.Name, totals, *c.Totals)
		}
	}
}

func TestPeersGolden(t *testing.T) {
	conventions, all := algorithm.Peers(t)
	cases := 0
	for i, c := range all {
		for name, want := range c.Advantage {
			got, err := Normalise(conventions[name], []mgrpo.RewardGroup{{Rewards: mgrpo.Floats(c.Rewards), Weights: mgrpo.Floats(c.Weights)}})
			if err != nil {
				t.Errorf("%s, case %d: %v", name, i, err)
				continue
			}
			for k := range want {
				golden.Near(t, fmt.Sprintf("%s, case %d, advantage %d", name, i, k), got[0].Advantage[k], float64(want[k]), 1e-9)
			}
			cases++
		}
	}
	golden.Count("mgrpo/peers", cases)
}

// TestRoundingHasNoSpread: rewards that differ by the order of sums alone are equal, in a group and among the others.
func TestRoundingHasNoSpread(t *testing.T) {
	sum := 0.0
	for range 10 {
		sum += 0.1
	}
	for _, name := range []string{"mgrpo", "rllm", "trl", "verl", "openrlhf", "dr_grpo", "rloo", "nemo_rl"} {
		c, err := mgrpo.ConventionByName(name)
		if err != nil {
			t.Fatal(err)
		}
		c.Eps = 0
		for _, rewards := range [][]float64{{0.3, sum - 0.7}, {1, sum, sum}, {-1e12, -sum * 1e12}, {1e-12, sum * 1e-12, 1e-12}} {
			got, err := Normalise(c, []mgrpo.RewardGroup{{Rewards: rewards}})
			if err != nil {
				t.Fatal(err)
			}
			if g := got[0]; !g.Degenerate || slices.ContainsFunc(g.Advantage, func(a float64) bool { return a != 0 }) || g.Std != 0 {
				t.Errorf("%s: %v: %+v", name, rewards, g)
			}
		}
	}
	c, _ := mgrpo.ConventionByName("nemo_rl")
	got, err := Normalise(c, []mgrpo.RewardGroup{{Rewards: []float64{0.6, 0.3, 0.1 + 0.2, 0.3}}, {Rewards: []float64{0.6, 0.3, 0.3, 0.3}}})
	if err != nil {
		t.Fatal(err)
	}
	golden.NearAll(t, "advantages", got[0].Advantage, got[1].Advantage, 1e-12)
	golden.Near(t, "the best", got[0].Advantage[0], 0.3, 1e-12)
}

// TestOneUnitOfWeight: nine weights of 1/9 are one unit, although their float64 sum is more than 1.
func TestOneUnitOfWeight(t *testing.T) {
	for _, name := range []string{"rloo", "trl"} {
		c, err := mgrpo.ConventionByName(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{3, 8, 9, 11, 18, 21, 25, 100} {
			rewards, weights := make([]float64, n), make([]float64, n)
			rewards[0] = 1
			for i := range weights {
				weights[i] = 1 / float64(n)
			}
			got, err := Normalise(c, []mgrpo.RewardGroup{{Rewards: rewards, Weights: weights}})
			if err != nil {
				t.Fatal(err)
			}
			if !got[0].Degenerate || slices.ContainsFunc(got[0].Advantage, func(a float64) bool { return a != 0 }) {
				t.Errorf("%s: %d members: %+v", name, n, got[0])
			}
		}
	}
}

func TestAdvantageRefusals(t *testing.T) {
	loo, _ := mgrpo.ConventionByName("nemo_rl")
	_, err := Normalise(loo, []mgrpo.RewardGroup{{Rewards: []float64{1}}, {Rewards: []float64{0, 1}, Weights: []float64{1, 2}}})
	if r, ok := err.(*mgrpo.Refusal); !ok || r.Code != mgrpo.BadWeight || *r.Group != 1 || *r.Index != 1 {
		t.Errorf("leave_one_out_std with a multiplicity: %v", err)
	}
	if _, err := Normalise(mgrpo.DefaultConvention(), []mgrpo.RewardGroup{{Rewards: []float64{math.MaxFloat64, -math.MaxFloat64}}}); err == nil {
		t.Error("an overflowing spread is accepted")
	}
}

// Advantages do not depend on the order of the members, a multiplicity equals physical copies, and under
// the default convention they are centred and of unit variance.
func TestAdvantageProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(t, "n")
		// Multiples of 1/64: no group comes near the degenerate threshold by rounding.
		rewards := rapid.SliceOfN(rapid.Map(rapid.IntRange(-640, 640), func(i int) float64 { return float64(i) / 64 }), n, n).Draw(t, "rewards")
		copies := rapid.SliceOfN(rapid.IntRange(0, 4), n, n).Draw(t, "copies")
		convention, err := mgrpo.ConventionByName(rapid.SampledFrom([]string{"mgrpo", "trl", "rllm", "dr_grpo", "rloo"}).Draw(t, "convention"))
		if err != nil {
			t.Fatal(err)
		}
		weights, physical := make([]float64, n), []float64{}
		for i, m := range copies {
			weights[i] = float64(m)
			for range m {
				physical = append(physical, rewards[i])
			}
		}
		perm := rapid.Permutation(indices(n)).Draw(t, "perm")
		shuffled := mgrpo.RewardGroup{Rewards: make([]float64, n), Weights: make([]float64, n)}
		for i, p := range perm {
			shuffled.Rewards[i], shuffled.Weights[i] = rewards[p], weights[p]
		}
		got, err := Normalise(convention, []mgrpo.RewardGroup{{Rewards: rewards, Weights: weights}, shuffled, {Rewards: physical}})
		if err != nil {
			t.Fatal(err)
		}
		at, mean, variance := 0, 0.0, 0.0
		for i, m := range copies {
			for range m {
				agree(t, "a copy", got[2].Advantage[at], got[0].Advantage[i])
				at++
			}
			mean += weights[i] * got[0].Advantage[i]
			variance += weights[i] * got[0].Advantage[i] * got[0].Advantage[i]
		}
		for i, p := range perm {
			agree(t, "a permuted member", got[1].Advantage[i], got[0].Advantage[p])
		}
		if convention == mgrpo.DefaultConvention() && !got[0].Empty && !got[0].Degenerate {
			agree(t, "mean advantage", mean/got[0].WeightSum, 0)
			agree(t, "variance of the advantages", variance/got[0].WeightSum, 1)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func agree(t *rapid.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}
