package kernels

import (
	"context"
	"unsafe"

	"github.com/mgrpo/mgrpo/bench/measure"
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// deviceTensors holds a case's tensors between runs, in the memory of the measured device. It copies inputs there from
// host memory, and copies results back for the checks.
type deviceTensors struct {
	dev  *torch.Device
	s    *torch.Scope // of the do that is running
	real torch.DType  // float32, or bfloat16 in cases of half precision
	kept []*torch.Tensor
	undo func() // reverts the case's changes of the process; clear calls it; may be nil
}

// do runs f on the device's thread.
func (d *deviceTensors) do(ctx context.Context, f func() error) error {
	return d.dev.Do(ctx, func(s *torch.Scope) error {
		d.s = s
		return f()
	})
}

func (d *deviceTensors) clear(ctx context.Context) error {
	return d.do(ctx, func() error {
		for _, t := range d.kept {
			t.Drop()
		}
		d.kept = nil
		if d.undo != nil {
			d.undo()
		}
		return nil
	})
}

func (d *deviceTensors) clock() (measure.Clock, error) { return measure.NewClock(d.s) }

// backend returns the kernels' backend of the tensors' device.
func (d *deviceTensors) backend() kernels.Backend { return model.Backend(d.s) }

func (d *deviceTensors) keep(t *torch.Tensor) *torch.Tensor {
	d.kept = append(d.kept, d.s.Keep(t))
	return t
}

// empty returns a float32 tensor with undefined values.
func (d *deviceTensors) empty(shape ...int64) *torch.Tensor {
	return d.keep(d.s.Empty(torch.Float32, shape...))
}

// floats returns a float32 tensor with the values v.
func (d *deviceTensors) floats(v []float32, shape ...int64) *torch.Tensor {
	return d.keep(d.s.FromFloat32(v, shape...))
}

func (d *deviceTensors) ints(v []int32) *torch.Tensor { return d.keep(d.s.FromInt32(v, int64(len(v)))) }

// uniform returns a tensor of type d.real with random values in [-scale, scale).
func (d *deviceTensors) uniform(stream uint32, scale float32, shape ...int64) *torch.Tensor {
	n := int64(1)
	for _, size := range shape {
		n *= size
	}
	v := make([]float32, n)
	measure.Uniform(v, stream, scale)
	var t *torch.Tensor
	d.s.Scoped(func() { t = d.keep(d.s.FromFloat32(v, shape...).To(d.real)) })
	return t
}

// index returns n random numbers below limit.
func index(stream uint32, n, limit int64) []int32 {
	v := make([]int32, n)
	measure.Index(v, stream, uint32(limit))
	return v
}

// values returns the elements of a tensor as float32.
func values(t *torch.Tensor) []float32 {
	v := make([]float32, t.Numel())
	t.Float32s(v)
	return v
}

// rows returns n rows of a matrix, beginning with row from.
func (d *deviceTensors) rows(t *torch.Tensor, from, n int64) (v []float32) {
	d.s.Scoped(func() { v = values(t.Narrow(0, from, n)) })
	return v
}

func int32s(t *torch.Tensor) []int32 {
	v := make([]int32, t.Numel())
	t.Int32s(v)
	return v
}

// float64s returns the elements of a float64 tensor.
func float64s(t *torch.Tensor) []float64 {
	v := make([]float64, t.Numel())
	t.Bytes(bytesOf(v))
	return v
}

func bytesOf(v []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 8*len(v))
}

// maxError returns the error of a whole output. want is float64.
func maxError(s *torch.Scope, got, want *torch.Tensor) (worst float64) {
	s.Scoped(func() {
		var e measure.MaxError
		g, w := float64s(got.To(torch.Float64)), float64s(want)
		for i := range w {
			e.Add(g[i], w[i])
		}
		worst = e.Value()
	})
	return worst
}
