package endtoend

import (
	"context"
	"errors"
	"maps"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestFrozenInBF16ResumesExactly checks that an agent that is not trained and is held only in
// bf16 takes part, is saved, and keeps its bits after a resume.
func TestFrozenInBF16ResumesExactly(t *testing.T) {
	sets := append(noColdStart, "run.steps=3", "agents.researcher.train=false", "agents.researcher.engine.dtype=bf16")
	wholeDir, dir := t.TempDir(), t.TempDir()
	want := mustTrain(t, load(t, wholeDir, sets...), trainer.TrainOptions{}).numbers()
	first := &recorder{}
	err := trainer.Train(interrupt(t, first, "planner", "step-2", dir), load(t, dir, sets...), trainer.TrainOptions{Observer: first})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	numbers := first.numbers()
	maps.Copy(numbers, mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{Resume: true}).numbers())
	sameNumbers(t, numbers, want)
	if !maps.Equal(digests(t, dir, 3), digests(t, wholeDir, 3)) {
		t.Error("the files differ from the uninterrupted run's")
	}
	frozen := openWeights(t, archive.CheckpointsOf(dir).AgentDir(3, "researcher"))
	for _, tensor := range frozen.Config().Layout().Tensors() {
		values := make([]float32, tensor.Numel())
		if err := frozen.Read(tensor.Name, 0, tensor.Shape[0], values); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if math.Float32bits(v)&0xffff != 0 {
				t.Fatalf("%s has %v, which is not a bf16 number", tensor.Name, v)
			}
		}
	}
}
