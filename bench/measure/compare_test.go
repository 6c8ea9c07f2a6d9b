package measure

import (
	"math"
	"testing"
)

// TestUnpaired: the example of Newcombe (1998), table II, column (a): 56 of 70 and 48 of 80 give 0.0524 to 0.3339 by method 10.
func TestUnpaired(t *testing.T) {
	d, interval := unpaired(48./80, 80, 56./70, 70)
	if math.Abs(d-0.2) > 1e-9 || math.Abs(interval[0]-0.0524) > 5e-5 || math.Abs(interval[1]-0.3339) > 5e-5 {
		t.Errorf("%v, %v", d, interval)
	}
	if _, interval := unpaired(0, 10, 0, 10); !(interval[0] < 0 && interval[1] > 0) {
		t.Errorf("two samples without a right answer: interval %v", interval)
	}
}
