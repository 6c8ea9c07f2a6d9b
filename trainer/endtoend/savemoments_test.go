package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestWithoutSavedMoments checks that with run.save_moments false no checkpoint contains
// AdamW's moments. The run resumes from it and reports the missing moments.
func TestWithoutSavedMoments(t *testing.T) {
	dir, sets := t.TempDir(), []string{"run.save_moments=false", "run.save_dtype=bf16", "agents.researcher.train=false"}
	mustTrain(t, load(t, dir, append(sets, "run.steps=2")...), trainer.TrainOptions{})
	o, err := archive.OpenOptimizer(archive.CheckpointsOf(dir).AgentDir(2, "planner"))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if o.Has("m") || o.Has("v") || !o.Has("master") || o.Step() == 0 {
		t.Errorf("moments %v %v, fp32 weights %v, after %d updates", o.Has("m"), o.Has("v"), o.Has("master"), o.Step())
	}
	seen := mustTrain(t, load(t, dir, append(sets, "run.steps=3")...), trainer.TrainOptions{Resume: true})
	if !strings.Contains(seen.String(), "has no moments (run.save_moments: false)") {
		t.Errorf("no note on the moments:\n%s", seen)
	}
	offers, _, err := archive.CheckpointsOf(dir).Offers()
	if err != nil {
		t.Fatal(err)
	}
	part, _ := offers[0].Agent("planner")
	if lines := ledgerLines(t, filepath.Join(dir, "ledger", "planner.jsonl"), part.Ledger); lines[2].Updates <= lines[1].Updates {
		t.Errorf("%d updates after step 2 and %d after step 3", lines[1].Updates, lines[2].Updates)
	}
	path := func(step int64) string {
		return filepath.Join(archive.CheckpointsOf(dir).AgentDir(step, "researcher"), "model.safetensors")
	}
	older, err := os.Stat(path(2))
	newest, err2 := os.Stat(path(3))
	if err := errors.Join(err, err2); err != nil || !os.SameFile(older, newest) {
		t.Errorf("the weights of an agent that is not trained were written again (%v)", err)
	}
}
