package torch

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

type goldenBlocks struct {
	golden.Blocks
	kind QuantType
}

func readBlocks(t *testing.T) (all []goldenBlocks) {
	blocks := golden.QuantisedBlocks(t)
	for name, kind := range map[string]QuantType{"Q4_0": Q4_0, "Q4_1": Q4_1, "Q5_0": Q5_0, "Q5_1": Q5_1, "Q8_0": Q8_0, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K} {
		if _, there := blocks[name]; !there {
			t.Fatalf("no blocks of %s", name)
		}
		all = append(all, goldenBlocks{blocks[name], kind})
	}
	return all
}

// matrix stacks the blocks `times` times as rows of one block each. It returns them quantised and widened.
func (b goldenBlocks) matrix(s *Scope, times int) (QuantPart, *Tensor) {
	k := int64(32)
	if b.kind >= Q4_K {
		k = 256
	}
	rows := int64(len(b.Values)) / k
	var data []byte
	var values []float32
	for range times {
		data, values = append(data, b.Data...), append(values, b.Values...)
	}
	rows *= int64(times)
	return QuantPart{b.kind, s.FromBytes(data, Uint8, rows, int64(len(data))/rows)}, s.FromFloat32(values, rows, k)
}

// wantNear tolerates errors relative to the largest value, because sums of random blocks cancel.
func wantNear(t *testing.T, what string, got, want []float64, part float64) {
	t.Helper()
	largest := 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	for i := range want {
		if !(math.Abs(got[i]-want[i]) <= part*largest) {
			t.Fatalf("%s: value %d is %v, want %v (the largest is %v)", what, i, got[i], want[i], largest)
		}
	}
}

// TestQuantised compares every operation that takes a quantised matrix with the same operation by the widened one.
func TestQuantised(t *testing.T) {
	blocks := readBlocks(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for _, b := range blocks {
			do(t, d, func(s *Scope) {
				part, wide := b.matrix(s, 3)
				k, n := wide.Size(1), wide.Size(0)
				w := NewQuantised(k, Float32, part)
				x, bias := from(s, values(1, 7*k), Float32, 7, k), from(s, values(2, n), Float32, n)
				tolerance := 1e-5
				got, want := Linear(x, w, bias), Linear(x, wide, bias)
				if d.IsCUDA() {
					wantNear(t, "linear", float64s(got), float64s(want), tolerance)
				} else if wantNear(t, "linear with bias", float64s(got), float64s(want), 1e-6); !Linear(x, w, nil).Equal(Linear(x, wide, nil)) {
					t.Errorf("type %d: bits differ from the widened matrix", b.kind)
				}
				ids := s.FromInt32([]int32{int32(n - 1), 0, 1, 1}, 4)
				if !Embedding(w, ids).Equal(Embedding(wide, ids)) || !w.Widen(s, 1, n-1).Equal(wide.Narrow(0, 1, n-1)) {
					t.Errorf("type %d: rows differ from the widened matrix", b.kind)
				}
				targets := s.FromInt32([]int32{0, 1, 2, 3, 4, 5, 0}, 7)
				scale := 1 / float64(k)
				gradient := func(w Matrix) (logp, entropy, dx []float64) {
					in := x.Scale(scale).Detach()
					in.RequireGrad(true)
					s.Grad(true, func() {
						lp, e := HeadLogProb(in, w, targets, 0.9, 3)
						y := Linear(in, w, bias)
						Backward([]*Tensor{lp, e, y}, []*Tensor{from(s, values(3, 7), Float32, 7), from(s, values(4, 7), Float32, 7), from(s, values(5, 7*n), Float32, 7, n)})
						logp, entropy = float64s(lp.Detach()), float64s(e.Detach())
					})
					return logp, entropy, float64s(in.Grad())
				}
				logp, entropy, dx := gradient(w)
				wantLogp, wantEntropy, wantDx := gradient(wide)
				wantNear(t, "log-prob", logp, wantLogp, tolerance)
				wantNear(t, "entropy", entropy, wantEntropy, 10*tolerance)
				wantNear(t, "gradient", dx, wantDx, tolerance)
			})
		}
	})
}

// TestLogits checks that for every kind of head a GPU returns unrounded sums of bf16 products. HeadLogProb scores with the same sums.
func TestLogits(t *testing.T) {
	blocks := readBlocks(t)
	onDevices(t, func(t *testing.T, d *Device) {
		dtype, tolerance := BFloat16, 1e-2
		if d.IsCUDA() {
			dtype, tolerance = Float32, 1e-5
		}
		for _, b := range blocks {
			do(t, d, func(s *Scope) {
				part, wide := b.matrix(s, 3)
				half := wide.To(BFloat16)
				x := from(s, values(1, 7*wide.Size(1)), BFloat16, 7, wide.Size(1))
				want := float64s(x.To(Float32).MatMul(half.To(Float32).Transpose(0, 1)))
				for name, w := range map[string]Matrix{"quantised": NewQuantised(wide.Size(1), BFloat16, part), "bf16": half} {
					what := fmt.Sprintf("%s head of type %d", name, b.kind)
					got := Logits(x, w)
					if got.DType() != dtype {
						t.Errorf("%s: %v", what, got.DType())
					}
					wantNear(t, what, float64s(got), want, tolerance)
				}
			})
		}
	})
}

