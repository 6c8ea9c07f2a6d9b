package worker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/metrics"
	"github.com/mgrpo/mgrpo/trainer/metrics/metricstest"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

// TestForeignHolding: an agent's trajectory counts as held only if the agent itself published its id. Here the planner publishes ids of the
// researcher's trajectories, too.
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
		request := store.JoinRequest{Agents: []string{"planner", "researcher"}, Offers: []store.Offer{{Version: store.FromStart}}}
		if members[name], err = s.Join(ctx, name, request, func(string) {}); err != nil {
			t.Fatal(err)
		}
		defer members[name].Leave(ctx)
	}
	if err := members["planner"].Phases.PublishTrajectories(ctx, store.TrainPhase(0), []string{"q/0", "q/0/researcher/0", "q/1", "q/1/researcher/0"}); err != nil {
		t.Fatal(err)
	}
	own := stepsOf(cfg, "researcher")
	own.member = members["researcher"]
	exp := &experience{plan: store.Plan{Queries: []string{"q"}, Rollouts: 2}, trajectories: map[string]*trajectory{
		"q/1/researcher/0": {conversation: agent.Trajectory{Row: agent.Row{ID: "q/1/researcher/0"}}},
	}}
	if err := members["researcher"].Phases.PublishTrajectories(ctx, store.TrainPhase(0), []string{"q/1/researcher/0"}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{"researcher": 1}
	complete, err := own.agree(ctx, store.TrainPhase(0), []store.Outcome{{Query: "q", Rollout: 0, Calls: calls}, {Query: "q", Rollout: 1, Calls: calls}})
	if err != nil {
		t.Fatal(err)
	}
	if got := complete["q"]; len(got) != 1 || got[0].Rollout != 1 {
		t.Errorf("complete rollouts: got %v, want only rollout 1", got)
	}
	if _, err := own.groups(exp, complete); err != nil {
		t.Error(err)
	}
}

// TestReplacedWorkerReportsNothing: a suspended worker may continue after another has taken its place and made
// further steps. Its record of an earlier step is refused, because readers would conclude that the run went back.
func TestReplacedWorkerReportsNothing(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	request := store.JoinRequest{Agents: []string{"planner"}, Offers: []store.Offer{{Version: store.FromStart}}}
	seen := &metricstest.Recorder{}
	var members []*store.Member
	for i, want := range []string{"", "was replaced by another"} {
		m, err := s.Join(t.Context(), "planner", request, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
		own := &common{name: "planner", member: members[0], observer: seen}
		switch err := own.report(t.Context(), metrics.Record{Kind: metrics.KindStep, Step: 7, Agent: "planner"}); {
		case want == "" && err != nil, want != "" && (err == nil || !store.EndsRoundOnly(err) || !strings.Contains(err.Error(), want)):
			t.Errorf("report %d: got error %v, want %q", i, err, want)
		}
		if err := m.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen.Records) != 1 {
		t.Errorf("got %d records %v, want 1", len(seen.Records), seen.Records)
	}
}

// TestTrajectoryThatIsNotHere: it is an error if the store lists a trajectory as held by this worker, and the worker does not have it.
func TestTrajectoryThatIsNotHere(t *testing.T) {
	cfg := load(t, t.TempDir())
	exp := &experience{plan: store.Plan{Queries: []string{"q"}, Rollouts: 1}}
	complete := map[string][]store.Outcome{"q": {{Query: "q", Calls: map[string]int{"researcher": 1}}}}
	for name, id := range map[string]string{"planner": "q/0", "researcher": "q/0/researcher/0"} {
		if _, err := stepsOf(cfg, name).groups(exp, complete); err == nil || !strings.Contains(err.Error(), "trajectory "+id+" as held by this worker") {
			t.Errorf("%s: got error %v, want one that names trajectory %s", name, err, id)
		}
	}
}

// stepsOf returns an agent's steps without a model or a place.
func stepsOf(cfg *config.Config, name string) *steps {
	a := cfg.Agent(name)
	rules := assemble.RulesOf(cfg, a)
	return &steps{common: &common{cfg: cfg, agent: a, name: name, main: a.IsMain()}, rules: rules, normaliser: normaliser{rules: rules}}
}

// TestWaitsDoNotCountAsRollouts: the time between the end of a step's rollouts and the start of its training is not rollout time.
func TestWaitsDoNotCountAsRollouts(t *testing.T) {
	m := onlyMember(t, store.Options{Run: "test", Timeout: time.Second})
	s := &steps{common: &common{name: "researcher", member: m}}
	exp := &experience{clock: &stopwatch{last: time.Now().Add(-time.Hour), laps: map[string]float64{"rollout": 1}}} // an hour ago
	if err := s.step(t.Context(), 0, exp); !errors.As(err, new(*store.TimeoutError)) {
		t.Fatalf("a step without published trajectories: got error %v, want a TimeoutError", err)
	}
	if s := exp.clock.laps["rollout"]; s < 1 || s > time.Hour.Seconds()/2 {
		t.Errorf("rollout time is %.0f s, want about 1 s", s)
	}
}

// TestWaitForOthersIsNotLearning: the time until all agents have published their trajectories counts as agreement.
func TestWaitForOthersIsNotLearning(t *testing.T) {
	shared, err := store.Open(t.Context(), store.Options{Run: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	m, err := shared.Join(t.Context(), "planner", store.JoinRequest{Agents: []string{"planner"}, Offers: []store.Offer{{Version: store.FromStart}}}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave(t.Context())
	s := stepsOf(load(t, t.TempDir()), "planner")
	s.member = m
	phase, plan := store.TrainPhase(0), store.Plan{Queries: []string{"q"}, Rollouts: 1}
	if err := errors.Join(m.Phases.Begin(t.Context(), phase, plan), m.Phases.PublishOutcome(t.Context(), phase, store.Outcome{Query: "q"})); err != nil {
		t.Fatal(err)
	}
	const wait = 200 * time.Millisecond
	published := make(chan error, 1)
	time.AfterFunc(wait, func() { published <- m.Phases.PublishTrajectories(t.Context(), phase, []string{"q/0"}) })
	exp := &experience{plan: plan, clock: newStopwatch()}
	// The step ends with an error after the agreement, because this worker does not have the trajectory.
	if err := s.step(t.Context(), 0, exp); err == nil || !strings.Contains(err.Error(), "as held by this worker") {
		t.Fatalf("got error %v, want one on the missing trajectory", err)
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if got := exp.clock.laps["agree"]; got < wait.Seconds()/2 {
		t.Errorf("the wait of %v counts as %.3f s of agreement", wait, got)
	}
}
