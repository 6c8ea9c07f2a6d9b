package score

import (
	"fmt"
	"math"
	"math/bits"
	"testing"
)

// With many questions the interval is near the normal approximation, and it depends only on seed and name.
func TestInterval(t *testing.T) {
	values := make([]float64, 400)
	for i := range 120 {
		values[i] = 1
	}
	const p, error95 = 0.3, 1.96 * 0.0229 // sqrt(p (1 - p) / n)
	got := Interval(values, 7, "all")
	if math.Abs(got[0]-(p-error95)) > 0.006 || math.Abs(got[1]-(p+error95)) > 0.006 {
		t.Errorf("%v, want about %v and %v", got, p-error95, p+error95)
	}
	if got != Interval(values, 7, "all") {
		t.Error("two calls with one seed and name returned different intervals")
	}
	seeds, names := map[[2]float64]bool{}, map[[2]float64]bool{} // some may be equal, because ends are multiples of 1/400
	for i := range 10 {
		seeds[Interval(values, uint64(i), "all")] = true
		names[Interval(values, 7, fmt.Sprint(i))] = true
	}
	if len(seeds) < 3 || len(names) < 3 {
		t.Errorf("ten seeds gave %d different intervals, ten names gave %d", len(seeds), len(names))
	}
	if got := Interval([]float64{1, 1, 1}, 7, ""); got != [2]float64{1, 1} {
		t.Errorf("of equal values: %v", got)
	}
}

// Only the spread within a query counts: 1 and 3 have variance 2, and 5, 5 and 5 have variance 0, although their means differ.
func TestSpreadWithin(t *testing.T) {
	if std, ok := SpreadWithin(map[string][]int{"a": {1, 3}, "b": {5, 5, 5}, "alone": {9}}); !ok || std != 1 {
		t.Errorf("%v (%v), want 1", std, ok)
	}
	if std, ok := SpreadWithin(map[string][]int{"alone": {9}}); ok {
		t.Errorf("got %v for queries with one rollout each", std)
	}
}

// The result equals the share of k-subsets of a query's samples that contain a right sample.
func TestPassAtK(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for k := 1; k <= n; k++ {
			right := map[int]int64{}
			var want, queries float64
			for c := 0; c <= n; c++ {
				right[c] = int64(1 + c%3)
				var hit, subsets float64
				for set := range 1 << n { // the first c samples are right
					if bits.OnesCount(uint(set)) == k {
						subsets++
						if set&(1<<c-1) != 0 {
							hit++
						}
					}
				}
				want += float64(right[c]) * hit / subsets
				queries += float64(right[c])
			}
			if got := PassAtK(right, n, k); math.Abs(got-want/queries) > 1e-12 {
				t.Errorf("n=%d k=%d: %g, want %g", n, k, got, want/queries)
			}
		}
	}
}
