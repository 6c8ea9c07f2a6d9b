package kernels

import (
	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/golden/algorithm"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// pack concatenates groups; weights are nil if no group has any.
func pack[T float](groups []algorithm.Group) (rewards []T, weights []float64, offsets []int64) {
	weighted := slices.ContainsFunc(groups, func(g algorithm.Group) bool { return g.Weights != nil })
	offsets = []int64{0}
	for _, g := range groups {
		rewards = append(rewards, convert[T](g.Rewards)...)
		for i := range g.Rewards {
			switch {
			case g.Weights != nil:
				weights = append(weights, float64(g.Weights[i]))
			case weighted:
				weights = append(weights, 1)
			}
		}
		offsets = append(offsets, int64(len(rewards)))
	}
	return rewards, weights, offsets
}

func compareGroups[T float](t *testing.T, on Backend, convention mgrpo.Convention, groups []algorithm.Group, tol tolerances) {
	t.Helper()
	rewards, weights, offsets := pack[T](groups)
	got, stats, err := GroupAdvantage(on, rewards, weights, offsets, convention)
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range groups {
		if tol.name == inFloat32.name && !g.F32OK {
			continue
		}
		algorithm.CompareGroup(t, fmt.Sprintf("group %d", i), stats[i], got[offsets[i]:offsets[i+1]], g, tol.advantage, tol.groupMean)
	}
}

func TestGoldenAdvantages(t *testing.T) { onEveryBackend(t, testGoldenAdvantages) }

func testGoldenAdvantages(t *testing.T, on Backend) {
	file := algorithm.Advantages(t)
	for _, c := range file.Cases {
		t.Run(c.Name+"/float64", func(t *testing.T) { compareGroups[float64](t, on, mgrpo.DefaultConvention(), c.Groups, inFloat64) })
		t.Run(c.Name+"/float32", func(t *testing.T) { compareGroups[float32](t, on, mgrpo.DefaultConvention(), c.Groups, inFloat32) })
	}
	for _, c := range file.Errors {
		t.Run(c.Name, func(t *testing.T) {
			// The valid group in front shows that indices count within the group.
			rewards, weights, offsets := pack[float64]([]algorithm.Group{{Rewards: []mgrpo.Number{0, 1}}, c.Group})
			_, _, err := GroupAdvantage(on, rewards, weights, offsets, mgrpo.DefaultConvention())
			c.Error.Group = new(1)
			golden.SameError(t, "refusal", err, c.Error)
		})
	}
	golden.Count("advantages", len(file.Cases)+len(file.Errors))
}

// Groups whose total weight is about 1, as balanced alignment with d = 1 creates.
func TestGoldenAdvantagesSmallWeight(t *testing.T) {
	onEveryBackend(t, testGoldenAdvantagesSmallWeight)
}

func testGoldenAdvantagesSmallWeight(t *testing.T, on Backend) {
	conventions, _ := algorithm.Peers(t)
	cases := algorithm.SmallWeights(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { compareGroups[float64](t, on, conventions[c.Convention], c.Groups, inFloat64) })
	}
	golden.Count("advantages_small_weight", len(cases))
}

func TestGoldenAdvantagesLarge(t *testing.T) { onEveryBackend(t, testGoldenAdvantagesLarge) }

func testGoldenAdvantagesLarge(t *testing.T, on Backend) {
	groups := algorithm.LargeGroups(t)
	compareGroups[float64](t, on, mgrpo.DefaultConvention(), groups, inFloat64)
	golden.Count("advantages_large", len(groups))
}

func TestGoldenPeers(t *testing.T) { onEveryBackend(t, testGoldenPeers) }

func testGoldenPeers(t *testing.T, on Backend) {
	conventions, cases := algorithm.Peers(t)
	compared := 0
	for i, c := range cases {
		rewards, weights, offsets := pack[float64]([]algorithm.Group{{Rewards: c.Rewards, Weights: c.Weights}})
		for name, want := range c.Advantage {
			got, _, err := GroupAdvantage(on, rewards, weights, offsets, conventions[name])
			if err != nil {
				t.Fatal(err)
			}
			for j := range want {
				golden.Near(t, fmt.Sprintf("case %d %s member %d", i, name, j), got[j], float64(want[j]), inFloat64.advantage)
			}
			compared++
		}
	}
	golden.Count("peers", compared)
}

func TestGroupAdvantageMismatch(t *testing.T) { onEveryBackend(t, testGroupAdvantageMismatch) }

func testGroupAdvantageMismatch(t *testing.T, on Backend) {
	rewards, offsets := []float64{0, 1}, []int64{0, 2}
	for name, c := range map[string]struct {
		weights    []float64
		offsets    []int64
		convention mgrpo.Convention
	}{
		"offsets short":  {nil, []int64{0, 1}, mgrpo.DefaultConvention()},
		"offsets absent": {nil, nil, mgrpo.DefaultConvention()},
		"offsets fall":   {nil, []int64{0, 3, 2}, mgrpo.DefaultConvention()},
		"weights short":  {[]float64{1}, offsets, mgrpo.DefaultConvention()},
		"unknown std":    {nil, offsets, mgrpo.Convention{Std: "x", Baseline: mgrpo.BaselineMean}},
	} {
		if _, _, err := GroupAdvantage(on, rewards, c.weights, c.offsets, c.convention); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
