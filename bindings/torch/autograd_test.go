package torch

import (
	"slices"
	"testing"
)

// Two backward passes add into views of one flat buffer, which stays the gradients' storage.
func TestGradientsAccumulateInViewsOfOneBuffer(t *testing.T) {
	d := open(t)
	do(t, d, func(s *Scope) {
		flat := s.Zeros(Float32, 5)
		w, b := s.FromFloat32([]float32{1, 2, 3, 4}, 2, 2), s.FromFloat32([]float32{5}, 1)
		for _, p := range []*Tensor{w, b} {
			p.RequireGrad(true)
		}
		w.SetGrad(flat.Narrow(0, 0, 4).View(2, 2))
		b.SetGrad(flat.Narrow(0, 4, 1))
		address := flat.Ptr()
		for range 2 {
			s.Grad(true, func() {
				out := w.Mul(b)
				Backward([]*Tensor{out}, []*Tensor{s.FromFloat32([]float32{1, 0, -1, 2}, 2, 2)})
			})
		}
		if want := []float64{10, 0, -10, 20, 2 * (1 - 3 + 8)}; !slices.Equal(float64s(flat), want) {
			t.Errorf("flat gradients are %v, want %v", float64s(flat), want)
		}
		if w.Grad().Ptr() != address {
			t.Error("the gradient moved out of the buffer")
		}
		w.SetGrad(nil)
		if w.Grad() != nil {
			t.Error("the gradient is still there")
		}
	})
}

func TestBackwardOfSeveralOutputs(t *testing.T) {
	d := open(t)
	do(t, d, func(s *Scope) {
		x := s.FromFloat32([]float32{1, 2}, 2)
		x.RequireGrad(true)
		s.Grad(true, func() {
			Backward([]*Tensor{x.Scale(3), x.Mul(x).Sum()}, []*Tensor{s.FromFloat32([]float32{1, -1}, 2), nil})
		})
		if want := []float64{5, 1}; !slices.Equal(float64s(x.Grad()), want) {
			t.Errorf("gradient %v, want %v", float64s(x.Grad()), want)
		}
	})
}

func TestGradModeIsTheScopes(t *testing.T) {
	d := open(t)
	recorded := func(s *Scope) (ok bool) {
		x := s.Full(Float32, 1, 1)
		x.RequireGrad(true)
		defer func() { ok = recover() == nil }()
		Backward([]*Tensor{x.Scale(2)}, []*Tensor{nil})
		return
	}
	failure(t, d, func(s *Scope) {
		s.Grad(true, func() {
			if !recorded(s) {
				t.Error("grad mode is off inside Grad(true)")
			}
			s.Grad(false, func() {
				if recorded(s) {
					t.Error("grad mode is on inside Grad(false)")
				}
			})
			if !recorded(s) {
				t.Error("grad mode was not restored")
			}
			s.Zeros(Float32, 1).Add(nil) // leave by a panic
		})
	})
	do(t, d, func(s *Scope) {
		if recorded(s) {
			t.Error("grad mode leaked into the next Do")
		}
	})
}

func TestAutogradErrors(t *testing.T) {
	d := open(t)
	for _, c := range []struct {
		name, want string
		run        func(s *Scope)
	}{
		{"no history", "no gradient history", func(s *Scope) { Backward(one(s.Zeros(Float32, 1)), []*Tensor{nil}) }},
		{"counts", "1 outputs with 0 gradients", func(s *Scope) { Backward(one(s.Zeros(Float32, 1)), nil) }},
		{"shape", "shape", func(s *Scope) { s.Zeros(Float32, 2).SetGrad(s.Zeros(Float32, 3)) }},
		{"integers", "floating point", func(s *Scope) { s.Zeros(Int32, 2).RequireGrad(true) }},
		{"gradient shape", "backward", func(s *Scope) {
			x := s.Zeros(Float32, 2)
			x.RequireGrad(true)
			s.Grad(true, func() { Backward(one(x.Scale(2)), one(s.Zeros(Float32, 3))) })
		}},
		{"write to a leaf", "leaf", func(s *Scope) {
			x := s.Zeros(Float32, 2)
			x.RequireGrad(true)
			s.Grad(true, func() { x.Fill_(1) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) { wantMessage(t, failure(t, d, c.run), c.want) })
	}
}
