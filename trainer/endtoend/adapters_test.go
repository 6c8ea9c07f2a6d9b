package endtoend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/mgrpo/mgrpo/trainer"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/run/memory"
	"github.com/mgrpo/mgrpo/trainer/team/archive"
)

// withAdapters trains small adapters of both agents and leaves the models unchanged, with a KL term.
var withAdapters = append(slices.Clone(withKL), "agents.planner.lora.r=4", "agents.researcher.lora.r=3", "agents.researcher.lora.alpha=6",
	"agents.researcher.lora.rslora=true", "agents.researcher.lora.targets=[q_proj, v_proj, down_proj]", "agents.planner.lora.init=gaussian")

// TestAdaptersResume interrupts and resumes a run that trains adapters, with a cold start and a KL term. It ends with the same bits as an
// uninterrupted run. A checkpoint contains the adapters and their optimizer, but no base weights.
func TestAdaptersResume(t *testing.T) {
	for _, reference := range []string{"cold_start", "start"} {
		sets := append(slices.Clone(withAdapters), "grpo.reference="+reference)
		wholeDir, dir, first := t.TempDir(), t.TempDir(), &recorder{}
		want := mustTrain(t, load(t, wholeDir, sets...), trainer.TrainOptions{})
		if err := trainer.Train(interrupt(t, first, "planner", "step-2", dir), load(t, dir, sets...), trainer.TrainOptions{Observer: first}); !errors.Is(err, context.Canceled) {
			t.Fatalf("interrupted: %v", err)
		}
		numbers := first.numbers()
		maps.Copy(numbers, mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{Resume: true}).numbers())
		sameNumbers(t, numbers, want.numbers())
		sameWeights(t, digests(t, dir, 3), digests(t, wholeDir, 3))
		if kl := want.find(t, "step", 1, "planner").Values["ref_kl_mean"]; (kl <= kl0) != (reference == "cold_start") {
			t.Errorf("%s: the first step's KL is %v", reference, kl)
		}
		if kl := want.find(t, "step", 3, "planner").Values["ref_kl_mean"]; kl <= kl0 {
			t.Errorf("%s: the last step's KL is %v", reference, kl)
		}
		for _, agent := range []string{"planner", "researcher"} {
			folder := archive.CheckpointsOf(dir).AgentDir(3, agent)
			files, err := filepath.Glob(filepath.Join(folder, "*model*.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) != 1 || filepath.Base(files[0]) != "adapter_model.safetensors" {
				t.Errorf("%s holds %v, want only an adapter", folder, files)
			}
		}
	}
}

// TestRunStartsFromAdapter starts a run from another run's adapters.
func TestRunStartsFromAdapter(t *testing.T) {
	before, dir := t.TempDir(), t.TempDir()
	mustTrain(t, load(t, before, append(slices.Clone(withAdapters), "run.steps=1")...), trainer.TrainOptions{})
	sets := append(append(slices.Clone(noColdStart), withKL...), "run.steps=1")
	for _, agent := range []string{"planner", "researcher"} {
		sets = append(sets, "agents."+agent+".lora.init="+archive.CheckpointsOf(before).AgentDir(1, agent))
	}
	seen := mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{})
	if kl := seen.find(t, "step", 1, "planner").Values["ref_kl_mean"]; kl > kl0 {
		t.Errorf("the run does not begin at its reference: KL %v", kl)
	}
	evaluated, err := trainer.Evaluate(t.Context(), load(t, dir, sets...), trainer.EvaluateOptions{})
	if err != nil || len(evaluated.Records) == 0 {
		t.Errorf("evaluating adapters: %v", err)
	}
}

