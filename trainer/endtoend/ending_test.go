package endtoend

import (
	"errors"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
)

// If no prompt leaves room for an answer, the run reports the rows in every step, trains nothing and fails.
func TestPromptsTooLong(t *testing.T) {
	seen := &recorder{}
	cfg := load(t, t.TempDir(), append([]string{"run.steps=2", "agents.planner.limits.max_tokens=3", "agents.planner.limits.max_new_tokens=1"}, noColdStart...)...)
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
	for _, want := range []string{"nothing was trained", "no token was sampled in 2 steps", "left no room for an answer"} {
		if !errors.Is(err, trainer.ErrNothingTrained) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if notes := seen.String(); !strings.Contains(notes, "the prompt of train-000000 has ") || !strings.Contains(notes, "a conversation may have 3") {
		t.Errorf("the notes name no row: %s", notes)
	}
	for step := range int64(2) {
		v := seen.find(t, "step", step+1, "planner").Values
		if v["prompts_too_long"] != v["trajectories"] || v["trajectories"] == 0 || v["rollouts_removed"] != 0 || v["lag_max"] != 0 {
			t.Errorf("step %d: %v of %v prompts were too long, %v rollouts removed, lag %v", step+1, v["prompts_too_long"], v["trajectories"], v["rollouts_removed"], v["lag_max"])
		}
	}
}

// TestSubAgentNeverCalled checks that the worker of a sub-agent that was never called ends with a
// warning, but without an error. The main agent's worker, which also learned nothing, ends with an error.
func TestSubAgentNeverCalled(t *testing.T) {
	dir, seen := t.TempDir(), &recorder{}
	sets := append([]string{"run.steps=2", "store.url=" + startRedis(t)}, noColdStart...)
	alone := make(chan error, 1)
	go func() {
		alone <- trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Agents: []string{"researcher"}, Observer: seen})
	}()
	if err := trainer.Train(t.Context(), load(t, dir, sets...), trainer.TrainOptions{Agents: []string{"planner"}, Observer: &recorder{}}); !errors.Is(err, trainer.ErrNothingTrained) {
		t.Errorf("planner: %v", err)
	}
	if err := <-alone; err != nil || !strings.Contains(seen.String(), "it was never called in 2 steps") {
		t.Errorf("researcher: %v, notes %s", err, seen)
	}
}

// If all rewards are equal and the sub-agent is never called, the run reports both and fails,
// even after a cold start. A cold start without steps succeeds.
func TestNothingTrained(t *testing.T) {
	seen := &recorder{}
	cfg := load(t, t.TempDir(), append([]string{"run.steps=2"}, noColdStart...)...)
	err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen})
	for _, want := range []string{"planner: researcher was never called in 2 steps", "planner: no update was made in 2 steps: in every group all rewards were equal",
		"researcher: it was never called in 2 steps"} {
		if !errors.Is(err, trainer.ErrNothingTrained) || strings.Count(err.Error(), want) != 1 || strings.Contains(seen.String(), strings.SplitAfter(want, ": ")[1]) {
			t.Errorf("got %v, want %q once in it, but not in the notes %s", err, want, seen)
		}
	}
	if strings.Contains(err.Error(), "researcher: no update") {
		t.Errorf("the error reports equal rewards of an agent without rewards: %v", err)
	}
	const hopeless = "task.research.random=1" // the answers taught by the cold start are always wrong
	taught := &recorder{}
	err = trainer.Train(t.Context(), load(t, t.TempDir(), "run.steps=2", "eval.before=false", hopeless, "agents.planner.cold_start.steps=1", "agents.researcher.cold_start.steps=1",
		"agents.planner.cold_start.optimizer.warmup=0", "agents.researcher.cold_start.optimizer.warmup=0"), trainer.TrainOptions{Observer: taught})
	if want := "planner: no update was made in 2 steps: in every group all rewards were equal"; !errors.Is(err, trainer.ErrNothingTrained) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a longer cold start") {
		t.Errorf("after a cold start that was too short: %v, want %q in it", err, want)
	}
	if err := trainer.Train(t.Context(), load(t, t.TempDir(), "run.steps=0", "agents.planner.optimizer.warmup=0", "agents.researcher.optimizer.warmup=0"), trainer.TrainOptions{Observer: &recorder{}}); err != nil {
		t.Errorf("only a cold start: %v", err)
	}
}
