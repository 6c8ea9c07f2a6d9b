// Package algorithm reads the goldens of the algorithm, testdata/mgrpo, and compares advantages and losses with them.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package algorithm

import (
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// Group is a group of rewards with its expected statistics and advantages. Mean and Std are nil if the group is empty.
type Group struct {
	Rewards, Weights  []mgrpo.Number
	Empty, Degenerate bool
	Mean              *mgrpo.Number
	Std               *mgrpo.Number `json:"std_population"`
	WeightSum         mgrpo.Number  `json:"weight_sum"`
	Advantage         []mgrpo.Number
	F32OK             bool `json:"f32_ok"` // also holds for rewards and arithmetic in float32
}

// Input returns the rewards and weights.
func (g Group) Input() mgrpo.RewardGroup {
	return mgrpo.RewardGroup{Rewards: mgrpo.Floats(g.Rewards), Weights: mgrpo.Floats(g.Weights)}
}

// CompareGroup checks the statistics and advantages of a group, the latter and the moments with tolerances of their own.
func CompareGroup[T ~float32 | ~float64](t testing.TB, what string, stats mgrpo.GroupStats, got []T, want Group, advantage, moments float64) {
	t.Helper()
	if stats.Empty != want.Empty || stats.Degenerate != want.Degenerate || len(got) != len(want.Advantage) {
		t.Errorf("%s: got %+v and %d advantages, want %+v", what, stats, len(got), want)
		return
	}
	golden.Near(t, what+", weight", stats.WeightSum, float64(want.WeightSum), 1e-12)
	if want.Mean != nil {
		golden.Near(t, what+", mean", stats.Mean, float64(*want.Mean), moments)
		golden.Near(t, what+", std", stats.Std, float64(*want.Std), moments)
	}
	for i, a := range want.Advantage {
		golden.Near(t, fmt.Sprintf("%s, advantage %d", what, i), float64(got[i]), float64(a), advantage)
	}
}

// AdvantageCase is a batch of groups.
type AdvantageCase struct {
	Name, Convention string
	Groups           []Group
	Totals           *mgrpo.Totals
}

// AdvantageFile is the content of advantages.json.
type AdvantageFile struct {
	Convention mgrpo.Convention // the default one
	Cases      []AdvantageCase
	Errors     []struct {
		Group
		Name  string
		Error mgrpo.Refusal
	}
}

// Advantages reads advantages.json.
func Advantages(t testing.TB) (f AdvantageFile) {
	t.Helper()
	golden.Read(t, "mgrpo", "advantages.json", &f)
	return f
}

// SmallWeights reads the groups of a total weight of about 1, as balanced alignment with d = 1 makes them.
func SmallWeights(t testing.TB) []AdvantageCase {
	t.Helper()
	var f struct{ Cases []AdvantageCase }
	golden.Read(t, "mgrpo", "advantages_small_weight.json", &f)
	return f.Cases
}

// LargeGroups reads the groups of advantages_large.safetensors, which have the default convention and no weights.
func LargeGroups(t testing.TB) []Group {
	t.Helper()
	a := golden.ReadTensors(t, golden.File(t, "mgrpo", "advantages_large.safetensors"))
	offsets, rewards, advantages := a["offsets"].Int64s(), numbers(a["rewards"].Data), numbers(a["advantage"].Data)
	mean, std := numbers(a["mean"].Data), numbers(a["std_population"].Data)
	groups := make([]Group, len(offsets)-1)
	for g := range groups {
		from, to := offsets[g], offsets[g+1]
		groups[g] = Group{Rewards: rewards[from:to], Advantage: advantages[from:to], Mean: &mean[g], Std: &std[g],
			WeightSum: mgrpo.Number(to - from), Degenerate: a["degenerate"].Data[g] == 1}
	}
	return groups
}

// Peer is a group with its advantages under conventions of several programs, by their names.
type Peer struct {
	Rewards, Weights []mgrpo.Number
	Advantage        map[string][]mgrpo.Number
}

// Peers reads peers.json.
func Peers(t testing.TB) (conventions map[string]mgrpo.Convention, cases []Peer) {
	t.Helper()
	var f struct {
		Conventions    map[string]mgrpo.Convention
		Unit, Weighted []Peer
	}
	golden.Read(t, "mgrpo", "peers.json", &f)
	return f.Conventions, append(f.Unit, f.Weighted...)
}

// numbers returns nil for nil.
func numbers(values []float64) []mgrpo.Number {
	if values == nil {
		return nil
	}
	out := make([]mgrpo.Number, len(values))
	for i, v := range values {
		out[i] = mgrpo.Number(v)
	}
	return out
}
