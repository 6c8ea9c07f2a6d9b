package torch

import (
	"math"
	"slices"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
)

// float32 can represent 1 + 2^-9, bfloat16 cannot.
func TestFactorsAreRounded(t *testing.T) {
	d := openOn(t, "cpu")
	product := func() (got float64) {
		do(t, d, func(s *Scope) {
			a := s.Full(Float32, 1+1./512, 512, 512)
			s.Training(func() { got = float64s(Linear(a, s.Full(Float32, 1, 512, 512), nil))[0] })
		})
		return got
	}
	exact := 512 + 512./512
	if got := product(); got != exact {
		t.Fatalf("%v, want %v", got, exact)
	}
	want := exact
	if SetRoundFactors(true) {
		want = 512
	}
	got := product()
	SetRoundFactors(false)
	if got != want || product() != exact {
		t.Errorf("%v, and afterwards %v, want %v and %v", got, product(), want, exact)
	}
}

// In products with bf16 weights during sampling, avx512_bf16 rounds the other factor; AMX tiles split it into two parts.
func TestHalfWeightsRoundTheirInput(t *testing.T) {
	d := openOn(t, "cpu")
	products := func() (linear, expert float64) {
		do(t, d, func(s *Scope) {
			x, ones := s.Full(Float32, 1+1./512, 6, 512), s.Full(BFloat16, 1, 2, 512)
			linear = float64s(Linear(x, ones, nil))[0]
			chosen, weight := Route(s.Zeros(Float32, 6, 1), Routing{PerToken: 1, Normalise: true})
			// One unit: the square of the sum.
			expert = float64s(Experts(x, chosen, weight, MLPs{GateUp: ones, Down: s.Full(BFloat16, 1, 512, 1)}))[0]
		})
		return linear, expert
	}
	check := func(when string, want float64) {
		t.Helper()
		linear, expert := products()
		if linear != want || !(math.Abs(expert/(want*want)-1) < 1e-4) {
			t.Errorf("%s: linear layer %v and expert %v, want %v and its square", when, linear, expert, want)
		}
	}
	check("with factors as they are", 513)
	want := 513.0
	defer SetRoundFactors(false)
	if SetRoundFactors(true) && kernels.ISA() == "avx512" {
		want = 512
	}
	check("with rounded factors", want)
	SetRoundFactors(false)
	check("afterwards", 513)
}

