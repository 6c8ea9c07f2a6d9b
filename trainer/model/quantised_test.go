package model

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// TestSmolLM2Quantised holds the real model, kept in the blocks of its file, to the goldens of the widened one.
func TestSmolLM2Quantised(t *testing.T) {
	var want struct {
		Prompts []smolPrompt `json:"prompts"`
	}
	raw, err := os.ReadFile(golden.File(t, "models", "smollm2-expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	cudatest.Each(t, func(t *testing.T, device string) {
		m := openSmolLM2With(t, device, Options{Compute: torch.Float32, Quantised: true, MaxPosition: 512})
		continues(t, m, want.Prompts[0])
	})
}

// TestQuantisedBits compares the model in blocks with the widened one: on a CPU the logits have the same bits, and tensors
// are read as the file defines them.
func TestQuantisedBits(t *testing.T) {
	ctx := context.Background()
	wide := openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64})
	kept := openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64, Quantised: true})
	ids := []int32{1, 4093, 198, 2683, 359, 260, 5345}
	run := func(m *Model) (logits []float32) {
		do(t, m, func(s *torch.Scope) {
			n := int64(len(ids))
			pos := []int32{0, 1, 2, 3, 4, 5, 6}
			h := m.Forward(s, Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)})
			y := torch.Linear(h.Narrow(0, n-1, 1), m.Generation.Head(), nil)
			logits = make([]float32, y.Numel())
			y.Float32s(logits)
		})
		return logits
	}
	if !slices.Equal(run(kept), run(wide)) {
		t.Error("the logits have other bits than the widened model's")
	}
	read := All(kept).Reader(ctx, nil)
	for _, l := range []string{"model.layers.3.self_attn.k_proj.weight", "model.norm.weight", "model.layers.0.mlp.up_proj.weight"} {
		for _, tensor := range kept.Layout.Tensors() {
			if tensor.Name != l {
				continue
			}
			got, want := make([]float32, tensor.Numel()), make([]float32, tensor.Numel())
			if err := read(l, got); err != nil {
				t.Fatal(err)
			}
			if err := wide.ReadFlat(ctx, wide.Master, tensor.Offset, want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: other values", l)
			}
		}
	}
}

func TestQuantisedRefusesFolders(t *testing.T) {
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	src, err := weights.Open("../../testdata/models/llama-tiny")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	_, err = Load(context.Background(), dev, src, Options{Compute: torch.Float32, Quantised: true})
	golden.WantError(t, err, "GGUF", "folder", "dtype")
}
