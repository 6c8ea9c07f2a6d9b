package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
	"github.com/mgrpo/mgrpo/trainer/model/lora"
)

var sixLayers = arch.Config{
	Family: arch.Llama, VocabSize: 97, Hidden: 64, Layers: 6, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 160,
	RMSEps: 1e-5, Rope: arch.Rope{Theta: 1e4}, MaxPosition: 512, Tied: true,
}

// Layers below the lowest adapter store nothing for a backward pass. With checkpointing they do not even store their inputs.
func TestNothingIsKeptBelowTheLowestAdapter(t *testing.T) {
	const tokens = 512
	for _, device := range cudatest.Devices(t) {
		dev, err := torch.Open(device, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		m, err := Random(t.Context(), dev, sixLayers, 1, Options{Compute: torch.Float32})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(context.Background())
		state := 4 * tokens * int64(sixLayers.Hidden)
		for _, checkpointed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, checkpointed: %v", device, checkpointed), func(t *testing.T) {
				lowest, highest := adaptedPeak(t, m, 0, tokens, checkpointed), adaptedPeak(t, m, 5, tokens, checkpointed)
				least := 4 * state
				if !checkpointed {
					least = 5 * 10 * state // a layer stores at least 10 values for each of the hidden state
				}
				if lowest-highest < least {
					t.Errorf("%d bytes with an adapter in the first layer, %d with an adapter in the last; want a difference of at least %d", lowest, highest, least)
				}
			})
		}
	}
}

// adaptedPeak returns the memory of a forward and backward pass with an adapter in one layer.
func adaptedPeak(t *testing.T, m *Model, layer, tokens int, checkpointed bool) (bytes int64) {
	config := lora.PEFT{Spec: lora.Spec{R: 2, Alpha: 4, Targets: lora.Targets{Names: []string{"q_proj"}}, Layers: []int{layer}}}
	layout, err := config.Spec.Layout(m.Config)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Adapt(t.Context(), m, config, layout, FreshAdapters(layout, 1, false))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(context.Background())
	ids, pos := make([]int32, tokens), make([]int32, tokens)
	for i := range ids {
		ids[i], pos[i] = int32(i%m.Config.VocabSize), int32(i)
	}
	do(t, m, func(s *torch.Scope) {
		for _, p := range a.Leaves() {
			p.Leaf.RequireGrad(true)
			p.Leaf.SetGrad(s.Zeros(torch.Float32, p.Leaf.Shape()...))
		}
		run := a.Model().ForwardBackward
		if checkpointed {
			run = func(s *torch.Scope, in Packed, loss LossFunc) {
				_ = a.Model().ForwardBackwardCheckpointed(s, in, loss, untold)
			}
		}
		n := int64(tokens)
		in := Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)}
		before := s.Memory().Allocated
		s.ResetPeak()
		run(s, in, func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			return []*torch.Tensor{hidden}, []*torch.Tensor{s.Full(torch.Float32, 1, hidden.Shape()...)}
		})
		bytes = s.Memory().Peak - before
		if a.leaves[0].Grad().Norm().Item() == 0 {
			t.Error("the adapter has no gradient")
		}
	})
	return bytes
}

// A frozen model in bf16 takes 2 bytes per parameter; on a CPU, norms and biases have float32
// copies, too. It computes the same as a model with fp32 master weights.
func TestFrozenInBF16(t *testing.T) {
	for _, device := range cudatest.Devices(t) {
		dev, err := torch.Open(device, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		cfg := sixLayers
		cfg.Family = arch.Qwen2 // with biases
		open := func(frozen bool) (*Model, int64) {
			before, err := dev.Memory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			m, err := Random(t.Context(), dev, cfg, 1, Options{Compute: torch.BFloat16, Frozen: frozen})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close(context.Background()) })
			after, err := dev.Memory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return m, after.Allocated - before.Allocated
		}
		m, size := open(true)
		trained, _ := open(false)
		most := 2*m.Layout.Numel + 4*int64(cfg.MaxPosition)*cfg.RotaryWidth() + 64<<10 // because allocators round up
		if !dev.IsCUDA() {
			most += 4*m.Layout.Vectors() - 60<<10
		}
		if size > most {
			t.Errorf("%s: %d bytes for %d parameters, want at most %d", device, size, m.Layout.Numel, most)
		}
		trained.roundMaster(t)
		read, want := All(m).Reader(t.Context(), nil), All(trained).Reader(t.Context(), func(from int64, dst []float32) error {
			return trained.Master.Read(t.Context(), from, dst)
		})
		for _, p := range m.Layout.Tensors() {
			got, expected := make([]float32, p.Numel()), make([]float32, p.Numel())
			if err := errors.Join(read(p.Name, got), want(p.Name, expected)); err != nil || !slices.Equal(got, expected) {
				t.Fatalf("%s: %s differs: %v", device, p.Name, err)
			}
		}
		ids := []int32{3, 1, 4, 1, 5}
		a, err := m.Logits(t.Context(), ids, []int{5})
		if err != nil {
			t.Fatal(err)
		}
		b, err := trained.Logits(t.Context(), ids, []int{5})
		if err != nil || !slices.Equal(a[0], b[0]) {
			t.Errorf("%s: the logits differ from those with a master: %v", device, err)
		}
		if !slices.Equal(sampledLogits(t, m, ids), sampledLogits(t, trained, ids)) {
			t.Errorf("%s: a sampler's logits differ from those with a master", device)
		}
	}
}

