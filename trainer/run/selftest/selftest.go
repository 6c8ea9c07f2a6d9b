// Package selftest tries the kernels of a machine on small inputs and compares their results with float64.
// The references are trainer/mgrpo/oracle, LibTorch's own operations in float64, or a definition written
// here. Without it a run would not notice an instruction set or a GPU on which a kernel is slightly wrong.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
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

// Result is the result of trying a kernel.
type Result struct {
	Kernel string
	On     string  // an instruction set of the CPU, or a device such as cuda:0
	Error  float64 // largest difference from float64, relative to the largest value of the result; NaN counts as infinite
	Bound  float64 // largest allowed Error
	Rate   float64 // values of the result per second, for the small inputs used here
	Err    error   // the kernel did not run
}

// Failed reports whether the kernel must not be used.
func (r Result) Failed() bool { return r.Err != nil || !(r.Error <= r.Bound) }

func (r Result) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s on %s: %v", r.Kernel, r.On, r.Err)
	}
	return fmt.Sprintf("%s on %s differs from float64 by %.2g of its largest value, more than %.2g", r.Kernel, r.On, r.Error, r.Bound)
}

// kernel is a kernel that is tried.
type kernel struct {
	name  string
	bound float64
	try   func(t *trial) error
}

// trial is one try of a kernel: its place and its results.
type trial struct {
	s      *torch.Scope
	on     kernels.Backend
	real   torch.DType // type of the layers' tensors: float32, on a GPU also bfloat16
	rows   int64       // size of the inputs
	worst  float64
	took   time.Duration // time of the measured calls
	values int64         // number of values in their results
}

// Sizes of the inputs: rows of logits, hidden states and so on. Both are odd, so that loops have remainders.
const (
	Quick    = 5
	Thorough = 67
)

// CheckKernels checks every kernel on a device. On the CPU it uses the current instruction set. On a GPU for which this build has no
// kernels it checks none.
func CheckKernels(ctx context.Context, d *torch.Device, rows int64) ([]Result, error) {
	return try(ctx, d, rows, allKernels())
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
				r.Rate = float64(t.values) / t.took.Seconds()
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// Bounds. Sums of some hundred products in float32 have errors of some units of 1e-7. LibTorch and CUDA do not guarantee
// the last digits of a GPU's products and exponentials. bfloat16 has 8 binary digits, and steps of a layer round to it.
const (
	floatBound = 1e-5
	amxBound   = 4e-5 // bfloat16 weights times the sum of two bfloat16, see mgrpo/linear.h
	gpuBound   = 1e-4
	halfBound  = 1e-1
)

// work calls f, which computes the given number of values, and adds up its time.
func (t *trial) work(values int64, f func() error) error {
	start := time.Now()
	err := f()
	t.took, t.values = t.took+time.Since(start), t.values+values
	return err
}

// compare records the largest difference between results and expected values.
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

// uniform returns n numbers in [-1, 1), which depend on stream only.
func uniform(stream uint32, n int64) []float32 {
	out := make([]float32, n)
	for i := range out {
		word := mgrpo.Philox4x32([4]uint32{uint32(i / 4)}, [2]uint32{stream, 0})[i%4]
		out[i] = float32(word>>8)*0x1p-23 - 1
	}
	return out
}

// index returns n numbers in [0, below), which depend on stream only.
func index(stream uint32, n int64, below int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(mgrpo.Philox4x32([4]uint32{uint32(i)}, [2]uint32{stream, 1})[0] % uint32(below))
	}
	return out
}

func toFloat64(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
