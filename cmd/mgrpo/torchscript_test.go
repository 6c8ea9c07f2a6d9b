package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// moduleFolder returns a folder with a module of 384 tokens and the tokenizer of the built-in task, which has fewer.
func moduleFolder(t *testing.T) string {
	t.Helper()
	folder := golden.Module(t, "llama-tied")
	words, err := os.ReadFile(filepath.Join("..", "..", "examples", "torchscript", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "tokenizer.json"), words, 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// named returns the setting that makes a file the researcher's module.
func named(module string) string { return "agents.researcher.model={torchscript: " + module + "}" }

// moduleTeam returns the arguments of a short run of the example's team.
func moduleTeam(dir string, sets ...string) (args []string) {
	args = []string{filepath.Join("..", "..", "examples", "torchscript", "team.yaml")}
	for _, s := range append([]string{"run.dir=" + dir, "run.checkpoint_every=1", "task.queries_per_step=4", "grpo.rollouts=4", "eval.every=1", "eval.before=false",
		"eval.queries=8", "eval.samples=1", "cold_start.queries=512", "agents.planner.cold_start.steps=120", "agents.researcher.cold_start.steps=120"}, sets...) {
		args = append(args, "--set", s)
	}
	return args
}

// moments returns the step of a checkpoint's optimizer, and the mean squares of the gradients.
func moments(t *testing.T, agentDir string) (step int64, squares []float32) {
	t.Helper()
	file, err := weights.OpenTensors(filepath.Join(agentDir, "optimizer.state"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if step, err = file.Integer("step"); err != nil {
		t.Fatal(err)
	}
	_, shape, found := file.Info("v")
	if !found {
		t.Fatalf("%s: the optimizer made no update", agentDir)
	}
	squares = make([]float32, shape[0])
	if err := file.Read("v", 0, shape[0], squares); err != nil {
		t.Fatal(err)
	}
	return step, squares
}

// trajectory has the tokens of a saved trajectory.
type trajectory struct {
	ID       string
	Tokens   []int32
	Sampled  []bool
	LogProbs []float64 `json:"log_probs"`
}

// trajectoriesOf returns the trajectories of a file by id.
func trajectoriesOf(t *testing.T, pattern string) map[string]trajectory {
	t.Helper()
	text, err := os.ReadFile(one(t, pattern))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]trajectory{}
	for line := range bytes.Lines(text) {
		var tr trajectory
		if err := json.Unmarshal(line, &tr); err != nil {
			t.Fatal(err)
		}
		all[tr.ID] = tr
	}
	return all
}

// A team whose researcher is a TorchScript module trains, resumes and is evaluated as other teams are.
func TestTorchScriptTeam(t *testing.T) {
	module, dir := moduleFolder(t), t.TempDir()
	team := func(t *testing.T, command string, more ...string) string {
		t.Helper()
		args := append([]string{command}, moduleTeam(dir, named(filepath.Join(module, "policy.pt")))...)
		return mustRun(t, "", append(args, more...)...)
	}
	checkpoint := func(step int) string {
		return filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%06d", step), "researcher")
	}
	team(t, "train", "--set", "run.steps=2")

	t.Run("weights", func(t *testing.T) {
		initial, cold, trained := read(t, module), read(t, checkpoint(0)), read(t, checkpoint(2)) // read requires finite values
		for name := range initial {
			if slices.Equal(trained[name], cold[name]) || slices.Equal(cold[name], initial[name]) {
				t.Errorf("%s did not change in the cold start or in the steps", name)
			}
		}
	})

	// The rounding of a module depends on the sequences that it computes together, and may
	// change a sampled token. Log-probs are equal up to that token.
	t.Run("evaluation", func(t *testing.T) {
		var counted struct {
			Scores []struct{ Questions int }
		}
		if text := team(t, "eval", "--json"); json.Unmarshal([]byte(text), &counted) != nil || len(counted.Scores) != 1 || counted.Scores[0].Questions != 8 {
			t.Errorf("%+v in\n%s", counted, text)
		}
		for _, agent := range []string{"planner", "researcher"} {
			own := trajectoriesOf(t, filepath.Join(dir, "trajectories", "eval-2", agent+".jsonl"))
			again := trajectoriesOf(t, filepath.Join(dir, "eval", "step-000002-8x1-*", "trajectories", "eval-2", agent+".jsonl"))
			compared := 0
			for id, a := range again {
				b := own[id]
				for i := 0; i < min(len(a.Tokens), len(b.Tokens)) && a.Tokens[i] == b.Tokens[i]; i++ {
					if a.Sampled[i] {
						compared++
					}
					if math.Abs(a.LogProbs[i]-b.LogProbs[i]) > 1e-4 {
						t.Errorf("%s, token %d: log-prob %v, in the run %v", id, i, a.LogProbs[i], b.LogProbs[i])
					}
				}
			}
			if compared < 8 {
				t.Errorf("%s: only %d sampled tokens are as in the run", agent, compared)
			}
		}
	})

	t.Run("resume", func(t *testing.T) {
		if said := team(t, "train", "--set", "run.steps=3", "--resume"); !strings.Contains(said, "step 3/3") || strings.Contains(said, "cold start of") {
			t.Errorf("resumed:\n%s", said)
		}
		step, squares := moments(t, checkpoint(2))
		later, after := moments(t, checkpoint(3))
		updates := later - step
		if updates < 1 || updates > 4 { // 2 epochs of 2 minibatches
			t.Fatalf("the optimizer was at step %d, and is at step %d", step, later)
		}
		const beta2, lr = 0.98, 1e-3 // of the example
		kept := float32(math.Pow(beta2, float64(updates)) * (1 - 1e-5))
		for i, v := range squares {
			if after[i] < kept*v {
				t.Fatalf("the mean square of gradient %d was %g, and is %g after %d updates", i, v, after[i], updates)
			}
		}
		before := read(t, checkpoint(2))
		for name, values := range read(t, checkpoint(3)) {
			if slices.Equal(values, before[name]) {
				t.Errorf("%s did not change after the resume", name)
			}
			for i, w := range values {
				if far := math.Abs(float64(w - before[name][i])); far > 2*lr*float64(updates) {
					t.Fatalf("a value of %s is %g away from the checkpoint after %d updates with lr %g", name, far, updates, lr)
				}
			}
		}
	})

	t.Run("named as a folder", func(t *testing.T) {
		wantRefusal(t, "", append([]string{"train"}, moduleTeam(t.TempDir(), "agents.researcher.model="+checkpoint(2))...),
			"agents.researcher.model: config.json has model_type torchscript, whose forward pass is a program: name it in the configuration, as in model: {torchscript: ")
	})
}

// Settings that a module does not have, and a missing module, are refused before the run has a folder.
func TestTorchScriptRefused(t *testing.T) {
	folder, dir := moduleFolder(t), filepath.Join(t.TempDir(), "run")
	module := filepath.Join(folder, "policy.pt")
	train := func(sets ...string) []string { return append([]string{"train"}, moduleTeam(dir, sets...)...) }

	wantRefusal(t, "", train(named(module), "agents.researcher.lora.r=4"), "agents.researcher.lora: the model of researcher is a TorchScript module")
	wantRefusal(t, "", train(named(module), "agents.researcher.device=cuda", "agents.researcher.dtype=bf16"), "agents.researcher.dtype: the model of researcher is a TorchScript module")

	if err := os.Remove(module); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "", train(named(module)), "agents.researcher.model: ", module+": no such file")
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused run created its folder")
	}
}
