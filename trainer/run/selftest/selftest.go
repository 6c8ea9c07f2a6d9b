// Package selftest tries the kernels of a machine on small inputs and compares their results with float64: with trainer/mgrpo/oracle,
// with LibTorch's own operations in float64, or with a definition written out here. Nothing else in a run would notice
// an instruction set or a GPU on which a kernel is wrong by a little.
package selftest

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/mgrpo"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// Result is what became of a kernel.
type Result struct {
	Kernel string
	On     string  // an instruction set of the CPU, or a device such as cuda:0
	Error  float64 // largest difference from float64, as a part of the largest value of its result; NaN counts as infinite
	Bound  float64 // of Error
	Rate   float64 // values of its results a second; of the small inputs here
	Err    error   // it failed altogether
}

// Failed says whether the kernel is not to be used.
func (r Result) Failed() bool { return r.Err != nil || !(r.Error <= r.Bound) }

func (r Result) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s on %s: %v", r.Kernel, r.On, r.Err)
	}
	return fmt.Sprintf("%s on %s is %.2g of its largest value away from float64, more than %.2g", r.Kernel, r.On, r.Error, r.Bound)
}

// kernel is one that is tried.
type kernel struct {
	name  string
	bound float64
	try   func(t *trial) error
}

// trial is the place where a kernel is tried, and what came out.
type trial struct {
	s     *torch.Scope
	on    kernels.Backend
	real  torch.DType // of the layers' tensors: float32, on a GPU bfloat16, too
	rows  int64       // size of the inputs
	worst float64
	took  time.Duration // of the calls that are measured, and the values of their results
	made  int64
}

// Sizes of the inputs: rows of logits, hidden states and the like. Both are odd, so that no loop comes out even.
const (
	Quick    = 5
	Thorough = 67
)

// Try tries every kernel on a device, on the CPU with the instruction set in use; none on a GPU for which this build has none.
func Try(ctx context.Context, d *torch.Device, rows int64) ([]Result, error) {
	return try(ctx, d, rows, all())
}

func try(ctx context.Context, d *torch.Device, rows int64, all []kernel) (out []Result, err error) {
	types, on, least := []torch.DType{torch.Float32}, kernels.ISA(), 0.0
	if d.IsCUDA() {
		ours := false
		err := d.Do(ctx, func(s *torch.Scope) error {
			ours = model.Backend(s).String() != kernels.CPU.String()
			return nil
		})
		if err != nil || !ours {
			return nil, err
		}
		types, on, least = append(types, torch.BFloat16), d.Spec(), gpuBound
	}
	for _, real := range types {
		for _, k := range all {
			r := Result{Kernel: k.name, On: on, Bound: max(k.bound, least)}
			if real == torch.BFloat16 {
				r.Kernel, r.Bound = k.name+" bf16", halfBound
			}
			t := &trial{real: real, rows: rows}
			r.Err = d.Do(ctx, func(s *torch.Scope) error {
				t.s, t.on = s, model.Backend(s)
				return k.try(t)
			})
			if ctx.Err() != nil {
				return out, ctx.Err()
			}
			if r.Error = t.worst; t.took > 0 {
				r.Rate = float64(t.made) / t.took.Seconds()
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// Bounds. Sums of some hundred products in float32 err by some units of 1e-7. A GPU's products and exponentials are LibTorch's and
// CUDA's, whose last digits are not promised. bfloat16 has 8 binary digits, and steps of a layer round to it.
const (
	floatBound = 1e-5
	amxBound   = 4e-5 // bfloat16 weights times the sum of two bfloat16, as mgrpo/nn.h says
	gpuBound   = 1e-4
	halfBound  = 1e-1
)

// work runs a call that makes so many values and counts its time.
func (t *trial) work(values int64, f func() error) error {
	start := time.Now()
	err := f()
	t.took, t.made = t.took+time.Since(start), t.made+values
	return err
}

// compare takes note of how far results are away from what is expected.
func compare[T float32 | float64](t *trial, got []T, want []float64) {
	largest := 1e-30
	for _, w := range want {
		largest = max(largest, math.Abs(w))
	}
	if len(got) != len(want) {
		t.worst = math.Inf(1)
		return
	}
	for i, w := range want {
		apart := math.Abs(float64(got[i])-w) / largest
		if math.IsNaN(apart) {
			apart = math.Inf(1)
		}
		t.worst = max(t.worst, apart)
	}
}

// uniform is n numbers in [-1, 1), a function of stream alone.
func uniform(stream uint32, n int64) []float32 {
	out := make([]float32, n)
	for i := range out {
		word := mgrpo.Philox4x32([4]uint32{uint32(i / 4)}, [2]uint32{stream, 0})[i%4]
		out[i] = float32(word>>8)*0x1p-23 - 1
	}
	return out
}

// index is n numbers in [0, below), a function of stream alone.
func index(stream uint32, n int64, below int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(mgrpo.Philox4x32([4]uint32{uint32(i)}, [2]uint32{stream, 1})[0] % uint32(below))
	}
	return out
}

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
