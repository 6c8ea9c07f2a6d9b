package main

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// TestExport exports a real model as a GGUF file in F16. The file must give the model's token
// ids and, up to the rounding of weights, its log-probs. log-probs.
func TestExport(t *testing.T) {
	model, file := golden.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"), filepath.Join(t.TempDir(), "m.gguf")
	if out := mustRun(t, "", "export", "--model", model, "--gguf", file, "--type", "F16"); !strings.Contains(out, file) {
		t.Errorf("it printed %q", out)
	}
	const text = `{"text": "The capital of France is Paris, isn't it? 12 + 30 = 42\n"}` + "\n"
	ids := mustRun(t, text, "tokenize", "--model", file)
	if want := mustRun(t, text, "tokenize", "--model", model); ids != want {
		t.Errorf("ids %s, want %s", ids, want)
	}
	logProbs := func(path string) (out struct{ LogProbs []float64 }) {
		if err := json.Unmarshal([]byte(mustRun(t, ids, "score", "--model", path, "--dtype", "fp32")), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	got, want := logProbs(file).LogProbs, logProbs(model).LogProbs
	if len(got) < 10 || len(got) != len(want) {
		t.Fatalf("%d log-probs, want %d", len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) < 2e-2) {
			t.Errorf("log-prob %d is %v, want %v", i, got[i], want[i])
		}
	}
	wantRefusal(t, "", []string{"export", "--model", filepath.Join(testdata, "models", "llama-tiny"), "--gguf", file}, "tokenizer")
}
