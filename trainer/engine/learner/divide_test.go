package learner

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// groupOf makes n sequences of one group, each with rows of its own.
func groupOf(group int64, n, rows int) (all []*Sequence) {
	for i := range n {
		q := &Sequence{ID: fmt.Sprintf("%03d/%03d", group, i), Group: group}
		for t := range rows + 1 { // the model does not read the last token
			q.Tokens, q.Sampled = append(q.Tokens, int32(group*100_000+int64(i*1000+t))), append(q.Sampled, t == rows)
		}
		all = append(all, q)
	}
	return all
}

func TestDealtLongestFirst(t *testing.T) {
	batch := slices.Concat(groupOf(0, 1, 5), groupOf(1, 2, 4), groupOf(2, 1, 3), groupOf(3, 1, 3))
	load := []int{0, 0, 2}
	shares := packer{}.divideAmongRanks(batch, 100, forwardOnly, load)
	// 8 rows of group 1 go to rank 0, 5 of group 0 to rank 1, 3 of group 2 to rank 2 with 2, 3 of group 3 to rank 1, of equals the first.
	want := [][]int64{{1, 1}, {0, 3}, {2}}
	for r, share := range shares {
		if got := groupsIn(share); !slices.Equal(got, want[r]) {
			t.Errorf("rank %d has sequences of groups %v, want %v", r, got, want[r])
		}
	}
	if !slices.Equal(load, []int{8, 8, 5}) {
		t.Errorf("loads %v", load)
	}
}

func groupsIn(share []*Sequence) (groups []int64) {
	for _, q := range share {
		groups = append(groups, q.Group)
	}
	return groups
}

// Random batches, divided among random numbers of ranks: every sequence is assigned once and keeps its place
// in the order. A group stays whole if it fits, and the loads of two ranks differ by at most one unit.
func TestDealing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		const whole = 60
		var batch []*Sequence
		for g := range rng.IntN(12) {
			batch = append(batch, groupOf(int64(g), 1+rng.IntN(4), rng.IntN(whole/4+1))...)
		}
		size := 1 + rng.IntN(6)
		load := make([]int, size)
		shares := packer{}.divideAmongRanks(batch, whole, forwardAndBackward, load)
		owners, all := map[int64]map[int]bool{}, []*Sequence(nil)
		for r, share := range shares {
			if !slices.IsSortedFunc(share, func(a, b *Sequence) int { return cmp.Compare(a.ID, b.ID) }) {
				t.Fatalf("round %d: rank %d has its sequences in a different order", round, r)
			}
			for _, q := range share {
				if owners[q.Group] == nil {
					owners[q.Group] = map[int]bool{}
				}
				owners[q.Group][r] = true
			}
			all = append(all, share...)
		}
		if len(shares) != size || !slices.Equal(byID(all), byID(batch)) {
			t.Fatalf("round %d: %d sequences for %d ranks, assigned %d to %d", round, len(batch), size, len(all), len(shares))
		}
		for g, ranks := range owners {
			if len(ranks) > 1 { // none is longer than whole
				t.Errorf("round %d: group %d is assigned to %d ranks", round, g, len(ranks))
			}
		}
		if size > 1 && slices.Max(load)-slices.Min(load) > forwardAndBackward*whole {
			t.Errorf("round %d: loads %v", round, load)
		}
	}
}

// A group too large for one micro-batch is assigned in parts of a micro-batch each.
func TestHugeGroupIsCut(t *testing.T) {
	load := make([]int, 3)
	shares := packer{}.divideAmongRanks(groupOf(7, 9, 10), 30, forwardOnly, load)
	for r, share := range shares {
		if len(share) != 3 || load[r] != 30 {
			t.Errorf("rank %d has %d sequences, loads %v; want 3 of 30 rows each", r, len(share), load)
		}
	}
}
