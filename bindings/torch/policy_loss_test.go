package torch

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
)

// headProblem has seven tokens in two trajectories, one token masked, and a head of 6 by 11.
type headProblem struct {
	h, w    *Tensor
	limit   float64 // of logits; 0 means no limit
	targets *Tensor
	batch   kernels.LossBatch
	config  mgrpo.Objective
}

func newHeadProblem(s *Scope, dt DType) headProblem { return newHeadProblemOf(s, dt, 6, 11) }

func newHeadProblemOf(s *Scope, dt DType, width, vocab int64) headProblem {
	const n = 7
	p := headProblem{
		h: from(s, values(1, n*width), dt, n, width), w: from(s, values(2, vocab*width), dt, vocab, width),
		targets: s.FromInt32([]int32{3, 0, 10, 4, 4, 7, 1}, n), config: mgrpo.DefaultObjective(),
	}
	p.config.Ratio, p.config.KL, p.config.KLCoef, p.config.EntropyCoef = mgrpo.RatioCISPO, mgrpo.KL3, 0.1, 0.02
	wide, kind := Float32, kernels.Float32
	if dt == Float64 {
		wide, kind = Float64, kernels.Float64
	}
	behind := func(seed uint64) *Tensor {
		v := values(seed, n)
		for i := range v {
			v[i] = -2 - math.Abs(v[i])
		}
		return from(s, v, wide, n)
	}
	mask := s.Full(Uint8, 1, n)
	mask.Narrow(0, 2, 1).Fill_(0)
	p.batch = kernels.LossBatch{
		CuSeqlens: []int64{0, 3, n}, Weight: []float64{1, 2}, Advantage: []float64{1.5, -0.5}, Coefficient: []float64{0.2, 0.3},
		Mask: mask.Ptr(), DType: kind, LogpOld: behind(3).Ptr(), LogpRef: behind(4).Ptr(),
	}
	return p
}

// head returns w with the limit of its logits.
func (p headProblem) head(w *Tensor) Matrix {
	if p.limit == 0 {
		return w
	}
	return CappedHead{w, p.limit}
}

// twoPass computes log-probs and their loss, and propagates its gradient backward through the head.
func (p headProblem) twoPass(s *Scope, t *testing.T) (sums kernels.LossSums, dh, dw []float64) {
	t.Helper()
	h, w := p.h.Detach(), p.w.Detach()
	h.RequireGrad(true)
	w.RequireGrad(true)
	s.Grad(true, func() {
		logp, entropy := HeadLogProb(h, p.head(w), p.targets, 0.8, 3)
		batch := p.batch
		batch.LogpNew, batch.Entropy = logp.Detach().Ptr(), entropy.Detach().Ptr()
		g, e := s.Zeros(logp.DType(), logp.Shape()...), s.Zeros(logp.DType(), logp.Shape()...)
		var err error
		if sums, err = kernels.PolicyLoss(kernels.CPU, batch, p.config, g.Ptr(), e.Ptr()); err != nil {
			t.Fatal(err)
		}
		Backward([]*Tensor{logp, entropy}, []*Tensor{g, e})
	})
	return sums, float64s(h.Grad()), float64s(w.Grad())
}

func TestLinearPolicyLossIsTheTwoPassLoss(t *testing.T) {
	d := open(t)
	for dt, tolerance := range map[DType]float64{Float32: 1e-5, Float64: 1e-12, BFloat16: 2e-2} {
		for chunk, limit := range map[int64]float64{1: 0, 3: 1.5, 4: 0, 100: 0.7} {
			do(t, d, func(s *Scope) {
				p := newHeadProblem(s, dt)
				p.limit = limit
				sums, dh, dw := p.twoPass(s, t)
				p.w.RequireGrad(true)
				p.w.SetGrad(s.Full(dt, 0.5, p.w.Shape()...)) // the gradient is added to this
				got, err := LinearPolicyLoss(p.h, p.head(p.w), nil, p.targets, 0.8, chunk, p.batch, p.config)
				if err != nil {
					t.Fatal(err)
				}
				for i := range dw {
					dw[i] += 0.5
				}
				near := func(what string, got, want []float64) {
					t.Helper()
					for i := range want {
						if math.Abs(got[i]-want[i]) > tolerance*max(1, math.Abs(want[i])) {
							t.Errorf("%v, chunks of %d: %s %d: %v, want %v", dt, chunk, what, i, got[i], want[i])
						}
					}
				}
				a, b := got.Sums.Stats(kernels.LossTotals{}), sums.Stats(kernels.LossTotals{})
				near("loss", []float64{a.LossPolicy, a.LossKL, a.LossEntropy, *a.EntropyMean}, []float64{b.LossPolicy, b.LossKL, b.LossEntropy, *b.EntropyMean})
				near("dhidden", float64s(got.DHidden), dh)
				near("dw", float64s(p.w.Grad()), dw)
				frozen := p.w.Detach()
				if got, err = LinearPolicyLoss(p.h, p.head(frozen), nil, p.targets, 0.8, chunk, p.batch, p.config); err != nil || frozen.Grad() != nil {
					t.Fatalf("with a frozen head: error %v, gradient %v", err, frozen.Grad())
				}
				near("dhidden with a frozen head", float64s(got.DHidden), dh)
			})
		}
	}
}

