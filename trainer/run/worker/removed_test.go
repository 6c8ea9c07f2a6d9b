package worker

import (
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestRemovalsInARow: a worker ends after three steps in a row in which too many rollouts had no score. A step within the bound starts the
// count again, and a rollout removed for its age does not count.
func TestRemovalsInARow(t *testing.T) {
	s := &steps{common: &common{cfg: load(t, t.TempDir()), observer: &metricstest.Recorder{}}}
	good := []store.Outcome{{Query: "q"}, {Query: "q", Rollout: 1}, {Query: "q", Rollout: 2}, {Query: "q", Rollout: 3, Unscored: "researcher: the judge is out"}}
	complete := map[string][]store.Outcome{"q": good[:3]}
	bad := append([]store.Outcome{{Query: "p", Unscored: "researcher: the judge is out"}}, good...) // two of five
	// One of five, and one removed for its age.
	old := append([]store.Outcome{{Query: "p"}}, good...)
	for i := range int64(2 * maxStreak) {
		if err := s.countUnscored(i, old, complete); err != nil {
			t.Fatalf("a rollout removed for its age was counted: %v", err)
		}
	}
	for i, outcomes := range [][]store.Outcome{bad, bad, good, bad, bad} {
		if err := s.countUnscored(int64(i), outcomes, complete); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	err := s.countUnscored(5, bad, complete)
	for _, want := range []string{"2 of 5 rollouts have no score and were removed", "a call has no score: researcher: the judge is out"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("third step in a row: got error %v, want one with %q", err, want)
		}
	}
}
