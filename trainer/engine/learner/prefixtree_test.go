package learner

import (
	"slices"
	"testing"
)

func TestPrefixTree(t *testing.T) {
	var tree prefixTree
	for _, c := range []struct {
		tokens, rows []int32
	}{
		{[]int32{7, 8, 9, 9}, []int32{0, 1, 2, 3}},
		{[]int32{7, 8, 5}, []int32{0, 1, 4}},             // branches off within the first
		{nil, []int32{}},                                 // an empty sequence
		{[]int32{7, 8}, []int32{0, 1}},                   // the beginning of another
		{[]int32{7, 8, 5, 9, 9}, []int32{0, 1, 4, 5, 6}}, // continues after the end of another
		{[]int32{7, 8, 5, 9, 1}, []int32{0, 1, 4, 5, 7}}, // a branch of a branch
		{[]int32{9}, []int32{8}},                         // another first token has its own row
		{[]int32{7, 8, 5, 9, 1}, []int32{0, 1, 4, 5, 7}}, // an equal sequence
	} {
		missing, before := tree.missing(c.tokens), tree.len()
		if got := tree.add(c.tokens); !slices.Equal(got, c.rows) {
			t.Errorf("%v is in rows %v, want %v", c.tokens, got, c.rows)
		}
		if grown := tree.len() - before; grown != missing {
			t.Errorf("%v: missing returned %d rows, and %d were added", c.tokens, missing, grown)
		}
	}
	for name, c := range map[string][2][]int32{
		"ids":       {tree.ids, {7, 8, 9, 9, 5, 9, 9, 1, 9}},
		"positions": {tree.positions, {0, 1, 2, 3, 2, 3, 4, 4, 0}},
		"first":     {tree.first, {0, 4, 5, 7, 8}},
		"follows":   {tree.follows, {-1, 1, 4, 5, -1}},
	} {
		if !slices.Equal(c[0], c[1]) {
			t.Errorf("%s: %v, want %v", name, c[0], c[1])
		}
	}
}