// In training, passes without gradients round like passes with gradients. All other passes stay exact.
func TestTrainingRoundsAlike(t *testing.T) {
	d := openOn(t, "cpu")
	const rows, k, n = 34, 70, 96
	for name, f := range map[string]func(s *Scope, x, w *Tensor) *Tensor{
		"linear": func(_ *Scope, x, w *Tensor) *Tensor { return Linear(x, w, nil) },
		"adapted": func(s *Scope, x, w *Tensor) *Tensor {
			adapter := LoRA{from(s, values(3, 2*k+2*n), Float32, 2*k+2*n), []LoRAPart{{0, n, 2, 0.5}}}
			adapter.Values.RequireGrad(true)
			return LoRAAdd_(Linear(x, w, nil), x, []LoRA{adapter}, nil)
		},
		"head": func(s *Scope, x, w *Tensor) *Tensor {
			logp, _ := HeadLogProb(x, w, s.FromInt32(make([]int32, rows), rows), 1, 16)
			return logp
		},
		"experts": func(s *Scope, x, w *Tensor) *Tensor { // two experts of 24 units
			chosen, weight := Route(s.Zeros(Float32, rows, 2), Routing{PerToken: 2, Normalise: true})
			return Experts(x, chosen, weight, MLPs{GateUp: w, Down: s.Full(Float32, 1+1./512, 2*k, n/4)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !SetRoundFactors(true) {
				t.Skip("neither AMX nor avx512_bf16 is available")
			}
			defer SetRoundFactors(false)
			do(t, d, func(s *Scope) {
				x, w := from(s, values(1, rows*k), Float32, rows, k), from(s, values(2, n*k), Float32, n, k)
				var with, without []float64
				pass := func() (dx []float64) {
					x.RequireGrad(true)
					x.SetGrad(nil)
					s.Training(func() {
						s.Grad(true, func() {
							y := f(s, x, w)
							Backward(one(y), one(s.Full(Float32, 1, y.Shape()...)))
							with = float64s(y.Detach())
						})
						x.RequireGrad(false)
						without = float64s(f(s, x, w))
					})
					return float64s(x.Grad())
				}
				dx := pass()
				if d, away := apart(with, without), apart(with, float64s(f(s, x, w))); !(d <= 1e-6) || !(away >= 1e-4) {
					t.Errorf("passes with and without gradients are %v apart, and %v from a pass outside training", d, away)
				}
				SetRoundFactors(false)
				if d := apart(dx, pass()); !(d < 0.02) {
					t.Errorf("dx is %v away from dx of exact factors", d)
				}
			})
		})
	}
}

// apart returns the largest difference, relative to the largest number.
func apart(a, b []float64) (worst float64) {
	largest := 0.0
	for i := range a {
		worst, largest = max(worst, math.Abs(a[i]-b[i])), max(largest, math.Abs(b[i]))
	}
	return worst / largest
}

// The products of a linear layer, and of a head with its loss, round in the forward and in the backward pass.
func TestGradientsAreOfRoundedFactors(t *testing.T) {
	d := openOn(t, "cpu")
	if !SetRoundFactors(true) {
		t.Skip("neither AMX nor avx512_bf16 is available")
	}
	defer SetRoundFactors(false)
	all := func(what string, x *Tensor, want float64) {
		t.Helper()
		for i, got := range float64s(x) {
			if got != want {
				t.Fatalf("%s %d is %v, want %v", what, i, got, want)
			}
		}
	}
	do(t, d, func(s *Scope) {
		ones := func(rows, columns int64) *Tensor { return s.Full(Float32, 1+1./512, rows, columns) }
		x, w, b := ones(33, 70), ones(45, 70), s.Full(Float32, 2, 45)
		for _, p := range []*Tensor{x, w, b} {
			p.RequireGrad(true)
		}
		for turn := range 2 { // the first turn creates the gradient of w, the second adds to it
			s.Training(func() {
				s.Grad(true, func() {
					y := Linear(x, w, b)
					all("y", y, 70+2)
					Backward([]*Tensor{y}, []*Tensor{ones(33, 45)})
				})
			})
			all("dx", x.Grad(), 45*float64(turn+1))
			all("dw", w.Grad(), 33*float64(turn+1))
		}
	})
	do(t, d, func(s *Scope) {
		p := newHeadProblemOf(s, Float32, 60, 110) // LibTorch does not round small products
		rounded := func(x *Tensor) *Tensor { return x.To(BFloat16).To(Float32) }
		loss := func(h, w *Tensor) (logp, dw []float64) {
			w.RequireGrad(true)
			w.SetGrad(s.Zeros(Float32, w.Shape()...))
			var got HeadLoss
			var err error
			s.Training(func() { got, err = LinearPolicyLoss(h, w, nil, p.targets, 0.8, 3, p.batch, p.config) })
			if err != nil {
				t.Fatal(err)
			}
			return float64s(got.LogProb), float64s(w.Grad())
		}
		logp, dw := loss(p.h, p.w)
		sameLogp, sameDw := loss(rounded(p.h), rounded(p.w))
		if !slices.Equal(logp, sameLogp) || !slices.Equal(dw, sameDw) {
			t.Error("the loss or its gradient differs from the one with factors that are already rounded")
		}
		SetRoundFactors(false)
		if exact, _ := loss(p.h, p.w); slices.Equal(exact, logp) {
			t.Error("no factor was rounded")
		}
	})
}

func TestOps(t *testing.T) {
	d := open(t)
	a, b := []float64{1, -2, 3, 4, 5, -6}, []float64{0.5, 2, -1}
	for _, c := range []struct {
		name string
		run  func(s *Scope, a, b *Tensor) *Tensor
		want []float64
	}{
		{"add", func(s *Scope, a, b *Tensor) *Tensor { return a.Add(b) }, []float64{1.5, 0, 2, 4.5, 7, -7}},
		{"mul", func(s *Scope, a, b *Tensor) *Tensor { return a.Mul(b) }, []float64{0.5, -4, -3, 2, 10, 6}},
		{"scale", func(s *Scope, a, b *Tensor) *Tensor { return a.Scale(-2) }, []float64{-2, 4, -6, -8, -10, 12}},
		{"matmul", func(s *Scope, a, b *Tensor) *Tensor { return a.MatMul(b.View(3, 1)) }, []float64{-6.5, 18}},
		{"sigmoid", func(s *Scope, a, b *Tensor) *Tensor { return b.Sigmoid() }, []float64{1 / (1 + math.Exp(-0.5)), 1 / (1 + math.Exp(-2)), 1 / (1 + math.Exp(1))}},
		{"sum", func(s *Scope, a, b *Tensor) *Tensor { return a.Sum() }, []float64{5}},
		{"norm", func(s *Scope, a, b *Tensor) *Tensor { return a.Norm() }, []float64{math.Sqrt(91)}},
		{"view", func(s *Scope, a, b *Tensor) *Tensor { return a.View(3, -1) }, a},
		{"narrow", func(s *Scope, a, b *Tensor) *Tensor { return a.Narrow(1, 1, 2) }, []float64{-2, 3, 5, -6}},
		{"select", func(s *Scope, a, b *Tensor) *Tensor { return a.Select(0, 1) }, []float64{4, 5, -6}},
		{"transpose", func(s *Scope, a, b *Tensor) *Tensor { return a.Transpose(0, 1) }, []float64{1, 4, -2, 5, 3, -6}},
		{"index select", func(s *Scope, a, b *Tensor) *Tensor { return a.IndexSelect(1, s.FromInt32([]int32{2, 0}, 2)) }, []float64{3, 1, -6, 4}},
		{"in place", func(s *Scope, a, b *Tensor) *Tensor {
			c := a.Clone()
			c.Add_(b)
			c.AddScaled_(b, -3)
			c.Scale_(2)
			return c
		}, []float64{0, -12, 10, 6, 2, -8}},
		{"copy from", func(s *Scope, a, b *Tensor) *Tensor { c := s.Empty(BFloat16, 2, 3); c.CopyFrom(b); return c }, append(slices.Clone(b), b...)},
		{"set bytes", func(s *Scope, a, b *Tensor) *Tensor {
			c := s.Full(Float32, 9, 2)
			c.SetBytes([]byte{1, 0, 255, 255}, Int16)
			return c
		}, []float64{1, -1}},
	} {
		for _, dt := range []DType{Float32, Float64} {
			t.Run(c.name+"/"+dt.String(), func(t *testing.T) {
				do(t, d, func(s *Scope) {
					wantClose(t, c.name, float64s(c.run(s, from(s, a, dt, 2, 3), from(s, b, dt, 3))), c.want, 1e-6)
				})
			})
		}
	}
}

// A float32 running sum would stop at 2^24.
func TestReductionsAccumulateInFloat64(t *testing.T) {
	d := open(t)
	const n = 1<<24 + 1<<20 + 3
	do(t, d, func(s *Scope) {
		ones := s.Full(Float32, 1, n)
		if got := ones.Sum().Item(); got != n {
			t.Errorf("sum of %d ones is %g", n, got)
		}
		if got := ones.Norm().Item(); math.Abs(got-math.Sqrt(n)) > 1e-9 {
			t.Errorf("norm of %d ones is %g", n, got)
		}
	})
}

func TestCopies(t *testing.T) {
	d := open(t)
	do(t, d, func(s *Scope) {
		f := []float32{1.5, -2, 3e38, 0}
		x := s.FromFloat32(f, 2, 2)
		got := make([]float32, 4)
		x.Transpose(0, 1).Float32s(got)
		if want := []float32{1.5, 3e38, -2, 0}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		i32 := make([]int32, 3)
		s.FromInt32([]int32{-1, 1 << 30, 7}, 3).Int32s(i32)
		if !slices.Equal(i32, []int32{-1, 1 << 30, 7}) {
			t.Errorf("got %v", i32)
		}
		if empty := s.FromFloat32(nil, 0, 3); empty.Numel() != 0 || len(float64s(empty)) != 0 {
			t.Error("an empty tensor is not empty")
		}
		if s.FromFloat32([]float32{4}).Item() != 4 {
			t.Error("scalar")
		}
		if x.Size(-1) != 2 || x.Dim() != 2 || !slices.Equal(x.Shape(), []int64{2, 2}) || x.DType() != Float32 {
			t.Error("metadata")
		}
		if *(*float32)(x.Ptr()) != 1.5 {
			t.Error("pointer")
		}
	})
}

func TestOpErrors(t *testing.T) {
	d := open(t)
	for _, c := range []struct {
		name string
		want []string
		run  func(s *Scope)
	}{
		{"matmul", []string{"torch: matmul: ", "(2x2 and 3x3)", "float32[2 2], float32[3 3]"}, func(s *Scope) {
			s.Zeros(Float32, 2, 2).MatMul(s.Zeros(Float32, 3, 3))
		}},
		{"add", []string{"torch: add: ", "size of tensor a (2)"}, func(s *Scope) { s.Zeros(Float32, 2).Add(s.Zeros(Float32, 3)) }},
		{"view", []string{"torch: view: ", "float32[2 2]"}, func(s *Scope) { s.Zeros(Float32, 2, 2).View(3) }},
		{"pointer", []string{"torch: ptr: ", "call Contiguous"}, func(s *Scope) { s.Zeros(Float32, 2, 3).Transpose(0, 1).Ptr() }},
		{"item", []string{"torch: item: "}, func(s *Scope) { s.Zeros(Float32, 2).Item() }},
		{"length", []string{"3 values for shape [2 2], which holds 4"}, func(s *Scope) { s.FromFloat32(make([]float32, 3), 2, 2) }},
		{"overflow", []string{"impossible shape"}, func(s *Scope) { s.FromFloat32(nil, 1<<40, 1<<40, 0) }},
		{"negative", []string{"impossible shape"}, func(s *Scope) { s.FromFloat32(nil, -1, 0) }},
		{"allocation", []string{"torch: empty: "}, func(s *Scope) { s.Empty(Float32, 1<<50) }},
		{"dtype", []string{"torch: empty: "}, func(s *Scope) { s.Empty(DType(99), 1) }},
		{"dimensions", []string{"at most 8"}, func(s *Scope) { s.Zeros(Float32, 1, 1, 1, 1, 1, 1, 1, 1, 1) }},
		{"buffer", []string{"slice of 3 for a tensor of 2"}, func(s *Scope) { s.Zeros(Float32, 2).Float32s(make([]float32, 3)) }},
		{"size", []string{"dimension 2 of a tensor of 2"}, func(s *Scope) { s.Zeros(Float32, 2, 2).Size(2) }},
		{"nil", []string{"nil tensor"}, func(s *Scope) { s.Zeros(Float32, 2).Add(nil) }},
	} {
		t.Run(c.name, func(t *testing.T) { wantMessage(t, failure(t, d, c.run), c.want...) })
	}
}