// If the caller sums the gradient of a bf16 head in float32, its error is at most the error of the gradient that is rounded to bf16.
func TestLinearPolicyLossAddsToASum(t *testing.T) {
	const before = 8 // the next larger bf16 number is 1/16 away
	problem := func(s *Scope, dt DType) headProblem {
		p := newHeadProblem(s, dt)
		p.config.KL, p.config.KLCoef = mgrpo.KLNone, 0
		return p
	}
	var wantH, wantW []float64
	do(t, open(t), func(s *Scope) {
		p := problem(s, Float64)
		p.h, p.w = p.h.To(BFloat16).To(Float64), p.w.To(BFloat16).To(Float64)
		_, wantH, wantW = p.twoPass(s, t)
	})
	onDevices(t, func(t *testing.T, d *Device) {
		for _, chunk := range []int64{2, 3, 100} {
			do(t, d, func(s *Scope) {
				p := problem(s, BFloat16)
				p.w.RequireGrad(true)
				worst := func(sum *Tensor) (dh, dw float64) {
					got, err := LinearPolicyLoss(p.h, p.w, sum, p.targets, 0.8, chunk, p.batch, p.config)
					if err != nil {
						t.Fatal(err)
					}
					for i, v := range float64s(got.DHidden) {
						dh = max(dh, math.Abs(v-wantH[i]))
					}
					if sum == nil {
						sum = p.w.Grad()
					} else if p.w.Grad() != nil {
						t.Error("the head has a gradient too")
					}
					for i, v := range float64s(sum) {
						dw = max(dw, math.Abs(v-before-wantW[i]))
					}
					return dh, dw
				}
				dh, dw := worst(s.Full(Float32, before, p.w.Shape()...))
				p.w.SetGrad(s.Full(BFloat16, before, p.w.Shape()...))
				_, rounded := worst(nil)
				bound := 1e-2
				if !d.IsCUDA() { // the CPU also rounds logits
					bound = 5e-2
				}
				if !(dh < bound) || !(dw < bound) || !(dw < rounded) {
					t.Errorf("chunks of %d: errors %g and %g, the rounded gradient's error is %g", chunk, dh, dw, rounded)
				}
			})
		}
	})
}

func TestLinearPolicyLossRefusals(t *testing.T) {
	d := open(t)
	do(t, d, func(s *Scope) {
		call := func(change func(p *headProblem)) error {
			p := newHeadProblem(s, Float32)
			change(&p)
			_, err := LinearPolicyLoss(p.h, p.w, nil, p.targets, 0.8, 2, p.batch, p.config)
			return err
		}
		var failed *kernels.Error
		err := call(func(p *headProblem) { p.h.Narrow(0, 5, 1).Fill_(math.NaN()) })
		if !errors.As(err, &failed) || failed.Status != kernels.NonFinite || failed.Row != 5 {
			t.Errorf("NaN in row 5: %v", err)
		}
		var refused *mgrpo.Refusal
		if err := call(func(p *headProblem) { p.batch.LogpRef = nil }); !errors.As(err, &refused) || refused.Code != "missing_input" {
			t.Errorf("no reference: %v", err)
		}
		if err := call(func(p *headProblem) { p.batch.Weight = slices.Clone(p.batch.Weight); p.batch.Weight[1] = -1 }); !errors.As(err, &refused) || refused.Code != "bad_weight" {
			t.Errorf("negative weight: %v", err)
		}
		err = call(func(p *headProblem) { p.config.Ratio = mgrpo.RatioSequenceGeometric })
		if !errors.As(err, &failed) || failed.Status != kernels.InvalidArgument {
			t.Errorf("a sequence's ratio: %v", err)
		}
	})
}

// During the call only C has the addresses of the batch and of its options. Meanwhile another
// goroutine collects garbage and overwrites freed memory.
func TestLinearPolicyLossKeepsItsArguments(t *testing.T) {
	d := open(t)
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	wait.Go(func() {
		for ctx.Err() == nil {
			runtime.GC()
			filled := make([]any, 0, 10000)
			for range cap(filled) / 2 {
				options, batch := [12]float64{}, new([13]*int) // the sizes of the options and of the batch, with invalid contents
				for i := range options {
					options[i] = math.NaN()
				}
				filled = append(filled, &options, batch)
			}
		}
	})
	do(t, d, func(s *Scope) {
		const n = 20000 // number of times that the batch is read
		column := s.Full(Float32, -1, n, 1)
		_, err := LinearPolicyLoss(column, s.Full(Float32, 1, 3, 1), nil, s.FromInt32(make([]int32, n), n), 1, 1, kernels.LossBatch{
			CuSeqlens: []int64{0, n}, Weight: []float64{1}, Advantage: []float64{1}, Coefficient: []float64{1},
			Mask: s.Full(Uint8, 1, n).Ptr(), DType: kernels.Float32, LogpOld: column.Ptr(),
		}, mgrpo.DefaultObjective())
		if err != nil {
			t.Error(err)
		}
	})
}
