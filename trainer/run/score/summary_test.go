package score

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// The result equals the mean, over all subsets of k scores, of the best score in each.
func TestBestOf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scores := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 8).Draw(t, "scores")
		k := rapid.IntRange(1, len(scores)).Draw(t, "k")
		var sum float64
		var subsets int
		for chosen := range 1 << len(scores) {
			best, n := 0.0, 0
			for i, s := range scores {
				if chosen>>i&1 == 1 {
					best, n = max(best, s), n+1
				}
			}
			if n == k {
				sum, subsets = sum+best, subsets+1
			}
		}
		if got := bestOf(scores, k); math.Abs(got-sum/float64(subsets)) > 1e-12 {
			t.Errorf("the best of %d of %v is %v, want %v", k, scores, got, sum/float64(subsets))
		}
	})
}
