package kernels

import (
	"github.com/mgrpo/mgrpo/trainer/mgrpo"

	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

type goldenGroup struct {
	Rewards       []mgrpo.Number `json:"rewards"`
	Weights       []mgrpo.Number `json:"weights"`
	Empty         bool           `json:"empty"`
	Mean          *mgrpo.Number  `json:"mean"`
	StdPopulation *mgrpo.Number  `json:"std_population"`
	WeightSum     mgrpo.Number   `json:"weight_sum"`
	Degenerate    bool           `json:"degenerate"`
	Advantage     []mgrpo.Number `json:"advantage"`
	F32OK         bool           `json:"f32_ok"`
}

// pack concatenates groups; weights are nil if no group has any.
func pack[T float](groups []goldenGroup) (rewards []T, weights []float64, offsets []int64) {
	weighted := slices.ContainsFunc(groups, func(g goldenGroup) bool { return g.Weights != nil })
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

func compareGroups[T float](t *testing.T, on Backend, convention mgrpo.Convention, groups []goldenGroup, tol tolerances) {
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
		if stats[i].Empty != g.Empty || stats[i].Degenerate != g.Degenerate {
			t.Errorf("group %d: empty %t degenerate %t, want %t %t", i, stats[i].Empty, stats[i].Degenerate, g.Empty, g.Degenerate)
		}
		golden.Near(t, fmt.Sprintf("group %d weight_sum", i), stats[i].WeightSum, float64(g.WeightSum), 1e-12)
		if g.Mean != nil {
			golden.Near(t, fmt.Sprintf("group %d mean", i), stats[i].Mean, float64(*g.Mean), tol.groupMean)
			golden.Near(t, fmt.Sprintf("group %d std", i), stats[i].Std, float64(*g.StdPopulation), tol.groupMean)
		}
		for j, want := range g.Advantage {
			golden.Near(t, fmt.Sprintf("group %d member %d", i, j), float64(got[int(offsets[i])+j]), float64(want), tol.advantage)
		}
	}
}

func TestGoldenAdvantages(t *testing.T) { onEveryBackend(t, testGoldenAdvantages) }

func testGoldenAdvantages(t *testing.T, on Backend) {
	var file struct {
		Cases []struct {
			Name   string        `json:"name"`
			Groups []goldenGroup `json:"groups"`
		} `json:"cases"`
		Errors []struct {
			Name    string         `json:"name"`
			Rewards []mgrpo.Number `json:"rewards"`
			Weights []mgrpo.Number `json:"weights"`
			Error   mgrpo.Refusal  `json:"error"`
		} `json:"errors"`
	}
	golden.Read(t, "mgrpo", "advantages.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name+"/float64", func(t *testing.T) { compareGroups[float64](t, on, mgrpo.DefaultConvention(), c.Groups, inFloat64) })
		t.Run(c.Name+"/float32", func(t *testing.T) { compareGroups[float32](t, on, mgrpo.DefaultConvention(), c.Groups, inFloat32) })
	}
	for _, c := range file.Errors {
		t.Run(c.Name, func(t *testing.T) {
			// The valid group in front shows that indices count within the group.
			groups := []goldenGroup{{Rewards: []mgrpo.Number{0, 1}}, {Rewards: c.Rewards, Weights: c.Weights}}
			rewards, weights, offsets := pack[float64](groups)
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
	var peers struct {
		Conventions map[string]mgrpo.Convention `json:"conventions"`
	}
	golden.Read(t, "mgrpo", "peers.json", &peers)
	var file struct {
		Cases []struct {
			Name       string        `json:"name"`
			Convention string        `json:"convention"`
			Groups     []goldenGroup `json:"groups"`
		} `json:"cases"`
	}
	golden.Read(t, "mgrpo", "advantages_small_weight.json", &file)
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			compareGroups[float64](t, on, peers.Conventions[c.Convention], c.Groups, inFloat64)
		})
	}
	golden.Count("advantages_small_weight", len(file.Cases))
}

func TestGoldenAdvantagesLarge(t *testing.T) { onEveryBackend(t, testGoldenAdvantagesLarge) }

func testGoldenAdvantagesLarge(t *testing.T, on Backend) {
	a := golden.ReadTensors(t, golden.File(t, "mgrpo", "advantages_large.safetensors"))
	offsets := a["offsets"].Int64s()
	advantages, stats, err := GroupAdvantage(on, a["rewards"].Data, nil, offsets, mgrpo.DefaultConvention())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range a["advantage"].Data {
		golden.Near(t, fmt.Sprintf("advantage %d", i), advantages[i], want, inFloat64.advantage)
	}
	for g, s := range stats {
		golden.Near(t, fmt.Sprintf("mean %d", g), s.Mean, a["mean"].Data[g], inFloat64.groupMean)
		golden.Near(t, fmt.Sprintf("std %d", g), s.Std, a["std_population"].Data[g], inFloat64.groupMean)
		if want := a["degenerate"].Data[g] != 0; s.Degenerate != want {
			t.Errorf("group %d: degenerate %t, want %t", g, s.Degenerate, want)
		}
	}
	golden.Count("advantages_large", len(stats))
}

func TestGoldenPeers(t *testing.T) { onEveryBackend(t, testGoldenPeers) }

func testGoldenPeers(t *testing.T, on Backend) {
	type peerCase struct {
		Rewards   []mgrpo.Number            `json:"rewards"`
		Weights   []mgrpo.Number            `json:"weights"`
		Advantage map[string][]mgrpo.Number `json:"advantage"`
	}
	var file struct {
		Conventions map[string]mgrpo.Convention `json:"conventions"`
		Unit        []peerCase                  `json:"unit"`
		Weighted    []peerCase                  `json:"weighted"`
	}
	golden.Read(t, "mgrpo", "peers.json", &file)
	compared := 0
	for i, c := range append(file.Unit, file.Weighted...) {
		rewards, weights, offsets := pack[float64]([]goldenGroup{{Rewards: c.Rewards, Weights: c.Weights}})
		for name, want := range c.Advantage {
			got, _, err := GroupAdvantage(on, rewards, weights, offsets, file.Conventions[name])
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
