package endtoend

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// TestRoundedFoldersResumeExactly interrupts a run with folders in bf16 in its third step and resumes it from the checkpoint of the second.
// Its float32 weights equal the weights of a run with folders in float32. Evaluating its last checkpoint gives the run's own numbers.
func TestRoundedFoldersResumeExactly(t *testing.T) {
	wholeDir, wantNumbers := whole(t)
	dir := t.TempDir()
	first := &recorder{}
	err := trainer.Train(interrupt(t, first, "researcher", "step-2", dir), load(t, dir, "run.steps=4", "run.save_dtype=bf16"), trainer.TrainOptions{Observer: first})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	second := mustTrain(t, load(t, dir, "run.steps=4", "run.save_dtype=bf16"), trainer.TrainOptions{Resume: true})
	numbers := first.numbers()
	maps.Copy(numbers, second.numbers())
	sameNumbers(t, numbers, wantNumbers)
	for _, agent := range []string{"planner", "researcher"} {
		sameMaster(t, archive.CheckpointsOf(dir).AgentDir(4, agent), archive.CheckpointsOf(wholeDir).AgentDir(4, agent))
	}
	said := map[int]string{}
	for _, size := range []int{1, 2} { // a rank that does not learn reads the fp32 weights itself
		evaluated, err := trainer.Evaluate(t.Context(), load(t, dir, onRanks(size, "run.steps=4", "run.save_dtype=bf16")...), trainer.EvaluateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range evaluated.Records {
			want := second.find(t, "eval", 4, got.Agent).Values
			for _, name := range []string{"tokens", "sampled_tokens", "format_valid"} {
				if got.Values[name] != want[name] || want["tokens"] == 0 {
					t.Errorf("%s of %s: %v evaluated with %d devices, but %v in the run", name, got.Agent, got.Values[name], size, want[name])
				}
			}
			said[size] += readFile(t, filepath.Join(archive.TrajectoriesDir(evaluated.Dir), "eval-4", got.Agent+".jsonl"))
		}
	}
	if said[1] != said[2] || said[1] == "" {
		t.Error("an evaluation on two devices differs from one on one device")
	}
}

// TestSavedInTheTypeOfTheInput starts from folders in bf16 and in fp16. The run's folders have
// the same type, also for an agent that does not learn.
func TestSavedInTheTypeOfTheInput(t *testing.T) {
	before := t.TempDir()
	mustTrain(t, load(t, before, append(noColdStart, "run.steps=1")...), trainer.TrainOptions{})
	for _, dtype := range []weights.DType{weights.BF16, weights.F16} {
		dir := t.TempDir()
		sets := append(noColdStart, "run.steps=1", "agents.researcher.train=false")
		for _, agent := range []string{"planner", "researcher"} {
			folder := filepath.Join(t.TempDir(), agent)
			rewrite(t, archive.CheckpointsOf(before).AgentDir(1, agent), folder, dtype)
			sets = append(sets, "agents."+agent+".model="+folder)
		}
		mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{})
		for _, agent := range []string{"planner", "researcher"} {
			if got := openWeights(t, archive.CheckpointsOf(dir).AgentDir(1, agent)).DType(); got != dtype {
				t.Errorf("%s was %s and is saved as %s", agent, dtype, got)
			}
		}
	}
}

// rewrite writes a copy of an agent's folder in another type.
func rewrite(t *testing.T, from, to string, dtype weights.DType) {
	t.Helper()
	src, extra := openWeights(t, from), map[string][]byte{}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		extra[name] = text
	}
	shapes := map[string][]int64{}
	for _, tensor := range src.Config().Layout().Tensors() {
		shapes[tensor.Name] = tensor.Shape
	}
	err := weights.HF{Config: src.Config(), Read: func(name string, dst []float32) error { return src.Read(name, 0, shapes[name][0], dst) }}.WriteFolder(to, dtype, extra)
	if err != nil {
		t.Fatal(err)
	}
}

// sameMaster checks that the float32 master weights of a folder in bf16 equal the weights of a
// folder in float32, and that the bf16 weights are close to them.
func sameMaster(t *testing.T, rounded, exact string) {
	t.Helper()
	master, err := archive.OpenOptimizer(rounded)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	bf16, fp32 := openWeights(t, rounded), openWeights(t, exact)
	if bf16.DType() != weights.BF16 || fp32.DType() != weights.F32 {
		t.Errorf("%s is %s, %s is %s", rounded, bf16.DType(), exact, fp32.DType())
	}
	for _, tensor := range fp32.Config().Layout().Tensors() {
		want, got, near := make([]float32, tensor.Numel()), make([]float32, tensor.Numel()), make([]float32, tensor.Numel())
		err := errors.Join(fp32.Read(tensor.Name, 0, tensor.Shape[0], want), bf16.Read(tensor.Name, 0, tensor.Shape[0], near),
			master.Read("master", tensor.Offset, got))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if got[i] != want[i] || near[i]-want[i] > max(want[i], -want[i])/256 || want[i]-near[i] > max(want[i], -want[i])/256 {
				t.Fatalf("%s: %s[%d] is %v (bf16: %v), want %v", filepath.Base(rounded), tensor.Name, i, got[i], near[i], want[i])
			}
		}
	}
}

func openWeights(t *testing.T, dir string) *weights.Source {
	t.Helper()
	src, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}
