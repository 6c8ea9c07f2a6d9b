package model

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
	"github.com/mgrpo/mgrpo/trainer/model/memorytest"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
)

// TestSmolLM2Quantised keeps the real model in the blocks of its file and compares it with the goldens of the widened model.
func TestSmolLM2Quantised(t *testing.T) {
	prompts := smolPrompts(t)
	cudatest.Each(t, func(t *testing.T, device string) {
		m := openSmolLM2With(t, device, Options{Compute: torch.Float32, Quantised: true, MaxPosition: 512})
		continues(t, m, prompts[0])
	})
}

// TestQuantisedBits compares the model in blocks with the widened one: on a CPU the logits have
// the same bits, and tensors have the values that the file defines.
func TestQuantisedBits(t *testing.T) {
	ctx := context.Background()
	wide := openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64})
	kept := openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64, Quantised: true})
	ids := []int32{1, 4093, 198, 2683, 359, 260, 5345}
	if !slices.Equal(lastLogits(t, kept, ids), lastLogits(t, wide, ids)) {
		t.Error("the logits differ from the widened model's")
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
			if err := wide.Master.Read(ctx, tensor.Offset, want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: other values", l)
			}
		}
	}
}

// lastLogits returns the logits after the last token of a row.
func lastLogits(t *testing.T, m *Model, ids []int32) (logits []float32) {
	t.Helper()
	pos := make([]int32, len(ids))
	for i := range pos {
		pos[i] = int32(i)
	}
	do(t, m, func(s *torch.Scope) {
		n := int64(len(ids))
		h := m.Forward(s, Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)})
		y := torch.Logits(h.Narrow(0, n-1, 1), m.Generation.Head())
		logits = make([]float32, y.Numel())
		y.Float32s(logits)
	})
	return logits
}

// TestQuantisedDeltaRules compares a model in blocks with the widened one if the file has value
// heads in another order. Heads can be moved without widening only if they consist of whole blocks.
func TestQuantisedDeltaRules(t *testing.T) {
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for dim, widened := range map[int]int{32: 0, 16: 1} {
		c := arch.Config{Family: arch.Qwen35, VocabSize: 64, Hidden: 64, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 96, MaxPosition: 64,
			GatedDelta: &arch.GatedDelta{Layers: []bool{true, false}, KeyHeads: 2, ValueHeads: 6, KeyDim: dim, ValueDim: dim, Width: 4}}.WithDefaults()
		file, random := filepath.Join(t.TempDir(), "m.gguf"), rand.New(rand.NewPCG(3, 4))
		read := func(_ string, dst []float32) error {
			for i := range dst {
				dst[i] = float32(random.NormFloat64()) / 4
			}
			return nil
		}
		if err := weights.WriteGGUF(file, c, map[string]any{}, read, weights.Q8_0); err != nil {
			t.Fatal(err)
		}
		src, err := weights.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		var logits [2][]float32
		for i, quantised := range []bool{false, true} {
			m, err := Load(t.Context(), dev, src, Options{Compute: torch.Float32, MaxPosition: 64, Quantised: quantised})
			if err != nil {
				t.Fatal(err)
			}
			logits[i] = lastLogits(t, m, []int32{1, 5, 9, 40, 7, 7, 33})
			for _, l := range m.Layout.Leaves {
				if quantised && len(l.Shape) == 2 && !staysQuantised(src, l) {
					widened--
				}
			}
			if err := m.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(logits[0], logits[1]) || widened != 0 {
			t.Errorf("heads of %d: logits %v in blocks, %v widened; %d more matrices should be widened", dim, logits[1], logits[0], widened)
		}
	}
}

// TestQuantisedAdapters trains adapters on the model in blocks: their gradient equals the gradient on the widened model.
func TestQuantisedAdapters(t *testing.T) {
	ids := []int32{1, 4093, 198, 2683, 359, 260, 5345}
	gradient := func(quantised, checkpointed bool) (flat []float64) {
		base := openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64, Quantised: quantised})
		config := lora.PEFT{Spec: lora.Spec{R: 2, Alpha: 4, Targets: lora.Targets{Pattern: lora.AllLinear}}}
		layout, err := config.Spec.Layout(base.Config)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Adapt(t.Context(), base, config, layout, func(from int64, dst []float32) error {
			for i := range dst {
				dst[i] = float32(math.Sin(float64(from)+float64(i))) / 50
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close(context.Background())
		do(t, base, func(s *torch.Scope) {
			grad := s.Zeros(torch.Float32, a.Numel())
			for _, p := range a.Leaves() {
				p.Leaf.RequireGrad(true)
				p.Leaf.SetGrad(grad.Narrow(0, p.From, p.Leaf.Numel()).View(p.Leaf.Shape()...))
			}
			run := a.Model().ForwardBackward
			if checkpointed {
				run = func(s *torch.Scope, in Packed, loss LossFunc) {
					_ = a.Model().ForwardBackwardCheckpointed(s, in, loss, untold)
				}
			}
			n := int64(len(ids))
			in := Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32([]int32{0, 1, 2, 3, 4, 5, 6}, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)}
			run(s, in, func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
				logp, _ := torch.HeadLogProb(hidden, a.Model().Training.Head(), s.FromInt32([]int32{4093, 198, 2683, 359, 260, 5345, 2}, n), 1, 4)
				return []*torch.Tensor{logp}, []*torch.Tensor{s.FromFloat32([]float32{1, -1, 1, 1, 1, -1, 1}, n)}
			})
			flat = floats(grad)
		})
		return flat
	}
	want := gradient(false, false)
	for _, checkpointed := range []bool{false, true} {
		apart, norm := 0.0, 0.0
		for i, g := range gradient(true, checkpointed) {
			apart, norm = apart+(g-want[i])*(g-want[i]), norm+want[i]*want[i]
		}
		if !(math.Sqrt(apart) <= 1e-3*math.Sqrt(norm)) || norm == 0 {
			t.Errorf("the gradient is off by %v of its norm, %v", math.Sqrt(apart/norm), math.Sqrt(norm))
		}
	}
}

// Loading increases memory by little more than the size of the blocks.
func TestQuantisedMemory(t *testing.T) {
	var m *Model
	grown := memorytest.Peak(t, func() {
		m = openSmolLM2With(t, "cpu", Options{Compute: torch.Float32, MaxPosition: 64, Quantised: true})
	})
	const fileBytes = 98 << 20 // including the tokenizer
	if grown > fileBytes*12/10 || grown > m.Layout.Numel {
		t.Errorf("memory grew by %d MB for %d million weights", grown>>20, m.Layout.Numel/1e6)
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
