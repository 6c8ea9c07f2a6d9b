package worker

import (
	"context"
	"errors"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/engine/learner"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestRefusalsInARow: a worker ends after three steps in a row with a refused update. A step without a refusal starts the count again.
func TestRefusalsInARow(t *testing.T) {
	s := &steps{archive: archive.New(archive.Options{Dir: "run"}, nil, nil)}
	bad, good := []learner.Report{reportOf(nil), reportOf(errDivergent)}, []learner.Report{reportOf(nil)}
	for i, reports := range [][]learner.Report{bad, bad, good, bad, bad} {
		if err := s.countRefusals(reports); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	if err := s.countRefusals(bad); !errors.Is(err, errDivergent) {
		t.Errorf("third refusal in a row: got error %v, want %v", err, errDivergent)
	}
}

var errDivergent = errors.New("the loss is not finite")

func reportOf(refused error) learner.Report { return learner.Report{Refused: refused} }

// TestRefusedStepsAreRemembered: a checkpoint has the number of refused steps in a row, so a restored worker continues to count from it.
func TestRefusedStepsAreRemembered(t *testing.T) {
	workers := openWorkers(t, load(t, t.TempDir(), "cold_start.demonstrations=none"))
	for _, w := range workers { // every worker, because they must agree on the manifest before Wait returns
		w.steps.refusedSteps = 2
		if err := w.archive.Checkpoint(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range workers {
		if err := w.archive.Saving.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.steps.refusedSteps = 0
		if err := w.archive.Restore(t.Context(), archive.Manifest{}); err != nil || w.steps.refusedSteps != 2 {
			t.Errorf("%s: restored with %d refused steps, want 2; error %v", w.name, w.steps.refusedSteps, err)
		}
	}
}

// openWorkers returns the workers of a new run's agents.
func openWorkers(t *testing.T, cfg *config.Config) (workers []*Worker) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	options := Options{Config: cfg, Dir: cfg.RunDir(), Task: openTask(t, cfg), Observer: &metricstest.Recorder{}, Process: &assemble.Process{Agents: cfg.AgentNames()}}
	var members []*store.Member
	for _, name := range cfg.AgentNames() {
		request := store.JoinRequest{Agents: cfg.AgentNames(), Offers: []store.Offer{{Version: store.FromStart}}, Deterministic: true}
		m, err := s.Join(t.Context(), name, request, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Leave(context.WithoutCancel(t.Context())) })
		members = append(members, m)
	}
	for _, m := range members {
		if _, err := m.Round.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w, err := Open(t.Context(), options, m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Close(context.WithoutCancel(t.Context())) })
		workers = append(workers, w)
	}
	return workers
}
