package torch

// #include "mgrpo_torch.h"
import "C"

// View returns t's elements under another shape of the same size, sharing storage; one size may be -1.
func (t *Tensor) View(shape ...int64) *Tensor {
	s := t.scopeFor("view")
	p, n := sizes(shape)
	return s.take("view", C.mgt_view(s.dev.native, t.handle, p, n), t)
}

// Narrow returns length elements of dimension dim from start, sharing storage.
func (t *Tensor) Narrow(dim int, start, length int64) *Tensor {
	s := t.scopeFor("narrow")
	return s.take("narrow", C.mgt_narrow(s.dev.native, t.handle, C.int64_t(dim), C.int64_t(start), C.int64_t(length)), t)
}

// Select returns the slice of t at index of dimension dim, without that dimension, sharing storage.
func (t *Tensor) Select(dim int, index int64) *Tensor {
	s := t.scopeFor("select")
	return s.take("select", C.mgt_select(s.dev.native, t.handle, C.int64_t(dim), C.int64_t(index)), t)
}

// Transpose returns t with dimensions d0 and d1 exchanged, sharing storage.
func (t *Tensor) Transpose(d0, d1 int) *Tensor {
	s := t.scopeFor("transpose")
	return s.take("transpose", C.mgt_transpose(s.dev.native, t.handle, C.int64_t(d0), C.int64_t(d1)), t)
}

// Concat returns t and u side by side: [..., N] and [..., M] give [..., N+M].
func (t *Tensor) Concat(u *Tensor) *Tensor {
	s := t.scopeFor("concat", u)
	return s.take("concat", C.mgt_concat(s.dev.native, t.handle, u.handle), t, u)
}

// IndexSelect returns the slices of t along dim with the numbers idx (int32 or int64 [n]), in that order.
func (t *Tensor) IndexSelect(dim int, idx *Tensor) *Tensor {
	s := t.scopeFor("index select", idx)
	return s.take("index select", C.mgt_index_select(s.dev.native, t.handle, C.int64_t(dim), idx.handle), t, idx)
}

// IndexCopy_ copies slice i of src along dim over slice idx[i] of t. idx is int32 or int64 [n].
func (t *Tensor) IndexCopy_(dim int, idx, src *Tensor) {
	s := t.scopeFor("index copy", idx, src)
	must("index copy", C.mgt_index_copy_(s.dev.native, t.handle, C.int64_t(dim), idx.handle, src.handle), t, idx, src)
}

// Add returns t + u, broadcast.
func (t *Tensor) Add(u *Tensor) *Tensor {
	s := t.scopeFor("add", u)
	return s.take("add", C.mgt_add(s.dev.native, t.handle, u.handle), t, u)
}

// Mul returns t * u element by element, broadcast.
func (t *Tensor) Mul(u *Tensor) *Tensor {
	s := t.scopeFor("mul", u)
	return s.take("mul", C.mgt_mul(s.dev.native, t.handle, u.handle), t, u)
}

// Scale returns t * f.
func (t *Tensor) Scale(f float64) *Tensor {
	s := t.scopeFor("scale")
	return s.take("scale", C.mgt_scale(s.dev.native, t.handle, C.double(f)), t)
}

// MatMul returns the matrix product, over the last two dimensions, broadcast over the others.
func (t *Tensor) MatMul(u *Tensor) *Tensor {
	s := t.scopeFor("matmul", u)
	return s.take("matmul", C.mgt_matmul(s.dev.native, t.handle, u.handle), t, u)
}

// GELU returns the tanh form of GELU: t (1 + tanh(√(2/π) (t + 0.044715 t³))) / 2.
func (t *Tensor) GELU() *Tensor {
	s := t.scopeFor("gelu")
	return s.take("gelu", C.mgt_gelu(s.dev.native, t.handle), t)
}

// Sigmoid returns 1 / (1 + exp(-t)).
func (t *Tensor) Sigmoid() *Tensor {
	s := t.scopeFor("sigmoid")
	return s.take("sigmoid", C.mgt_sigmoid(s.dev.native, t.handle), t)
}

// Sum returns the sum of all elements, accumulated in float64, as a float64 scalar tensor.
func (t *Tensor) Sum() *Tensor {
	s := t.scopeFor("sum")
	return s.take("sum", C.mgt_sum(s.dev.native, t.handle), t)
}

// Norm returns the Euclidean norm of all elements, accumulated in float64, as a float64 scalar tensor.
func (t *Tensor) Norm() *Tensor {
	s := t.scopeFor("norm")
	return s.take("norm", C.mgt_norm(s.dev.native, t.handle), t)
}

// Equal reports whether t and u have the same shape and elements.
func (t *Tensor) Equal(u *Tensor) bool {
	s := t.scopeFor("equal", u)
	r := C.mgt_equal(s.dev.native, t.handle, u.handle)
	must("equal", r.error, t, u)
	return r.value != 0
}

// Add_ adds u, broadcast, to t.
func (t *Tensor) Add_(u *Tensor) { t.AddScaled_(u, 1) }

// AddScaled_ adds f * u, broadcast, to t.
func (t *Tensor) AddScaled_(u *Tensor, f float64) {
	s := t.scopeFor("add scaled", u)
	must("add scaled", C.mgt_add_scaled_(s.dev.native, t.handle, u.handle, C.double(f)), t, u)
}

// Scale_ multiplies t by f.
func (t *Tensor) Scale_(f float64) {
	s := t.scopeFor("scale")
	must("scale", C.mgt_scale_(s.dev.native, t.handle, C.double(f)), t)
}

// Zero_ sets all elements to 0.
func (t *Tensor) Zero_() { t.Fill_(0) }

// Fill_ sets all elements to f.
func (t *Tensor) Fill_(f float64) {
	s := t.scopeFor("fill")
	must("fill", C.mgt_fill_(s.dev.native, t.handle, C.double(f)), t)
}
