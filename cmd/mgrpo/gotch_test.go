package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/run/assemble"
	"github.com/mgrpo/mgrpo/trainer/task"
)

// A file from torch.save has the same tensors as the safetensors file of the same weights, in float32 and in bfloat16.
func TestLoadBin(t *testing.T) {
	for bin, safetensors := range map[string]string{"qwen2-tiny-bin": "qwen2-tiny", "qwen3-bf16-bin": "qwen3-untied-bf16"} {
		got := read(t, filepath.Dir(golden.File(t, "models", filepath.Join(bin, "pytorch_model.bin"))))
		want := read(t, filepath.Dir(golden.File(t, "models", filepath.Join(safetensors, "model.safetensors"))))
		if len(want) == 0 {
			t.Fatalf("%s: no tensors", safetensors)
		}
		for name := range want {
			if !slices.Equal(got[name], want[name]) {
				t.Errorf("%s: %s differs", bin, name)
			}
		}
	}
}

// read returns the values of every tensor of a checkpoint.
func read(t *testing.T, dir string) map[string][]float32 {
	t.Helper()
	source, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := source.Check(); err != nil { // the file has exactly the tensors of the architecture
		t.Fatal(err)
	}
	tensors := map[string][]float32{}
	for _, tensor := range source.Config().Layout().Tensors() {
		tensors[tensor.Name] = make([]float32, tensor.Numel())
		if err := source.Read(tensor.Name, 0, tensor.Shape[0], tensors[tensor.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return tensors
}

// A module that a configuration names scores answers, with the tokens of the tokenizer in its folder.
func TestTorchScriptScores(t *testing.T) {
	folder := t.TempDir()
	words := tokenizer.WordLevel{Vocab: []string{"<unk>", "</s>", "what?", "this", "that", "it"}, Unk: "<unk>", EOS: "</s>"}
	if err := tokenizer.WriteWordLevel(folder, words); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(folder, "rows.jsonl")
	if err := os.WriteFile(rows, []byte(`{"question":"what?","answer":"this"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	scorer, err := filepath.Abs("../../bindings/torch/gotchx/testdata/scorer.pt")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse("team.yaml", fmt.Appendf(nil, `
run: {name: x}
task: {kind: jsonl, train: %q, eval: %q, verifier: {kind: torchscript, path: %q, tokenizer: %q}}
agents: {writer: {role: main, model: nowhere}}
`, rows, rows, scorer, folder), nil)
	if err != nil {
		t.Fatal(err)
	}
	rewards, err := assemble.OpenTask(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer task.Close(rewards)
	for answer, want := range map[string]float64{"that": 1, "this": 0.5, "this it": 1. / 3} { // the ids are 2 4, 2 3 and 2 3 5
		got, err := rewards.VerifyMain(t.Context(), rewards.Eval(0), task.Attempt{Agent: "writer", Answer: answer})
		if err != nil || math.Abs(got-want) > 1e-6 {
			t.Errorf("%q scores %v, %v; want %v", answer, got, err, want)
		}
	}
}
