package endtoend

import (
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestLag lets two workers roll out ahead of their training. They do so within the limit, every
// step completes, and evaluations use the right version.
func TestLag(t *testing.T) {
	dir, url, seen := t.TempDir(), startRedis(t), &recorder{}
	g, ctx := errgroup.WithContext(t.Context())
	for _, name := range []string{"planner", "researcher"} {
		g.Go(func() error {
			cfg := load(t, dir, "run.steps=6", "eval.every=3", "eval.before=false", "grpo.max_lag=2", "grpo.old=recomputed", "grpo.tis_cap=2", "run.threads=1", "store.url="+url)
			return trainer.Train(ctx, cfg, trainer.TrainOptions{Agents: []string{name}, Observer: seen})
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
				t.Errorf("%s, step %d: gap %v between sampler and trainer; older weights must not count", name, step, gap)
			}
		}
		if ahead == 0 {
			t.Errorf("%s never rolled out ahead", name)
		}
		seen.find(t, "eval", 3, name)
		seen.find(t, "eval", 6, name)
	}
}

// TestExactLag checks that the age of a trajectory depends only on its step, and the run's results only on its seed.
func TestExactLag(t *testing.T) {
	run := func() *recorder {
		seen := &recorder{}
		cfg := load(t, t.TempDir(), "run.steps=8", "eval.every=5", "eval.before=false", "grpo.max_lag=2", "grpo.exact_lag=true",
			"grpo.old=recomputed", "grpo.tis_cap=2", "run.threads=2", "run.deterministic=true")
		if err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen}); err != nil {
			t.Fatalf("%v\nnotes: %s", err, seen)
		}
		return seen
	}
	one, two := run(), run()
	for _, name := range []string{"planner", "researcher"} {
		for i, age := range []float64{0, 1, 2, 2, 2, 0, 1, 2} { // the evaluation after step 5 waits for all earlier rollouts
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
