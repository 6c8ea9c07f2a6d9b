package kernels

import (
	"context"
	"math"
	"unsafe"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// desk is where a case's tensors lie between runs.
type desk struct {
	dev  *torch.Device
	s    *torch.Scope // of the running do
	kept []*torch.Tensor
}

// do runs f on the device's thread.
func (d *desk) do(ctx context.Context, f func() error) error {
	return d.dev.Do(ctx, func(s *torch.Scope) error {
		d.s = s
		return f()
	})
}

func (d *desk) clear(ctx context.Context) error {
	return d.do(ctx, func() error {
		for _, t := range d.kept {
			t.Drop()
		}
		d.kept = nil
		return nil
	})
}

func (d *desk) keep(t *torch.Tensor) *torch.Tensor {
	d.kept = append(d.kept, d.s.Keep(t))
	return t
}

// empty is a float32 tensor to be written.
func (d *desk) empty(shape ...int64) *torch.Tensor { return d.keep(d.s.Empty(torch.Float32, shape...)) }

// uniform is a float32 tensor in [-scale, scale).
func (d *desk) uniform(stream uint32, scale float32, shape ...int64) *torch.Tensor {
	t := d.empty(shape...)
	measure.Uniform(floats(t), stream, scale)
	return t
}

// index is an int32 tensor in [0, n).
func (d *desk) index(stream uint32, n int64, shape ...int64) *torch.Tensor {
	t := d.keep(d.s.Empty(torch.Int32, shape...))
	measure.Index(ints(t), stream, uint32(n))
	return t
}

// floats, float64s and ints are a tensor's elements themselves, as long as it lives.
func floats(t *torch.Tensor) []float32   { return unsafe.Slice((*float32)(t.Ptr()), t.Numel()) }
func float64s(t *torch.Tensor) []float64 { return unsafe.Slice((*float64)(t.Ptr()), t.Numel()) }
func ints(t *torch.Tensor) []int32       { return unsafe.Slice((*int32)(t.Ptr()), t.Numel()) }

// apart is the error of an output: the largest difference over the largest expected value.
type apart struct{ difference, scale float64 }

func (a *apart) add(got, want float64) {
	d := math.Abs(got - want)
	if math.IsNaN(d) { // a NaN must not lose against the maximum
		d = math.Inf(1)
	}
	a.difference, a.scale = max(a.difference, d), max(a.scale, math.Abs(want))
}

func (a *apart) error() float64 {
	if a.scale == 0 {
		return a.difference
	}
	return a.difference / a.scale
}

// between compares whole outputs; want is float64.
func between(got, want *torch.Tensor) float64 {
	var worst apart
	g, w := float64s(got.To(torch.Float64).Contiguous()), float64s(want.Contiguous())
	for i := range w {
		worst.add(g[i], w[i])
	}
	return worst.error()
}
