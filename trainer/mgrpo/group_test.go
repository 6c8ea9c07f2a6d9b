package mgrpo

import (
	"slices"
	"testing"
)

// A pooled group has every member of the groups, with its query and weight; empty groups add no members.
func TestPool(t *testing.T) {
	align := Align{Mode: AlignDraw, D: 4}
	groups := []Group{
		align.Group(7, "a", "sub", []RolloutRewards{{0, []float64{1, 0}}, {1, nil}, {2, []float64{0.5, 0, 1, 1, 0}}}),
		align.Group(7, "b", "sub", nil),
		align.Group(7, "c", "sub", []RolloutRewards{{0, []float64{0.25}}}),
	}
	got := Pool("sub", groups)
	want := slices.Concat(groups[0].Members, groups[2].Members)
	if !slices.Equal(got.Members, want) {
		t.Errorf("members %v, want %v", got.Members, want)
	}
	if got.Agent != "sub" || got.Query != "" || got.Rollouts != 3 || got.WeightSum != 12 {
		t.Errorf("pool of %q, query %q: %d rollouts of weight %v", got.Agent, got.Query, got.Rollouts, got.WeightSum)
	}
	for i, q := range []string{"a", "a", "a", "a", "a", "a", "a", "c"} {
		if got.Members[i].Query != q {
			t.Errorf("member %d is of query %q, want %q", i, got.Members[i].Query, q)
		}
	}
	if empty := Pool("sub", groups[1:2]); empty.Rollouts != 0 || len(empty.Members) > 0 {
		t.Errorf("a pool of nothing is %v", empty)
	}
}
