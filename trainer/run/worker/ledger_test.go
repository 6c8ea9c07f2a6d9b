package worker

import (
	"reflect"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestLedgerOfFrozenAgent: a frozen agent's ledger lists every rollout, and none as trained on.
func TestLedgerOfFrozenAgent(t *testing.T) {
	s := &steps{common: &common{name: "solver"}}
	outcomes := []store.Outcome{{Query: "q", Calls: map[string]int{"solver": 2}}, {Query: "q", Rollout: 1, Failed: "no score"}, {Query: "q", Rollout: 2}}
	complete := map[string][]store.Outcome{"q": outcomes[:1]}
	groups := []mgrpo.Group{{Members: []mgrpo.Member{{Query: "q", Weight: 3}, {Query: "q", Invocation: 1, Weight: 4}}}}
	want := archive.LedgerLine{Step: 5, Rollouts: []archive.LedgerRollout{
		{ID: "q/0", Trained: []float64{}}, {ID: "q/1", Removed: "failed: no score"}, {ID: "q/2", Removed: "one of its trajectories is missing"}}}
	if got := s.ledgerLine(5, outcomes, complete, groups); !reflect.DeepEqual(got, want) {
		t.Errorf("got line %+v, want %+v", got, want)
	}
}
