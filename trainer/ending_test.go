package trainer

import (
	"errors"
	"strings"
	"testing"
)

// A run in which no prompt leaves room for an answer says which rows it was, in every step, trains nothing and fails.
func TestPromptsTooLong(t *testing.T) {
	seen := &recorder{}
	cfg := load(t, t.TempDir(), append([]string{"run.steps=2", "agents.planner.limits.max_tokens=3", "agents.planner.limits.max_new_tokens=1"}, untaught...)...)
	err := Train(t.Context(), cfg, Options{Observer: seen})
	for _, want := range []string{"nothing was trained", "no token was sampled in 2 steps", "left no room for an answer"} {
		if !errors.Is(err, ErrNothingTrained) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if notes := seen.String(); !strings.Contains(notes, "the prompt of train-000000 has ") || !strings.Contains(notes, "a conversation may have 3") {
		t.Errorf("no row is named in %s", notes)
	}
	for step := range int64(2) {
		v := seen.find(t, "step", step+1, "planner").Values
		if v["prompts_too_long"] != v["trajectories"] || v["trajectories"] == 0 || v["rollouts_removed"] != 0 || v["lag_max"] != 0 {
			t.Errorf("step %d: %v of %v prompts were too long, %v rollouts removed, lag %v", step+1, v["prompts_too_long"], v["trajectories"], v["rollouts_removed"], v["lag_max"])
		}
	}
}

// TestSubAgentNeverCalled: the worker of a sub-agent that was never called ends without an error, and with a warning. The main agent's worker,
// which learned nothing either, ends with an error.
func TestSubAgentNeverCalled(t *testing.T) {
	dir, seen := t.TempDir(), &recorder{}
	sets := append([]string{"run.steps=2", "store.url=" + startRedis(t)}, untaught...)
	alone := make(chan error, 1)
	go func() {
		alone <- Train(t.Context(), load(t, dir, sets...), Options{Agents: []string{"researcher"}, Observer: seen})
	}()
	if err := Train(t.Context(), load(t, dir, sets...), Options{Agents: []string{"planner"}, Observer: &recorder{}}); !errors.Is(err, ErrNothingTrained) {
		t.Errorf("planner: %v", err)
	}
	if err := <-alone; err != nil || !strings.Contains(seen.String(), "it was never called in 2 steps") {
		t.Errorf("researcher: %v, notes %s", err, seen)
	}
}

// A run in which every reward is equal and no sub-agent is called says both and fails, also after a cold start; a cold start without
// steps ends well.
func TestNothingTrained(t *testing.T) {
	seen := &recorder{}
	cfg := load(t, t.TempDir(), append([]string{"run.steps=2"}, untaught...)...)
	err := Train(t.Context(), cfg, Options{Observer: seen})
	for _, want := range []string{"planner: researcher was never called in 2 steps", "planner: no update was made in 2 steps: in every group all rewards were equal",
		"researcher: it was never called in 2 steps"} {
		if !errors.Is(err, ErrNothingTrained) || strings.Count(err.Error(), want) != 1 || strings.Contains(seen.String(), strings.SplitAfter(want, ": ")[1]) {
			t.Errorf("got %v, want %q once in it, and not in the notes %s", err, want, seen)
		}
	}
	if strings.Contains(err.Error(), "researcher: no update") {
		t.Errorf("rewards are said to have been equal of an agent that had none: %v", err)
	}
	const hopeless = "task.research.random=1" // what the cold start then teaches is never right
	taught := &recorder{}
	err = Train(t.Context(), load(t, t.TempDir(), "run.steps=2", "eval.before=false", hopeless, "agents.planner.cold_start.steps=1", "agents.researcher.cold_start.steps=1",
		"agents.planner.cold_start.optimizer.warmup=0", "agents.researcher.cold_start.optimizer.warmup=0"), Options{Observer: taught})
	if want := "planner: no update was made in 2 steps: in every group all rewards were equal"; !errors.Is(err, ErrNothingTrained) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a longer cold start") {
		t.Errorf("after a cold start that was too short: %v, want %q in it", err, want)
	}
	if err := Train(t.Context(), load(t, t.TempDir(), "run.steps=0", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0"), Options{Observer: &recorder{}}); err != nil {
		t.Errorf("a cold start alone: %v", err)
	}
}
