package trainer

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/store"
)

// TestLag lets two workers roll out ahead of what they train: they do, by no more than they may, every step is made,
// and evaluations are of the version they say.
func TestLag(t *testing.T) {
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	g, ctx := errgroup.WithContext(t.Context())
	for _, name := range []string{"planner", "researcher"} {
		g.Go(func() error {
			cfg := load(t, dir, "run.steps=6", "eval.every=3", "eval.before=false", "grpo.max_lag=2", "grpo.old=recomputed", "grpo.tis_cap=2", "run.threads=1", "store.url="+url)
			return Train(ctx, cfg, Options{Agents: []string{name}, Observer: seen})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatalf("%v\nnotes: %s", err, seen)
	}
	for _, name := range []string{"planner", "researcher"} {
		ahead := 0.0
		for step := int64(1); step <= 6; step++ {
			v := seen.find(t, "step", step, name).Values
			if v["lag_max"] > 2 || v["trajectories_stale"] != 0 || v["rollouts_removed"] != 0 {
				t.Errorf("%s, step %d: lag %v, %v stale, %v removed", name, step, v["lag_max"], v["trajectories_stale"], v["rollouts_removed"])
			}
			ahead = max(ahead, v["lag_max"])
			if gap, known := v["gap_mean"]; known && !(gap < 1e-5) {
				t.Errorf("%s, step %d: gap %v between sampler and trainer; older weights are no gap", name, step, gap)
			}
		}
		if ahead == 0 {
			t.Errorf("%s never rolled out ahead", name)
		}
		seen.find(t, "eval", 3, name)
		seen.find(t, "eval", 6, name)
	}
}

// TestExactLag: the age of a trajectory follows from its step, and the run is a function of its seed.
func TestExactLag(t *testing.T) {
	run := func() *recorder {
		seen := &recorder{}
		cfg := load(t, t.TempDir(), "run.steps=8", "eval.every=5", "eval.before=false", "grpo.max_lag=2", "grpo.exact_lag=true",
			"grpo.old=recomputed", "grpo.tis_cap=2", "run.threads=2", "run.deterministic=true")
		if err := Train(t.Context(), cfg, Options{Observer: seen}); err != nil {
			t.Fatalf("%v\nnotes: %s", err, seen)
		}
		return seen
	}
	one, two := run(), run()
	for _, name := range []string{"planner", "researcher"} {
		for i, age := range []float64{0, 1, 2, 2, 2, 0, 1, 2} { // nothing is rolled out ahead of the evaluation after step 5
			a, b := one.find(t, "step", int64(i+1), name).Values, two.find(t, "step", int64(i+1), name).Values
			if a["lag_mean"] != age || a["lag_max"] != age || a["rollouts_removed"] != 0 {
				t.Errorf("%s, step %d: lag %v, at most %v, %v removed; want %v", name, i+1, a["lag_mean"], a["lag_max"], a["rollouts_removed"], age)
			}
			for _, key := range []string{"tokens", "reward_mean", "loss", "grad_norm", "tis_mean"} {
				if _, there := a[key]; a[key] != b[key] || !there {
					t.Errorf("%s, step %d: %s is %v, then %v", name, i+1, key, a[key], b[key])
				}
			}
		}
	}
}

// onlyMember is the one member, researcher, of a run whose store lasts as long as the test.
func onlyMember(t *testing.T, o store.Options) *store.Member {
	t.Helper()
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Join(t.Context(), "researcher", store.Hello{Agents: []string{"researcher"}, Offers: []store.Offer{{Version: store.Afresh}}}, func(string) {})
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	t.Cleanup(func() {
		m.Leave(context.WithoutCancel(t.Context()))
		s.Close()
	})
	return m
}

// TestWaitsAreNoRollouts: that a phase which was rolled out ahead waits to be trained is no part of its rollouts' time.
func TestWaitsAreNoRollouts(t *testing.T) {
	m := onlyMember(t, store.Options{Run: "test", Timeout: time.Second})
	s := &steps{seat: &seat{name: "researcher", member: m}}
	held := &experience{clock: &stopwatch{last: time.Now().Add(-time.Hour), laps: map[string]float64{"rollout": 1}}} // an hour ago
	if err := s.step(t.Context(), 0, held); !errors.As(err, new(*store.TimeoutError)) {
		t.Fatalf("a step in which nobody says what it holds: %v", err)
	}
	if s := held.clock.laps["rollout"]; s < 1 || s > time.Hour.Seconds()/2 {
		t.Errorf("rollouts of one second took %.0f s", s)
	}
}

// TestStaleTrajectories: what is older than the run allows is given up before anybody counts on it.
func TestStaleTrajectories(t *testing.T) {
	cfg := load(t, t.TempDir(), "grpo.max_lag=1", "grpo.old=recomputed", "grpo.tis_cap=2")
	m := onlyMember(t, store.Options{Run: "test"})
	ro := &rollouts{seat: &seat{cfg: cfg, agent: cfg.Agent("researcher"), name: "researcher", member: m}}
	held := &experience{trajectories: map[string]*trajectory{
		"old": {Trajectory: agent.Trajectory{ID: "old", Version: 3}}, "new": {Trajectory: agent.Trajectory{ID: "new", Version: 4}},
	}}
	if err := ro.publishHeld(t.Context(), 5, held); err != nil {
		t.Fatal(err)
	}
	published, err := m.Trajectories(t.Context(), store.Train(5))
	if err != nil {
		t.Fatal(err)
	}
	if ids := published["researcher"]; len(ids) != 1 || ids[0] != "new" || held.stale != 1 || held.trajectories["old"] != nil {
		t.Errorf("published %v, %d stale, kept %v", ids, held.stale, held.trajectories)
	}
}