// roundMaster rounds Master to the values of Half.
func (m *Model) roundMaster(t *testing.T) {
	do(t, m, func(*torch.Scope) { m.Master.Tensor.CopyFrom(m.Half) })
}

// sampledLogits returns the logits after a prompt, computed as the engine computes them.
func sampledLogits(t *testing.T, m *Model, ids []int32) (logits []float64) {
	cache := newCache(t, m, 1, len(ids))
	do(t, m, func(s *torch.Scope) {
		n := int64(len(ids))
		r := Rows{Sequence: s.FromInt32(make([]int32, n), n), Length: s.FromInt32([]int32{1, 2, 3, 4, 5}, n)}
		hidden := m.Generation.Hidden(s, s.FromInt32(ids, n), Pass{Pos: s.FromInt32([]int32{0, 1, 2, 3, 4}, n), Attention: cache.At(r)})
		logits = floats(torch.Logits(hidden.Narrow(0, n-1, 1), m.Generation.Head()))
	})
	return logits
}

// Equal models have equal digests, and one different weight changes the digest.
func TestDigest(t *testing.T) {
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	digests := map[uint32]string{}
	digest := func(what string, seed uint64, scaled bool) uint32 {
		m, err := Random(t.Context(), dev, sixLayers, seed, Options{Compute: torch.BFloat16, Frozen: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(context.Background())
		if scaled {
			if err := dev.Do(t.Context(), func(*torch.Scope) error { m.Half.Narrow(0, m.Layout.Numel-1, 1).Scale_(-2); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		sum, err := m.Digest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if before := digests[sum]; before != "" {
			t.Errorf("%s and %s have the same digest", what, before)
		}
		return sum
	}
	one := digest("a model", 1, false)
	if again := digest("the same model", 1, false); again != one {
		t.Errorf("one model has the digests %08x and %08x", one, again)
	}
	digests[one] = "a model"
	digest("another model", 2, false)
	digest("a model whose last weight differs", 1, true)
}

// A model that computes in bf16 keeps its fp32 weights outside forward passes. They are a share
// on the device or in the host's memory, or the whole model in the host's memory. If the
// weights are exact in bf16, it computes the same, and Restore also restores these weights.
func TestMasterApart(t *testing.T) {
	dev, err := torch.Open("cpu", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	open := func(t *testing.T, seed uint64, opt Options) *Model {
		opt.Compute = torch.BFloat16
		m, err := Random(t.Context(), dev, sixLayers, seed, opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close(context.Background()) })
		return m
	}
	whole := open(t, 1, Options{})
	whole.roundMaster(t)
	weights := masterOf(t, whole)
	ids := []int32{5, 17, 80, 3, 44}
	want := sampledLogits(t, whole, ids)
	for _, c := range []struct {
		name string
		opt  Options
	}{
		{"a share", Options{Rank: 1, Size: 3}},
		{"a share in the host", Options{Rank: 2, Size: 3, HostMaster: true}},
		{"all in the host", Options{HostMaster: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, 2, c.opt)
			if c.opt.HostMaster {
				m.Master.Piece = 1000 // the last piece is shorter
			}
			loaded := open(t, 2, Options{})
			wantShare(t, m, masterOf(t, loaded))
			loaded.roundMaster(t) // forward passes read norms in fp32
			if !slices.Equal(sampledLogits(t, m, ids), sampledLogits(t, loaded, ids)) {
				t.Error("generation differs from a model with all weights on the device")
			}
			if err := All(m).Restore(t.Context(), func(from int64, dst []float32) error { copy(dst, weights[from:]); return nil }); err != nil {
				t.Fatal(err)
			}
			wantShare(t, m, weights)
			if c.opt.HostMaster != (m.Master.Tensor == nil) {
				t.Error("the weights are in the wrong memory")
			}
			if !slices.Equal(sampledLogits(t, m, ids), want) {
				t.Error("after Restore, generation differs from a model with all weights on the device")
			}
		})
	}
}

// wantShare checks that Master has the model's share of the weights.
func wantShare(t *testing.T, m *Model, weights []float32) {
	t.Helper()
	kept := make([]float32, m.Master.Numel())
	if err := m.Master.Read(t.Context(), 0, kept); err != nil {
		t.Fatal(err)
	}
	var want []float32
	for _, p := range m.share {
		want = append(want, weights[p.From:p.To]...)
	}
	if !slices.Equal(kept, want) || len(kept) == 0 {
		t.Errorf("Master has %d weights, which differ from the %d of the share", len(kept), len(want))
	}
}

func masterOf(t *testing.T, m *Model) []float32 {
	t.Helper()
	all := make([]float32, m.Layout.Numel)
	if err := m.Master.Read(t.Context(), 0, all); err != nil {
		t.Fatal(err)
	}
	return all
}
