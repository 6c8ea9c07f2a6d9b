package endtoend

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestFoldedRunResumes resumes a run of three steps with folded conversations from its second step. One agent is a
// mixture of experts. Its reports and its final weights equal the uninterrupted run's. The evaluation also folds.
func TestFoldedRunResumes(t *testing.T) {
	smol, err := filepath.Abs("../../testdata/tokenizer/smollm2")
	if err != nil {
		t.Fatal(err)
	}
	sets := []string{"eval.every=3", "cold_start.steps=55", "task.queries_per_step=2", "agents.planner.limits.fold.at=280", "agents.planner.limits.fold.keep=1", "agents.solver.limits.fold.at=300",
		"agents.solver.model={family: qwen3_moe, width: 64, layers: 1, heads: 2, ffn: 128, experts: 4, experts_per_token: 2, expert_ffn: 64, tokenizer: " + smol + "}"}
	whole := t.TempDir()
	wanted := mustTrain(t, wordProblems(t, whole, sets...), trainer.TrainOptions{})
	for _, name := range []string{"planner", "solver"} {
		folds, norms := 0.0, 0.0
		for step := range int64(3) {
			v := wanted.find(t, "step", step+1, name).Values
			folds, norms = folds+v["rows_rewritten"], norms+v["grad_norm"]
			if v["routing_free"] != 0 || v["gap_mean"] > 1e-4 {
				t.Errorf("%s trains rows with weights that differ from the sampler's: %v", name, v)
			}
		}
		if folds == 0 || norms == 0 {
			t.Errorf("%s: %v folds, gradient norms %v", name, folds, norms)
		}
	}
	if v := wanted.find(t, "eval", 3, "planner").Values; v["rows_rewritten"] == 0 {
		t.Errorf("the evaluation does not fold: %v", v)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(archive.CheckpointsOf(dir).StepDir(3)); err != nil {
		t.Fatal(err)
	}
	again := mustTrain(t, wordProblems(t, dir, sets...), trainer.TrainOptions{Resume: true})
	numbers := wanted.numbers()
	maps.Copy(numbers, again.numbers())
	sameNumbers(t, numbers, wanted.numbers())
	sameWeights(t, digests(t, dir, 3), digests(t, whole, 3))
	again.find(t, "step", 3, "planner")
}
