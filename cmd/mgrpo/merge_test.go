package main

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// A merged checkpoint gives the same scores as the base model with the adapter, and both match
// the golden numbers. Its weights have the type of the base's weights.
func TestMerge(t *testing.T) {
	for name, c := range map[string]struct {
		base string
		near float64
	}{"llama-tied-all-rslora": {"llama-tied", 5e-5}, "qwen3-regex": {"qwen3-untied-bf16", 0.2}} {
		adapter, base := filepath.Join(golden.Dir(t, "lora"), name), filepath.Join(golden.Dir(t, "models"), c.base)
		out := filepath.Join(t.TempDir(), "merged")
		if _, errs, status := run(t, "", "merge", "--model", base, "--adapter", adapter, "--out", out); status != 0 {
			t.Fatal(errs)
		}
		want := golden.ReadTensors(t, filepath.Join(adapter, "expected.safetensors"))
		ids := want["input_ids"].Int32s()[:20]
		line := `{"ids": [`
		for i, id := range ids {
			if i > 0 {
				line += ","
			}
			line += strconv.Itoa(int(id))
		}
		line += "]}"
		score := func(args ...string) []float64 {
			text, errs, status := run(t, line, append([]string{"score"}, args...)...)
			if status != 0 {
				t.Fatal(errs)
			}
			return results(t, text)[0].LogProbs
		}
		adapted, merged := score("--model", base, "--adapter", adapter), score("--model", out)
		for i := range adapted {
			if w := want["logprobs_t1.0"].Data[i]; math.Abs(adapted[i]-w) > 5e-5 || math.Abs(merged[i]-w) > c.near {
				t.Fatalf("%s: token %d: %v with the adapter, %v merged, want %v", name, i, adapted[i], merged[i], w)
			}
		}
		before, err := os.Stat(filepath.Join(base, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(filepath.Join(out, "model.safetensors"))
		if err != nil || math.Abs(float64(after.Size()-before.Size())) > 2000 {
			t.Errorf("%s: %v, %d bytes, but the base has %d", name, err, after.Size(), before.Size())
		}
	}
	_, errs, status := run(t, "", "score", "--model", filepath.Join(golden.Dir(t, "models"), "llama-tiny"), "--adapter", filepath.Join(golden.Dir(t, "lora"), "bad", "nan"))
	if status != exitFailed || errs == "" {
		t.Errorf("broken adapter: %d, %q", status, errs)
	}
}
