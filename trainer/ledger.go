package trainer

import (
	"github.com/mgrpo/mgrpo/trainer/archive"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// openLedger continues this agent's ledger where a checkpoint left it, or begins it.
func (w *Worker) openLedger(from *archive.Manifest) (err error) {
	var at archive.LedgerMark
	if from != nil {
		part, _ := from.Agent(w.name) // it verified
		at = part.Ledger
	}
	w.ledger, err = w.run.OpenLedger(w.name, at)
	return w.diskFull(err)
}

// enter writes what became of a step's rollouts into the ledger, before anybody hears that the step is
// made: what the ledger names is exactly what the weights have seen.
func (w *Worker) enter(n int64, outcomes []store.Outcome, complete map[string][]store.Outcome, groups []mgrpo.Group) error {
	trained := w.trainedOn(complete, groups)
	line := archive.LedgerLine{Step: n, Rollouts: make([]archive.LedgerRollout, len(outcomes))}
	for i, o := range outcomes {
		line.Rollouts[i] = archive.LedgerRollout{ID: o.ID(), Trained: trained[o.ID()], Removed: removed(o, trained)}
	}
	if w.trains() {
		line.Updates = w.Learner.Steps()
	}
	return w.diskFull(w.ledger.Append(line))
}

// trainedOn is, by complete rollout, the weights with which the learner was given this agent's trajectories:
// none of a frozen agent's.
func (w *Worker) trainedOn(complete map[string][]store.Outcome, groups []mgrpo.Group) map[string][]float64 {
	trained := map[string][]float64{}
	for _, outcomes := range complete {
		for _, o := range outcomes {
			n := o.Calls[w.name]
			if w.main {
				n = 1
			}
			if !w.trains() {
				n = 0
			}
			trained[o.ID()] = make([]float64, n)
		}
	}
	if !w.trains() {
		return trained
	}
	for _, g := range groups {
		for _, m := range g.Members {
			trained[store.Outcome{Query: m.Query, Rollout: m.Rollout}.ID()][m.Invocation] = m.Weight
		}
	}
	return trained
}

// removed says why a rollout is in no group, "" if it is.
func removed(o store.Outcome, complete map[string][]float64) string {
	switch {
	case o.Failed != "":
		return "not verified"
	case complete[o.ID()] == nil:
		return "a trajectory of it is not held"
	}
	return ""
}
