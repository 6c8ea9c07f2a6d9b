package torch

import (
	"slices"
	"testing"
)

// frozen is a layer whose weights are not trained.
type frozen struct {
	name    string
	x       []int64
	weights [][]int64
	run     func(s *Scope, x *Tensor, weights []*Tensor) *Tensor

	kept     int64 // limit of the bytes kept for the backward pass, without the result
	backward int64 // limit of the additional bytes during the backward pass
}

func frozenLayers() []frozen {
	const slack = 8 << 10 // for allocators and small tensors
	return []frozen{
		{"linear", []int64{64, 512}, [][]int64{{8, 512}},
			func(_ *Scope, x *Tensor, w []*Tensor) *Tensor { return Linear(x, w[0], nil) },
			slack, 2*4*64*512 + slack}, // the gradients of x and of its input
		{"linear with many weights", []int64{4, 512}, [][]int64{{512, 512}},
			func(_ *Scope, x *Tensor, w []*Tensor) *Tensor { return Linear(x, w[0], nil) },
			slack, 2*4*4*512 + slack},
		{"norm", []int64{2, 16384}, [][]int64{{16384}},
			func(_ *Scope, x *Tensor, w []*Tensor) *Tensor { return RMSNorm(x, w[0], 0, 1e-5) },
			4*2*16384 + slack, 4*2*16384 + slack},
		{"norm of a sum", []int64{2, 16384}, [][]int64{{16384}},
			func(_ *Scope, x *Tensor, w []*Tensor) *Tensor {
				_, y := AddRMSNorm(x, x.Detach(), w[0], 0, 1e-5)
				return y
			},
			4*2*16384 + slack, 4*2*16384 + slack},
		{"experts", []int64{64, 512}, [][]int64{{4 * 2 * 4, 512}, {4 * 512, 4}},
			func(s *Scope, x *Tensor, w []*Tensor) *Tensor {
				logits := s.Zeros(Float32, 64, 4)
				chosen, weight := Route(logits, Routing{PerToken: 1})
				return Experts(x, chosen, weight, MLPs{GateUp: w[0], Down: w[1]})
			},
			slack, 3*4*64*512 + slack}, // plus the experts' parts of the gradient of x
		{"head", []int64{4, 64}, [][]int64{{1024, 64}},
			func(s *Scope, x *Tensor, w []*Tensor) *Tensor {
				logp, _ := HeadLogProb(x, w[0], s.FromInt32([]int32{0, 1, 2, 3}, 4), 1, 4)
				return logp
			},
			slack, 4*4*1024 + slack}, // the logits
	}
}

// Layers with frozen weights do not keep their inputs or compute gradients of the weights. The
// gradients of inputs have the same bits as with trained weights.
func TestFrozenWeightsCostNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		for _, l := range frozenLayers() {
			t.Run(l.name, func(t *testing.T) {
				l.measure(t, d, true) // the first product of a thread on a GPU allocates cuBLAS's workspace
				kept, backward, dx := l.measure(t, d, false)
				if kept > l.kept || backward > l.backward {
					t.Errorf("%d bytes are kept and %d added in the backward pass, want at most %d and %d", kept, backward, l.kept, l.backward)
				}
				trainedKept, trainedBackward, want := l.measure(t, d, true)
				if trainedKept <= l.kept && trainedBackward <= l.backward {
					t.Errorf("with trained weights it needs only %d and %d bytes, no more than the limits", trainedKept, trainedBackward)
				}
				if !slices.Equal(dx, want) {
					t.Error("the input's gradient differs from the one with trained weights")
				}
			})
		}
	})
}

// measure runs the layer forward and backward on an input that only the layer can keep.
func (l frozen) measure(t *testing.T, d *Device, trained bool) (kept, backward int64, dx []float64) {
	do(t, d, func(s *Scope) {
		leaf := from(s, values(1, product(l.x)), Float32, l.x...)
		leaf.RequireGrad(true)
		var weights []*Tensor
		for i, shape := range l.weights {
			w := from(s, values(uint64(2+i), product(shape)), Float32, shape...)
			w.RequireGrad(trained)
			weights = append(weights, w)
		}
		s.Grad(true, func() {
			before := s.Memory().Allocated
			var y *Tensor
			s.Scoped(func() { y = s.Hoist(l.run(s, leaf.Scale(0.5), weights)) })
			kept = s.Memory().Allocated - before - 4*y.Numel()
			g := from(s, values(9, y.Numel()), Float32, y.Shape()...)
			before = s.Memory().Allocated
			s.ResetPeak()
			Backward(one(y), one(g))
			backward = s.Memory().Peak - before
		})
		dx = float64s(leaf.Grad())
		for _, w := range weights {
			if (w.Grad() != nil) != trained {
				t.Errorf("trained: %v, but the gradient of a weight is %v", trained, w.Grad())
			}
		}
	})
	return kept, backward, dx
}

// An adapter's input is kept only once, even if several modules share it.
func TestAdaptersKeepTheirInputOnce(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		l := frozen{x: []int64{64, 512}, weights: [][]int64{{12, 512}}, run: func(s *Scope, x *Tensor, w []*Tensor) *Tensor {
			adapter := LoRA{s.Zeros(Float32, 3*512+3*4), []LoRAPart{{0, 4, 1, 1}, {4, 4, 1, 1}, {8, 4, 1, 1}}}
			adapter.Values.RequireGrad(true)
			return LoRAAdd_(Linear(x, w[0], nil), x, []LoRA{adapter}, nil)
		}}
		const x, slack = 4 * 64 * 512, 16 << 10 // for the adapter, and for A x
		if kept, _, _ := l.measure(t, d, false); kept < x || kept > x+slack {
			t.Errorf("%d bytes are kept for an input of %d", kept, x)
		}
	})
}
