package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// RequireGrad makes t, a tensor that no recorded operation produced, a leaf whose gradient Backward accumulates (on),
// or a constant again.
func (t *Tensor) RequireGrad(on bool) {
	s := t.scopeFor("require grad")
	must("require grad", C.mgt_require_grad_(s.dev.native, t.handle, cbool(on)), t)
}

// HasHistory reports whether t leads gradients back to a leaf, or is one itself.
func HasHistory(t *Tensor) bool {
	t.scopeFor("has history")
	return C.mgt_has_history(t.handle) != 0
}

// SetData makes t, which may be a parameter of another library's module, share the storage of data, of
// the same shape and dtype. t stays the same variable, with its gradient. Call it while no gradients are recorded.
func SetData(t, data *Tensor) {
	s := t.scopeFor("set data")
	data.check("set data", s)
	must("set data", C.mgt_set_data_(s.dev.native, t.handle, data.handle), t, data)
}

// Grad returns the gradient accumulated so far, sharing its storage, or nil if there is none.
func (t *Tensor) Grad() *Tensor {
	s := t.scopeFor("grad")
	r := C.mgt_grad(s.dev.native, t.handle)
	if r.handle == nil && r.error == nil {
		return nil
	}
	return s.take("grad", r, t)
}

// SetGrad makes g, of t's shape and dtype, the gradient of t. Backward adds into g's storage in
// place, so g may be a view of a buffer that holds all gradients. nil removes the gradient.
func (t *Tensor) SetGrad(g *Tensor) {
	s := t.scopeFor("set grad")
	must("set grad", C.mgt_set_grad_(s.dev.native, t.handle, s.optional("set grad", g)), t, g)
}

// Backward accumulates into the leaves' gradients the product of outputs' Jacobians with grads, and frees
// the recorded graph. grads[i] has the shape and dtype of outputs[i]; nil means 1 if outputs[i] is
// a scalar.
func Backward(outputs, grads []*Tensor) {
	if len(outputs) == 0 || len(outputs) != len(grads) {
		fail("backward", fmt.Sprintf("%d outputs with %d gradients", len(outputs), len(grads)))
	}
	s := outputs[0].scopeFor("backward", outputs[1:]...)
	handles := make([]unsafe.Pointer, 2*len(outputs))
	for i, out := range outputs {
		handles[i] = out.handle
		handles[len(outputs)+i] = s.optional("backward", grads[i])
	}
	must("backward", C.mgt_backward(s.dev.native, &handles[0], &handles[len(outputs)], C.int64_t(len(outputs))),
		append(append([]*Tensor{}, outputs...), grads...)...)
}
