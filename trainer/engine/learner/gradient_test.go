package learner

import (
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/cuda/cudatest"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// If layers share one piece of memory for their gradients, the learned weights are the same bit for bit as with memory for
// every layer, also after a refused micro-batch. The buffer is as large as the longest layer plus the leaves outside layers.
func TestGradientByLayer(t *testing.T) {
	cudatest.Each(t, func(t *testing.T, device string) {
		learner := func(layers bool) *Learner {
			o := mixtureOptions(func(o *Options) { o.CheckpointActivations, o.MicroBatchTokens = true, 10 })
			l := tinyLearnerOf(t, tinyModelIn(t, device, 1, model.Options{Compute: torch.BFloat16}), o)
			if !layers {
				inDevice(t, l.model, func(s *torch.Scope) {
					l.grad.part.flat.Drop()
					l.grad.part = newMicroGradient(s, l.State.division, false)
				})
			}
			return l
		}
		at := func(l *Learner) (weights []float32) {
			bad := clone(tinyBatch(t, l, 0.3))
			bad[3].Behaviour[bad[3].trained()[2]] = float32(math.NaN())
			if err := l.Prepare(t.Context(), bad); err != nil {
				t.Fatal(err)
			}
			if r, err := l.Update(t.Context(), bad, 0.01); err != nil || r.Refused == nil {
				t.Errorf("not refused: %+v, %v", r, err)
			}
			trained(t, l, tinyBatch(t, l, 0.3))
			weights, _, _ = stateOf(t, l)
			return weights
		}
		whole, byLayer := learner(false), learner(true)
		if !sameValues(device, at(byLayer), at(whole)) {
			t.Error("the learned weights differ")
		}
		layer := make([]int64, 3) // leaves outside layers, and those in the model's two layers
		for _, leaf := range whole.model.Layout.Leaves {
			layer[leaf.Layer] += leaf.Numel()
		}
		const between = 128 // largest padding, which keeps leaves as aligned as blocks
		got, want, all := byLayer.grad.part.flat.Numel(), layer[0]+max(layer[1], layer[2]), whole.State.params.Numel()
		if got < want || got > want+between || whole.grad.part.flat.Numel() < all || whole.grad.part.flat.Numel() > all+between {
			t.Errorf("the buffers have %d and %d elements; the gradient has %d, and layer by layer it needs %d", got, whole.grad.part.flat.Numel(), all, want)
		}
	})
}

// A backward pass that ends early, and a rank without a backward pass, leave blocks uncollected.
// They are collected afterwards in the same order, with zeros for gradients that were not computed.
func TestCollectRest(t *testing.T) {
	l := tinyLearnerOf(t, tinyModelIn(t, "cpu", 1, model.Options{Compute: torch.BFloat16}), mixtureOptions(func(o *Options) { o.CheckpointActivations = true }))
	leaves := l.State.params.Leaves()
	err := l.passes.run(t.Context(), passSeries{model: l.model, micro: [][]*Sequence{nil}, n: 1, backward: true, run: func([]*Sequence) error {
		inDevice(t, l.model, func(s *torch.Scope) {
			for i, leaf := range leaves { // like a pass that ends after the last layer
				if leaf.Layer != 1 {
					leaf.Leaf.Grad().Fill_(float64(i + 1))
				}
			}
			if err := l.passes.layers(t.Context(), s, l.model).After(2); err != nil {
				t.Fatal(err)
			}
		})
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	inDevice(t, l.model, func(*torch.Scope) {
		for i, leaf := range leaves {
			want := float64(i+1) * float64(leaf.Leaf.Numel())
			if leaf.Layer == 1 {
				want = 0
			}
			if got := l.grad.sum.Narrow(0, leaf.From, leaf.Leaf.Numel()).Sum().Item(); got != want {
				t.Errorf("leaf %d of layer %d: the sum is %v, want %v", i, leaf.Layer, got, want)
			}
		}
		if l.grad.part.flat.Sum().Item() != 0 {
			t.Error("the next pass begins with a gradient")
		}
	})
}
