package model

import (
	"context"
	"fmt"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/arch"
	"github.com/mgrpo/mgrpo/trainer/lora"
)

var sixLayers = arch.Config{
	Family: arch.Llama, VocabSize: 97, Hidden: 64, Layers: 6, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 160,
	RMSEps: 1e-5, RopeTheta: 1e4, MaxPosition: 512, Tied: true,
}

// Below the lowest adapter nothing is kept for a backward pass, and with checkpointing no state of a layer either.
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
					least = 5 * 10 * state // a layer keeps some 16 values for each of the hidden state
				}
				if lowest-highest < least {
					t.Errorf("%d bytes with an adapter in the first layer, %d with one in the last; want at least %d less", lowest, highest, least)
				}
			})
		}
	}
}

// adaptedPeak is the memory of a forward and backward pass with an adapter in one layer.
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
		}
		run := a.Model().ForwardBackward
		if checkpointed {
			run = a.Model().ForwardBackwardCheckpointed
		}
		n := int64(tokens)
		in := Packed{IDs: s.FromInt32(ids, n), Pos: s.FromInt32(pos, n), Cu: s.FromInt32([]int32{0, int32(n)}, 2)}
		before := s.Memory().Allocated
		s.ResetPeak()
		run(s, in, func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor) {
			return []*torch.Tensor{hidden}, []*torch.Tensor{s.Full(torch.Float32, 1, hidden.Shape()...)}
		})
		bytes = s.Memory().Peak - before
		if a.leaves[0].Grad() == nil {
			t.Error("the adapter has no gradient")
		}
	})
	return bytes
}