// TestQuantisedParts multiplies by a matrix with rows of two types.
func TestQuantisedParts(t *testing.T) {
	blocks := readBlocks(t)
	onDevices(t, func(t *testing.T, d *Device) {
		do(t, d, func(s *Scope) {
			var parts []QuantPart
			var wide []*Tensor
			for _, b := range blocks {
				if b.kind == Q4_K || b.kind == Q6_K {
					p, w := b.matrix(s, 2)
					parts, wide = append(parts, p), append(wide, w)
				}
			}
			q := NewQuantised(256, Float32, parts...)
			gradient := func(of func(x *Tensor) []*Tensor) (y, dx []float64) {
				x := from(s, values(6, 3*256), Float32, 3, 256)
				x.RequireGrad(true)
				s.Grad(true, func() {
					outputs := of(x)
					var grads []*Tensor
					for i, o := range outputs {
						g := values(7, 3*q.Size(0))
						if len(outputs) == 1 {
							grads = append(grads, from(s, g, Float32, 3, q.Size(0)))
							continue
						}
						grads = append(grads, from(s, g, Float32, 3, q.Size(0)).Narrow(1, int64(i)*wide[0].Size(0), o.Size(1)))
					}
					Backward(outputs, grads)
					for row := range int64(3) {
						for _, o := range outputs {
							y = append(y, float64s(o.Detach().Select(0, row))...)
						}
					}
				})
				return y, float64s(x.Grad())
			}
			y, dx := gradient(func(x *Tensor) []*Tensor { return []*Tensor{Linear(x, q, nil)} })
			wantY, wantDx := gradient(func(x *Tensor) []*Tensor { return []*Tensor{Linear(x, wide[0], nil), Linear(x, wide[1], nil)} })
			wantNear(t, "product", y, wantY, 1e-5)
			wantNear(t, "gradient", dx, wantDx, 1e-5)
		})
	})
}

func TestQuantisedRefusals(t *testing.T) {
	d := open(t)
	for what, f := range map[string]func(s *Scope, w *Quantised){
		"no rows of":   func(s *Scope, w *Quantised) { Linear(s.Zeros(Float32, 2, 33), w, nil) },
		"blocks must":  func(s *Scope, w *Quantised) { Linear(s.Zeros(Float32, 2, 64), w, nil) },
		"every id":     func(s *Scope, w *Quantised) { Embedding(w, s.FromInt32([]int32{4}, 1)) },
		"float32 or":   func(s *Scope, w *Quantised) { Linear(s.Zeros(Float64, 2, 32), w, nil) },
		"rows outside": func(s *Scope, w *Quantised) { w.Widen(s, 4, 1) },
		"1 is needed": func(s *Scope, w *Quantised) {
			HeadLogProb(s.Zeros(Float32, 1, 32), NewQuantised(32, Float32, QuantPart{Q8_0, w.blocks[0]}, QuantPart{Q8_0, w.blocks[0]}), s.FromInt32([]int32{0}, 1), 1, 1)
		},
	} {
		err := failure(t, d, func(s *Scope) {
			f(s, NewQuantised(32, Float32, QuantPart{Q8_0, s.Zeros(Uint8, 4, 34)}))
		})
		wantMessage(t, err, what)
	}
}

// The contributions of many parts of a matrix to a bf16 gradient are summed first and rounded
// once. Rounding after each part would lose the small ones.
func TestQuantisedGradientIsRoundedOnce(t *testing.T) {
	const k, small = 32, 16
	row := func(value byte) []byte { return append([]byte{0, 0x3c}, bytes.Repeat([]byte{value}, k)...) } // scale 1, in fp16
	onDevices(t, func(t *testing.T, d *Device) {
		do(t, d, func(s *Scope) {
			parts, dy := []QuantPart{{Q8_0, s.FromBytes(row(64), Uint8, 1, 34)}}, []float64{4}
			for range small {
				parts, dy = append(parts, QuantPart{Q8_0, s.FromBytes(row(1), Uint8, 1, 34)}), append(dy, 0.5)
			}
			x := s.Full(BFloat16, 1, 1, k)
			x.RequireGrad(true)
			s.Grad(true, func() {
				Backward([]*Tensor{Linear(x, NewQuantised(k, BFloat16, parts...), nil)}, []*Tensor{from(s, dy, BFloat16, 1, 1+small)})
			})
			for i, v := range float64s(x.Grad()) {
				if v != 4*64+0.5*small {
					t.Errorf("gradient %d is %v, want %v", i, v, 4*64+0.5*small)
				}
			}
		})
	})
}
