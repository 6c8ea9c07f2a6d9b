package task

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestVisitIDs(t *testing.T) {
	for epoch, want := range []string{"r", "r#epoch=2", "r#epoch=3"} {
		id := VisitID("r", int64(epoch))
		if row, err := RowOf(id); id != want || row != "r" || err != nil {
			t.Errorf("epoch %d: %q, %q, %v", epoch, id, row, err)
		}
	}
	for _, bad := range []string{"r#epoch=", "r#epoch=1", "r#epoch=x", "r#epoch=2#epoch=3"} {
		if row, err := RowOf(bad); err == nil {
			t.Errorf("%q is row %q", bad, row)
		}
	}
}

// Each epoch visits each row once, epochs differ, and any position can be asked for in any order.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, seed := rapid.IntRange(1, 50).Draw(t, "n"), rapid.Uint64().Draw(t, "seed")
		o, forwards := NewRowOrder(seed, n), []int{}
		for i := range int64(3 * n) {
			row, epoch := o.At(i)
			if epoch != i/int64(n) {
				t.Fatalf("query %d is of epoch %d", i, epoch)
			}
			forwards = append(forwards, row)
		}
		backwards := NewRowOrder(seed, n)
		for i := int64(3*n) - 1; i >= 0; i-- {
			if row, _ := backwards.At(i); row != forwards[i] {
				t.Fatalf("query %d is row %d or %d", i, row, forwards[i])
			}
		}
		for e := range 3 {
			visited := slices.Sorted(slices.Values(forwards[e*n : (e+1)*n]))
			for i, row := range visited {
				if row != i {
					t.Fatalf("epoch %d visits %v", e, visited)
				}
			}
		}
		if n > 20 && slices.Equal(forwards[:n], forwards[n:2*n]) {
			t.Fatal("two epochs have one order")
		}
	})
}

func TestStreamChance(t *testing.T) {
	s, hits := NewStream(1, "chance", 0), 0
	for range 20000 {
		if s.Chance(0.3) {
			hits++
		}
	}
	if hits < 5800 || hits > 6200 { // 3 standard errors
		t.Errorf("%d of 20000 at 0.3", hits)
	}
	if s.Chance(0) || !s.Chance(1) {
		t.Error("the certain is not certain")
	}
}