// With adapters, the plan counts only the adapters' gradients and moments. A KL term against the cold start needs a copy of the
// adapters instead of a second model.
func TestAdaptersNeedLessMemory(t *testing.T) {
	whole, err := assemble.MemoryNeeds(load(t, t.TempDir(), withKL...), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	small, err := assemble.MemoryNeeds(load(t, t.TempDir(), withAdapters...), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range small {
		adapters := n.Of(memory.Adapters)
		if adapters == 0 || n.Of(memory.Moments) != 2*adapters || n.Of(memory.Gradients) != adapters || n.Of(memory.Snapshot) != 3*adapters ||
			n.Of(memory.Reference) != adapters || n.Of(memory.Weights) != whole[i].Of(memory.Weights) || n.Files != 3*adapters {
			t.Errorf("%v, files %d", n, n.Files)
		}
	}
}

// oneBase returns settings that make both agents adapt one model. The model is a planner after
// its cold start, which delegates, so the researcher has trajectories in every run.
func oneBase(t *testing.T) []string {
	t.Helper()
	before := t.TempDir()
	mustTrain(t, load(t, before, "run.steps=1", "eval.before=false", "eval.every=0", "eval.queries=2"), trainer.TrainOptions{})
	model := archive.CheckpointsOf(before).AgentDir(1, "planner")
	return append(slices.Clone(withAdapters), "agents.planner.model="+model, "agents.researcher.model="+model)
}

// TestOneBase trains two adapters of one model. One process holds the model once and samples for both in one
// batch; with two processes, each has its own model. Both runs end with the same bits and the same ledgers.
func TestOneBase(t *testing.T) {
	sets, url := oneBase(t), startRedis(t)
	dir := t.TempDir()
	alone := mustTrain(t, load(t, dir, sets...), trainer.TrainOptions{})
	if v := alone.find(t, "step", 2, "planner").Values["grad_norm"]; v == 0 {
		t.Error("the planner learned nothing")
	}
	apart, seen := t.TempDir(), &recorder{}
	var g errgroup.Group
	for _, name := range []string{"researcher", "planner"} {
		g.Go(func() error {
			return trainer.Train(t.Context(), load(t, apart, append(slices.Clone(sets), "store.url="+url, "run.name=apart")...), trainer.TrainOptions{Agents: []string{name}, Observer: seen})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	sameWeights(t, digests(t, apart, 3), digests(t, dir, 3))
	sameNumbers(t, seen.numbers(), alone.numbers())
	if got, want := ledgers(t, apart, 3), ledgers(t, dir, 3); !maps.Equal(got, want) || len(want) != 2 {
		t.Errorf("ledgers %v, but %v in one process", got, want)
	}

	needs, err := assemble.MemoryNeeds(load(t, t.TempDir(), sets...), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if needs[0].Shares || !needs[1].Shares || needs[0].Of(memory.Weights) == 0 || needs[1].Of(memory.Weights) != 0 {
		t.Errorf("%v; %v", needs[0], needs[1])
	}
}

// ledgers returns the marks of the agents' ledgers at a step.
func ledgers(t *testing.T, dir string, step int64) map[string]archive.LedgerMark {
	t.Helper()
	m, err := archive.Verify(archive.CheckpointsOf(dir).StepDir(step))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]archive.LedgerMark{}
	for _, a := range m.Agents {
		out[a.Name] = a.Ledger
	}
	return out
}

// TestOneBaseLag rolls out ahead with one base model: one agent's learner trains while both agents sample in one batch.
// The sampler and the trainer use the same weights, and no trajectory exceeds the maximum age, on one device and on two.
func TestOneBaseLag(t *testing.T) {
	sets := append(oneBase(t), "run.steps=3", "grpo.max_lag=2", "grpo.old=recomputed", "grpo.tis_cap=2", "run.threads=1")
	for _, size := range []int{1, 2} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { samplesAhead(t, onRanks(size, sets...)) })
	}
}

func samplesAhead(t *testing.T, sets []string) {
	seen := mustTrain(t, load(t, t.TempDir(), sets...), trainer.TrainOptions{})
	for _, name := range []string{"planner", "researcher"} {
		compared, learned := 0, 0.0
		for step := int64(1); step <= 3; step++ {
			v := seen.find(t, "step", step, name).Values
			if v["lag_max"] > 2 || v["trajectories_stale"] != 0 || v["rollouts_removed"] != 0 {
				t.Errorf("%s, step %d: lag %v, %v stale, %v removed", name, step, v["lag_max"], v["trajectories_stale"], v["rollouts_removed"])
			}
			learned = max(learned, v["grad_norm"])
			if gap, known := v["gap_mean"]; known {
				compared++
				if !(gap < 1e-5) {
					t.Errorf("%s, step %d: gap %v between sampler and trainer", name, step, gap)
				}
			}
		}
		if compared == 0 || learned == 0 {
			t.Errorf("%s: %d known gaps, gradient %v: the test compares too little", name, compared, learned)
		}
	}
}
