package worker

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// TestLearnsNothing: the run warns after 10 steps in a row without a usable group, and again after 20, 40 and 80.
func TestLearnsNothing(t *testing.T) {
	equal, some, none := mgrpo.Totals{Groups: 4, Degenerate: 4}, mgrpo.Totals{Groups: 4, Degenerate: 3}, mgrpo.Totals{Empty: 4}
	var y tally
	warned := map[int]string{}
	for i := range 100 {
		step := equal
		switch {
		case i == 7:
			step = some
		case i >= 60:
			step = none
		}
		if why := y.learnsNothing(step); why != "" {
			warned[i] = why
		}
	}
	for i, want := range map[int]string{17: "the last 10 steps: within each group all rewards were equal", 27: "the last 20 steps: within", 47: "the last 40 steps: within", 87: "the last 80 steps: there is no group"} {
		if !strings.Contains(warned[i], want) {
			t.Errorf("step %d: got warning %q, want %q in it", i, warned[i], want)
		}
	}
	if len(warned) != 4 {
		t.Errorf("got %d warnings, want 4: %v", len(warned), warned)
	}
}
