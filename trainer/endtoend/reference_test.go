package endtoend

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// withKL adds a KL term that affects learning, and makes one update per step.
var withKL = []string{"run.steps=3", "grpo.epochs=1", "grpo.minibatches=1", "eval.before=false", "eval.every=0", "eval.queries=2", "grpo.kl=k3", "grpo.kl_coef=0.5"}

// kl0 bounds the KL divergence of equal weights. Two forward passes that pack sequences differently give log-probs 1e-6 apart.
const kl0 = 1e-11

// TestReference checks that the KL term uses the policy after or before the cold start, as
// configured. Both agents begin with random weights.
func TestReference(t *testing.T) {
	for _, c := range []struct {
		reference string
		taught    bool // the first step begins at the reference
	}{{"auto", true}, {"cold_start", true}, {"start", false}} {
		seen := mustTrain(t, load(t, t.TempDir(), append(withKL, "run.steps=2", "grpo.reference="+c.reference)...), trainer.TrainOptions{})
		for _, name := range []string{"planner", "researcher"} {
			first := seen.find(t, "step", 1, name).Values["ref_kl_mean"]
			if c.taught && first > kl0 || !c.taught && first < 0.1 {
				t.Errorf("%s, %s: the first step's KL is %v", c.reference, name, first)
			}
			if second := seen.find(t, "step", 2, name).Values["ref_kl_mean"]; second <= kl0 {
				t.Errorf("%s, %s: the second step's KL is %v", c.reference, name, second)
			}
		}
	}
}

// TestKLWithoutWeightIsNoted checks that a run that measures the KL divergence with weight 0 warns about it for each agent.
func TestKLWithoutWeightIsNoted(t *testing.T) {
	for coef, want := range map[string]bool{"0": true, "0.5": false} {
		seen := mustTrain(t, load(t, t.TempDir(), append(withKL, "run.steps=1", "grpo.kl_coef="+coef)...), trainer.TrainOptions{})
		for _, name := range []string{"planner", "researcher"} {
			if got := strings.Contains(seen.String(), name+": warning: grpo.kl k3 has the weight 0 (grpo.kl_coef)"); got != want {
				t.Errorf("coefficient %s: warning for %s: %v", coef, name, got)
			}
		}
	}
}

// TestReferenceWithoutColdStart checks that without a cold start the KL term uses the run's
// initial random weights, which a resume creates again. The researcher is never called.
func TestReferenceWithoutColdStart(t *testing.T) {
	dir, sets := t.TempDir(), append(withKL, "cold_start.demonstrations=none", "grpo.entropy_coef=0.1")
	mustTrain(t, load(t, dir, append(sets, "run.steps=1")...), trainer.TrainOptions{})
	resumed := mustTrain(t, load(t, dir, append(sets, "run.steps=2")...), trainer.TrainOptions{Resume: true}).find(t, "step", 2, "planner").Values
	whole := mustTrain(t, load(t, t.TempDir(), append(sets, "run.steps=2")...), trainer.TrainOptions{})
	first, second := whole.find(t, "step", 1, "planner").Values["ref_kl_mean"], whole.find(t, "step", 2, "planner").Values["ref_kl_mean"]
	if first > kl0 || second <= kl0 || resumed["ref_kl_mean"] != second {
		t.Errorf("KL %v, then %v, but %v if the run was resumed between the steps", first, second, resumed["ref_kl_mean"])
	}
}

// TestReferenceSurvives interrupts a run with a KL term in its last step and resumes it. It ends with the same bits as an
// uninterrupted run, although its checkpoints are rounded to bf16. Without the exact weights of the reference it does not resume.
func TestReferenceSurvives(t *testing.T) {
	wholeDir := t.TempDir()
	want := mustTrain(t, load(t, wholeDir, withKL...), trainer.TrainOptions{})
	dir, seen := t.TempDir(), &recorder{}
	cfg := load(t, dir, append(withKL, "run.save_dtype=bf16")...)
	if err := trainer.Train(interrupt(t, seen, "researcher", "step-2", dir), cfg, trainer.TrainOptions{Observer: seen}); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	kept := filepath.Join(dir, "reference", "planner", "model.safetensors")
	data, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		harm func() error
		want string
	}{
		{func() error { return os.Remove(kept) }, "model.safetensors: is missing"},
		{func() error {
			altered := append([]byte{}, data...)
			altered[len(altered)-3] ^= 1
			return os.WriteFile(kept, altered, 0o644)
		}, "model.safetensors: was changed"},
	} {
		if err := c.harm(); err != nil {
			t.Fatal(err)
		}
		err := trainer.Train(t.Context(), cfg, trainer.TrainOptions{Observer: seen, Resume: true})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "restore the folder") {
			t.Errorf("resumed: %v, want %s", err, c.want)
		}
	}
	if err := os.WriteFile(kept, data, 0o644); err != nil {
		t.Fatal(err)
	}
	got := mustTrain(t, cfg, trainer.TrainOptions{Resume: true})
	for _, name := range []string{"planner", "researcher"} {
		if got, want := got.find(t, "step", 3, name).Values["ref_kl_mean"], want.find(t, "step", 3, name).Values["ref_kl_mean"]; got != want || got <= kl0 {
			t.Errorf("%s: KL %v, but %v in an uninterrupted run", name, got, want)
		}
		sameMaster(t, archive.CheckpointsOf(dir).AgentDir(3, name), archive.CheckpointsOf(wholeDir).AgentDir(3, name))
	}
}
