package torch

import (
	"slices"
	"testing"
)

// frozen is a layer whose weights nothing trains.
type frozen struct {
	name    string
	x       []int64
	weights [][]int64
	run     func(s *Scope, x *Tensor, weights []*Tensor) *Tensor

	kept     int64 // bytes for the backward pass beside the result, at most
	backward int64 // bytes that exist at once in it beside what was there, at most
}

func frozenLayers() []frozen {
	const slack = 8 << 10 // of allocators, and of small tensors
	return []frozen{
		{"linear", []int64{64, 512}, [][]int64{{8, 512}},
			func(_ *Scope, x *Tensor, w []*Tensor) *Tensor { return Linear(x, w[0], nil) },
			slack, 2*4*64*512 + slack}, // the gradients of x and of what x was made of
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
			slack, 3*4*64*512 + slack}, // besides the experts' parts of the gradient of x
		{"head", []int64{4, 64}, [][]int64{{1024, 64}},
			func(s *Scope, x *Tensor, w []*Tensor) *Tensor {
				logp, _ := HeadLogProb(x, w[0], s.FromInt32([]int32{0, 1, 2, 3}, 4), 1, 4)
				return logp
			},
			slack, 4*4*1024 + slack}, // the logits
	}
}

// What nothing trains keeps no input, and gets no gradient. Inputs get the bits that they get where it is trained.
func TestFrozenWeightsCostNothing(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		for _, l := range frozenLayers() {
			t.Run(l.name, func(t *testing.T) {
				l.measure(t, d, true) // the first products of a thread on a GPU take cuBLAS's workspace
				kept, backward, dx := l.measure(t, d, false)
				if kept > l.kept || backward > l.backward {
					t.Errorf("%d bytes are kept and %d added in the backward pass, at most %d and %d expected", kept, backward, l.kept, l.backward)
				}
				trainedKept, trainedBackward, want := l.measure(t, d, true)
				if trainedKept <= l.kept && trainedBackward <= l.backward {
					t.Errorf("trained it needs no more: %d and %d bytes", trainedKept, trainedBackward)
				}
				if !slices.Equal(dx, want) {
					t.Error("the input has another gradient than where the weights are trained")
				}
			})
		}
	})
}

// measure runs the layer forward and back on an input that nobody else keeps.
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
				t.Errorf("trained: %v, and the gradient of a weight is %v", trained, w.Grad())
			}
		}
	})
	return kept, backward, dx
}

// An adapter's input is kept once, however many modules share it.
func TestAdaptersKeepTheirInputOnce(t *testing.T) {
	onDevices(t, func(t *testing.T, d *Device) {
		l := frozen{x: []int64{64, 512}, weights: [][]int64{{12, 512}}, run: func(s *Scope, x *Tensor, w []*Tensor) *Tensor {
			adapter := LoRA{s.Zeros(Float32, 3*512+3*4), []LoRAPart{{0, 4, 1, 1}, {4, 4, 1, 1}, {8, 4, 1, 1}}}
			adapter.Values.RequireGrad(true)
			return LoRAAdd_(Linear(x, w[0], nil), x, []LoRA{adapter}, nil)
		}}
		const x, slack = 4 * 64 * 512, 16 << 10 // of the adapter, and of A x
		if kept, _, _ := l.measure(t, d, false); kept < x || kept > x+slack {
			t.Errorf("%d bytes are kept of an input of %d", kept, x)
		}
	})
}
