package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Empty makes a tensor with undefined contents.
func (s *Scope) Empty(dt DType, shape ...int64) *Tensor {
	return empty(s, dt, shape, false)
}

// Zeros makes a tensor of zeros.
func (s *Scope) Zeros(dt DType, shape ...int64) *Tensor { return s.Full(dt, 0, shape...) }

// Full makes a tensor whose elements are all v.
func (s *Scope) Full(dt DType, v float64, shape ...int64) *Tensor {
	s.current("full")
	p, n := sizes(shape)
	return s.take("full", C.mgt_full(s.dev.native, C.int(dt), C.double(v), p, n))
}

// KeptEmpty makes a tensor with undefined contents that outlives the scope, as Keep does. A large one on a CPU is in large pages.
func KeptEmpty(s *Scope, dt DType, shape ...int64) *Tensor { return s.Keep(empty(s, dt, shape, true)) }

// KeptZeros makes a tensor of zeros that outlives the scope, as Keep does. A large one on a CPU is in large pages.
func KeptZeros(s *Scope, dt DType, shape ...int64) *Tensor {
	t := KeptEmpty(s, dt, shape...)
	t.Zero_()
	return t
}

func empty(s *Scope, dt DType, shape []int64, kept bool) *Tensor {
	s.current("empty")
	p, n := sizes(shape)
	return s.take("empty", C.mgt_empty(s.dev.native, C.int(dt), p, n, cbool(kept)))
}

// FromFloat32 copies v, in row-major order, into a new float32 tensor.
func (s *Scope) FromFloat32(v []float32, shape ...int64) *Tensor {
	return fromSlice(s, "from float32", Float32, v, 1, shape)
}

// FromInt32 copies v into a new int32 tensor.
func (s *Scope) FromInt32(v []int32, shape ...int64) *Tensor {
	return fromSlice(s, "from int32", Int32, v, 1, shape)
}

// FromInt64 copies v into a new int64 tensor.
func (s *Scope) FromInt64(v []int64, shape ...int64) *Tensor {
	return fromSlice(s, "from int64", Int64, v, 1, shape)
}

// FromBytes copies b, elements of type dt in row-major order and the machine's byte order, into a new
// tensor.
func (s *Scope) FromBytes(b []byte, dt DType, shape ...int64) *Tensor {
	return fromSlice(s, "from bytes", dt, b, dt.Size(), shape)
}

// fromSlice copies v, with unit values for each element of type dt, into a new tensor.
func fromSlice[T float32 | int32 | int64 | byte](s *Scope, op string, dt DType, v []T, unit int, shape []int64) *Tensor {
	s.current(op)
	checkLength(op, int64(len(v)), int64(unit), shape)
	p, n := sizes(shape)
	return s.take(op, C.mgt_from_host(s.dev.native, unsafe.Pointer(unsafe.SliceData(v)), C.int(dt), p, n))
}

// checkLength panics unless length is unit times the number of elements of shape, without overflow.
func checkLength(op string, length, unit int64, shape []int64) {
	want := unit
	for _, size := range shape {
		if size < 0 || (size > 0 && want > (1<<62)/size) {
			fail(op, fmt.Sprintf("impossible shape %v", shape))
		}
		want *= size
	}
	if length != want || unit == 0 {
		fail(op, fmt.Sprintf("%d values for shape %v, which holds %d", length, shape, want))
	}
}

// Float32s copies t to dst, converting from any float type. len(dst) must be t.Numel().
func (t *Tensor) Float32s(dst []float32) { toSlice(t, "float32s", Float32, dst) }

// Int32s copies t to dst. len(dst) must be t.Numel().
func (t *Tensor) Int32s(dst []int32) { toSlice(t, "int32s", Int32, dst) }

// Bytes copies t's elements, as they are and in row-major order, to dst of t.Numel()*t.DType().Size() bytes.
func (t *Tensor) Bytes(dst []byte) {
	s := t.scopeFor("bytes")
	if n := t.Numel() * int64(t.dtype.Size()); int64(len(dst)) != n {
		fail("bytes", fmt.Sprintf("%d bytes for a tensor of %d", len(dst), n), t)
	}
	t.toHost(s, "bytes", t.dtype, unsafe.Pointer(unsafe.SliceData(dst)))
}

func toSlice[T float32 | int32](t *Tensor, op string, dt DType, dst []T) {
	s := t.scopeFor(op)
	if n := t.Numel(); int64(len(dst)) != n {
		fail(op, fmt.Sprintf("slice of %d for a tensor of %d elements", len(dst), n), t)
	}
	t.toHost(s, op, dt, unsafe.Pointer(unsafe.SliceData(dst)))
}

func (t *Tensor) toHost(s *Scope, op string, dt DType, dst unsafe.Pointer) {
	must(op, C.mgt_to_host(s.dev.native, t.handle, C.int(dt), dst, C.int64_t(t.Numel())), t)
}

// Item returns the value of a tensor of one element.
func (t *Tensor) Item() float64 {
	s := t.scopeFor("item")
	r := C.mgt_item(s.dev.native, t.handle)
	must("item", r.error, t)
	return float64(r.value)
}

// CopyFrom copies src, broadcast to t's shape and converted to its dtype, into t. Only src may belong to another device. It must not be
// written or dropped meanwhile.
func (t *Tensor) CopyFrom(src *Tensor) {
	s := t.scopeFor("copy from")
	if src == nil || src.handle == nil {
		fail("copy from", "the source is nil or was dropped", t, src)
	}
	must("copy from", C.mgt_copy_(s.dev.native, t.handle, src.handle), t, src)
}

// SetBytes copies b, as many elements of type dt as t has, into t, converting to its dtype.
func (t *Tensor) SetBytes(b []byte, dt DType) {
	s := t.scopeFor("set bytes")
	if dt.Size() == 0 || int64(len(b)) != t.Numel()*int64(dt.Size()) {
		fail("set bytes", fmt.Sprintf("%d bytes of %v for %d elements", len(b), dt, t.Numel()), t)
	}
	must("set bytes", C.mgt_set_host_(s.dev.native, t.handle, unsafe.Pointer(unsafe.SliceData(b)), C.int(dt), C.int64_t(t.Numel())), t)
}

// SetInt32s copies v, as many elements as t has, into t, converting to its dtype.
func (t *Tensor) SetInt32s(v []int32) {
	t.SetBytes(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)), Int32)
}

// To returns t converted to dtype dt; t itself if it has that type.
func (t *Tensor) To(dt DType) *Tensor {
	s := t.scopeFor("to")
	return s.take("to", C.mgt_to(s.dev.native, t.handle, C.int(dt)), t)
}

// Contiguous returns t laid out in row-major order without gaps; sharing storage if it already is.
func (t *Tensor) Contiguous() *Tensor {
	s := t.scopeFor("contiguous")
	return s.take("contiguous", C.mgt_contiguous(s.dev.native, t.handle), t)
}

// Clone returns a copy with its own storage. Gradients flow through it.
func (t *Tensor) Clone() *Tensor {
	s := t.scopeFor("clone")
	return s.take("clone", C.mgt_clone(s.dev.native, t.handle), t)
}

// Detach returns a tensor that shares t's storage and none of its gradient history.
func (t *Tensor) Detach() *Tensor {
	s := t.scopeFor("detach")
	return s.take("detach", C.mgt_detach(s.dev.native, t.handle), t)
}
