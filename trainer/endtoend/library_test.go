package endtoend

import (
	"io"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
)

// TestTaskFromGoProgram trains and evaluates a Go program's own task, without an observer. The numbers equal the ones of the same task in a
// configuration.
func TestTaskFromGoProgram(t *testing.T) {
	dir := t.TempDir()
	cfg := load(t, dir, "task.kind=go", "run.steps=1", "eval.every=0", "agents.planner.model.tokenizer=task")
	own := openTask(t, load(t, t.TempDir()))
	if err := trainer.TrainAndReport(t.Context(), cfg, trainer.TrainOptions{Task: own}, io.Discard); err != nil {
		t.Fatal(err)
	}
	e, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{CheckpointOptions: trainer.CheckpointOptions{Task: own}})
	if err != nil || len(e.Records) != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	same := load(t, t.TempDir(), "run.steps=1", "eval.every=0")
	want := mustTrain(t, same, trainer.TrainOptions{}).find(t, "eval", 1, "planner").Values["accuracy"]
	if got, err := e.Accuracy(); err != nil || got != want {
		t.Errorf("accuracy %v (%v), but %v if the configuration names the task", got, err, want)
	}
	if r, ok := e.Record("researcher"); !ok || r.Agent != "researcher" {
		t.Errorf("record of the researcher: %+v, %v", r, ok)
	}
	for _, err := range []error{
		trainer.Train(t.Context(), cfg, trainer.TrainOptions{Resume: true}),
		func() error { _, err := trainer.Evaluate(t.Context(), cfg, trainer.EvaluateOptions{}); return err }(),
	} {
		if err == nil || !strings.Contains(err.Error(), "task.kind: the task go must come from a Go program") {
			t.Errorf("without the program's task: %v", err)
		}
	}
}
