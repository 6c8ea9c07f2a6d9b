package endtoend

import (
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/term"
)

// watchingTerm has the gradient 0. It keeps what it saw.
type watchingTerm struct {
	mu        sync.Mutex
	sequences []term.Sequence
	steps     map[int64]int // micro-batches
	updates   int
}

func (w *watchingTerm) Loss(_ *torch.Scope, b term.Batch) (*torch.Tensor, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sequences = append(w.sequences, b.Sequences...)
	w.steps[b.Minibatch.Step]++
	return b.LogProb.Sum().Scale(0), nil
}

func (w *watchingTerm) Updated(*torch.Scope, term.Update) (map[string]float64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.updates++
	return map[string]float64{"seen": float64(len(w.sequences))}, nil
}

// TestLossTerm trains with a loss term on the planner: it sees every trajectory of each step with its reward.
func TestLossTerm(t *testing.T) {
	w := &watchingTerm{steps: map[int64]int{}}
	cfg := load(t, t.TempDir(), "run.steps=2", "grpo.epochs=1", "grpo.minibatches=1", "eval.every=0")
	seen := mustTrain(t, cfg, trainer.TrainOptions{Terms: map[string]term.Term{"planner": w}})
	mean := 0.0
	for _, step := range []int64{1, 2} {
		r := seen.find(t, "step", step, "planner")
		if _, ok := r.Values["term_loss"]; !ok || r.Values["term_seen"] != float64(16*step) {
			t.Errorf("step %d: %v", step, r.Values)
		}
		if _, ok := seen.find(t, "step", step, "researcher").Values["term_loss"]; ok {
			t.Error("the researcher has the planner's term")
		}
		mean += r.Values["reward_mean"] / 2
	}
	if w.updates != 2 || len(w.steps) != 2 || w.steps[0] == 0 || w.steps[1] == 0 {
		t.Errorf("%d updates, micro-batches by step: %v", w.updates, w.steps)
	}
	for _, q := range w.sequences {
		mean -= q.Reward / float64(len(w.sequences))
	}
	if math.Abs(mean) > 1e-9 {
		t.Errorf("the mean reward differs from the record's by %v", mean)
	}
}

func TestLossTermsRefused(t *testing.T) {
	for _, c := range []struct {
		want, agent string
		sets        []string
		term        term.Term
	}{
		{"the team has no agent clerk", "clerk", nil, &watchingTerm{}},
		{"the loss term of agent planner is nil", "planner", nil, nil},
		{"the loss term of agent planner is nil", "planner", nil, (*watchingTerm)(nil)},
		{"agents.researcher: the agent is not trained", "researcher", []string{"agents.researcher.train=false"}, &watchingTerm{}},
		{"agents.planner.devices: an agent with several", "planner", []string{"agents.planner.devices=[cpu,cpu]"}, &watchingTerm{}},
	} {
		err := trainer.Train(t.Context(), load(t, t.TempDir(), c.sets...), trainer.TrainOptions{Terms: map[string]term.Term{c.agent: c.term}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}
