package torch

// #include "mgrpo_torch.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Tensor is an n-dimensional array on a device, up to 8 dimensions. Its shape and dtype may be read
// anywhere. Everything else must happen inside Do of its device. Operations return a new tensor, registered
// with the innermost scope. Operations whose names end in an underscore, CopyFrom and SetBytes write into
// the receiver.
type Tensor struct {
	dev    *Device
	handle unsafe.Pointer // at::Tensor*; nil once dropped
	sizes  [maxDim]int64
	dim    int
	dtype  DType
	kept   bool
	depth  int // of the scope that owns it
	slot   int // its place in the scope's live or the device's kept
}

// check panics unless t is alive and on the device of s.
func (t *Tensor) check(op string, s *Scope) {
	switch {
	case t == nil:
		fail(op, "nil tensor")
	case t.dev != s.dev:
		fail(op, fmt.Sprintf("tensor of another device (%s) in a scope of %s: devices opened twice are two devices", t.dev.spec, s.dev.spec), t)
	case t.handle == nil:
		fail(op, "tensor was used after it was dropped: it died with its scope, by Drop or with its device", t)
	}
}

// scopeFor checks t and others and returns the scope of the running Do, in which their operation runs.
func (t *Tensor) scopeFor(op string, others ...*Tensor) *Scope {
	if t == nil {
		fail(op, "nil tensor")
	}
	s := t.dev.scope.Load()
	if s == nil {
		fail(op, "called outside Do of the tensor's device", t)
	}
	t.check(op, s)
	for _, u := range others {
		u.check(op, s)
	}
	return s
}

func (t *Tensor) describe() string { return fmt.Sprintf("%v%v", t.dtype, t.sizes[:t.dim]) }

// Drop releases t's storage now. Further calls have no effect.
func (t *Tensor) Drop() {
	if t == nil || t.handle == nil {
		return
	}
	s := t.scopeFor("drop")
	if !s.dev.onThread() {
		fail("drop", "called from another goroutine than Do's", t)
	}
	d := t.dev
	if t.kept {
		last := d.kept[len(d.kept)-1]
		last.slot = t.slot
		d.kept[t.slot] = last
		d.kept[len(d.kept)-1] = nil
		d.kept = d.kept[:len(d.kept)-1]
	} else {
		s.live[t.slot] = nil
	}
	d.queueDrop(t)
	d.flushDrops()
}

// Shape returns a copy of the sizes of all dimensions; empty for a scalar.
func (t *Tensor) Shape() []int64 { return append([]int64{}, t.sizes[:t.dim]...) }

// Size returns the size of dimension dim; a negative dim counts from the last.
func (t *Tensor) Size(dim int) int64 {
	i := dim
	if i < 0 {
		i += t.dim
	}
	if i < 0 || i >= t.dim {
		fail("size", fmt.Sprintf("dimension %d of a tensor of %d dimensions", dim, t.dim), t)
	}
	return t.sizes[i]
}

// Dim returns the number of dimensions.
func (t *Tensor) Dim() int { return t.dim }

// Numel returns the number of elements.
func (t *Tensor) Numel() int64 {
	n := int64(1)
	for _, size := range t.sizes[:t.dim] {
		n *= size
	}
	return n
}

// DType returns the type of the elements.
func (t *Tensor) DType() DType { return t.dtype }

// Device returns t's device.
func (t *Tensor) Device() *Device { return t.dev }

// Ptr returns the address of the first element, in the device's memory, valid while the storage lives. A
// tensor that is not contiguous is an error.
func (t *Tensor) Ptr() unsafe.Pointer {
	s := t.scopeFor("ptr")
	r := C.mgt_data(s.dev.native, t.handle)
	must("ptr", r.error, t)
	return r.value
}

// Share returns a new at::Tensor* of the same tensor, for another LibTorch binding to own and free.
func (t *Tensor) Share() unsafe.Pointer {
	t.scopeFor("share")
	return C.mgt_share(t.handle)
}
