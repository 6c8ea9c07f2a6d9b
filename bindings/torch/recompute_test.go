package torch

import (
	"slices"
	"testing"
)

// Linear maps, adapters and experts do not keep the result of a norm or a gated activation for
// their weights' gradients. They recompute it, with the same bits.
func TestNormsAndGatesAreRecomputed(t *testing.T) {
	const rows, width, slack = 64, 512, 16 << 10
	makers := map[string]func(x, w *Tensor) *Tensor{
		"norm": func(x, w *Tensor) *Tensor { return RMSNorm(x, w, 0, 1e-5) },
		"norm of a sum": func(x, w *Tensor) *Tensor {
			_, y := AddRMSNorm(x, x, w, 1, 1e-5)
			return y
		},
		"swiglu":      func(x, _ *Tensor) *Tensor { return SwiGLU(x) },
		"geglu":       func(x, _ *Tensor) *Tensor { return GeGLU(x) },
		"clamped glu": func(x, _ *Tensor) *Tensor { return ClampedGLU(x) },
	}
	readers := map[string]func(s *Scope, h, w *Tensor) *Tensor{
		"linear": func(_ *Scope, h, w *Tensor) *Tensor { return Linear(h, w.View(4, -1), nil) },
		"adapter": func(s *Scope, h, w *Tensor) *Tensor {
			k := h.Size(1)
			return LoRAAdd_(Linear(h, s.Zeros(Float32, 2, k), nil), h, []LoRA{{w.Narrow(0, 0, k+2), []LoRAPart{{0, 2, 1, 3}}}}, nil)
		},
		"experts": func(s *Scope, h, w *Tensor) *Tensor {
			chosen, weight := Route(s.Zeros(Float32, rows, 1), Routing{PerToken: 1})
			return Experts(h, chosen, weight, MLPs{GateUp: w.View(4, -1), Down: s.Full(Float32, 0.5, h.Size(1), 2)})
		},
	}
	onDevices(t, func(t *testing.T, d *Device) {
		for maker, make := range makers {
			for reader, read := range readers {
				t.Run(maker+" and "+reader, func(t *testing.T) {
					measure := func(through func(h *Tensor) *Tensor) (kept int64, gradients []float64) {
						do(t, d, func(s *Scope) {
							x, norm := from(s, values(1, rows*width), Float32, rows, width), from(s, values(2, width), Float32, width)
							var w *Tensor
							s.Grad(true, func() {
								w = from(s, values(3, 4*make(x, norm).Size(1)), Float32, 4*make(x, norm).Size(1))
								for _, leaf := range []*Tensor{x, norm, w} {
									leaf.RequireGrad(true)
								}
								before := s.Memory().Allocated
								var y *Tensor
								s.Scoped(func() { y = s.Hoist(read(s, through(make(x, norm)), w)) })
								kept = s.Memory().Allocated - before - 4*y.Numel()
								Backward(one(y), one(from(s, values(4, y.Numel()), Float32, y.Shape()...)))
							})
							gradients = append(float64s(x.Grad()), float64s(w.Grad())...)
						})
						return kept, gradients
					}
					kept, gradients := measure(func(h *Tensor) *Tensor { return h })
					whole, want := measure(func(h *Tensor) *Tensor { return h.View(rows, -1) }) // a view of the result is not recomputed
					if saved := whole - kept; saved < 4*rows*width/2-slack {
						t.Errorf("%d bytes are kept, %d with the result", kept, whole)
					}
					if !slices.Equal(gradients, want) {
						t.Error("the gradients differ from the ones with the result kept")
					}
				})
			}
		}
	})
}
