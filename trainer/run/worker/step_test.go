package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/show/metrics"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestForeignHolding has the planner claim trajectories of the researcher: a rollout counts by what the
// researcher itself holds.
func TestForeignHolding(t *testing.T) {
	cfg := load(t, t.TempDir())
	ctx := t.Context()
	s, err := store.Open(ctx, store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	members := map[string]*store.Member{}
	for _, name := range []string{"planner", "researcher"} {
		hello := store.Hello{Agents: []string{"planner", "researcher"}, Offers: []store.Offer{{Version: store.Afresh}}}
		if members[name], err = s.Join(ctx, name, hello, func(string) {}); err != nil {
			t.Fatal(err)
		}
		defer members[name].Leave(ctx)
	}
	if err := members["planner"].PublishTrajectories(ctx, store.Train(0), []string{"q/0", "q/0/researcher/0", "q/1", "q/1/researcher/0"}); err != nil {
		t.Fatal(err)
	}
	own := stepsOf(cfg, "researcher")
	own.member = members["researcher"]
	held := &experience{plan: store.Plan{Queries: []string{"q"}, Rollouts: 2}, trajectories: map[string]*trajectory{
		"q/1/researcher/0": {Trajectory: agent.Trajectory{ID: "q/1/researcher/0"}},
	}}
	if err := members["researcher"].PublishTrajectories(ctx, store.Train(0), []string{"q/1/researcher/0"}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{"researcher": 1}
	complete, err := own.agree(ctx, store.Train(0), []store.Outcome{{Query: "q", Rollout: 0, Calls: calls}, {Query: "q", Rollout: 1, Calls: calls}})
	if err != nil {
		t.Fatal(err)
	}
	if got := complete["q"]; len(got) != 1 || got[0].Rollout != 1 {
		t.Errorf("complete: %v, want rollout 1 alone", got)
	}
	if _, err := own.groups(held, complete); err != nil {
		t.Error(err)
	}
}

// TestReplacedWorkerReportsNothing: a worker that was suspended continues after its successor has made further steps. Readers would treat
// its record of an earlier step as a sign that the run went back.
func TestReplacedWorkerReportsNothing(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	hello := store.Hello{Agents: []string{"planner"}, Offers: []store.Offer{{Version: store.Afresh}}}
	seen := &recorder{}
	var members []*store.Member
	for i, want := range []string{"", "was replaced by another"} {
		m, err := s.Join(t.Context(), "planner", hello, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
		own := &seat{name: "planner", member: members[0], observer: seen}
		switch err := own.report(t.Context(), metrics.Record{Kind: metrics.KindStep, Step: 7, Agent: "planner"}); {
		case want == "" && err != nil, want != "" && (err == nil || !store.Rewinds(err) || !strings.Contains(err.Error(), want)):
			t.Errorf("place %d: %v", i, err)
		}
		if err := m.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen.records) != 1 {
		t.Errorf("reported %v", seen.records)
	}
}

// TestTrajectoryThatIsNotHere: a trajectory that the store lists for this worker and that the worker does not hold is an error.
func TestTrajectoryThatIsNotHere(t *testing.T) {
	cfg := load(t, t.TempDir())
	held := &experience{plan: store.Plan{Queries: []string{"q"}, Rollouts: 1}}
	complete := map[string][]store.Outcome{"q": {{Query: "q", Calls: map[string]int{"researcher": 1}}}}
	for name, id := range map[string]string{"planner": "q/0", "researcher": "q/0/researcher/0"} {
		if _, err := stepsOf(cfg, name).groups(held, complete); err == nil || !strings.Contains(err.Error(), "trajectory "+id+" as held by this worker") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// stepsOf returns an agent's steps without a model and a place.
func stepsOf(cfg *config.Config, name string) *steps {
	a := cfg.Agent(name)
	rules := assemble.RulesOf(cfg, a)
	return &steps{seat: &seat{cfg: cfg, agent: a, name: name, main: a.Role == "main"}, rules: rules, normaliser: normaliser{rules: rules}}
}

// TestWaitsAreNoRollouts: the time for which a phase rolled out ahead waits to be trained does not count as rollout time.
func TestWaitsAreNoRollouts(t *testing.T) {
	m := onlyMember(t, store.Options{Run: "test", Timeout: time.Second})
	s := &steps{seat: &seat{name: "researcher", member: m}}
	held := &experience{clock: &stopwatch{last: time.Now().Add(-time.Hour), laps: map[string]float64{"rollout": 1}}} // an hour ago
	if err := s.step(t.Context(), 0, held); !errors.As(err, new(*store.TimeoutError)) {
		t.Fatalf("a step without published trajectories: %v", err)
	}
	if s := held.clock.laps["rollout"]; s < 1 || s > time.Hour.Seconds()/2 {
		t.Errorf("rollouts of one second took %.0f s", s)
	}
}
