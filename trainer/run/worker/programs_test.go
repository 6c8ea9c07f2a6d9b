package worker

import (
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/task"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestScoreOfInvalidFormat: an answer in an invalid format is worth 0, also if the program gave it a score.
func TestScoreOfInvalidFormat(t *testing.T) {
	pr := &programs{queries: queries{rewards: mgrpo.RewardWeights{Main: mgrpo.MainWeights{Format: 0.1, Correct: 0.9}}}}
	for valid, want := range map[bool]float64{true: 1, false: 0} {
		o := store.Outcome{Format: valid}
		if err := pr.score(t.Context(), task.Query{}, &trajectory{}, new(1.0), &o); err != nil || o.Correct != want {
			t.Errorf("valid %v: correct %v, %v; want %v", valid, o.Correct, err, want)
		}
	}
	if err := pr.score(t.Context(), task.Query{}, &trajectory{}, new(2.0), &store.Outcome{}); err == nil {
		t.Error("a score of 2 in an invalid format was accepted")
	}
}
