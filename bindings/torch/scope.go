package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Scope belongs to one call of Device.Do: it makes tensors and owns them until the call ends. It is valid only inside
// the function it was given to.
type Scope struct {
	dev      *Device
	depth    int       // number of open Scoped calls
	live     []*Tensor // in the order of creation; nil if dropped or kept
	grad     bool
	training bool
}

// current panics unless s is the scope of the running Do.
func (s *Scope) current(op string) *Scope {
	if s == nil || s.dev.scope.Load() != s {
		fail(op, "the scope has ended: a Scope is valid only inside the function that Do gave it to")
	}
	return s
}

// Device returns the device that the scope runs on.
func (s *Scope) Device() *Device { return s.dev }

// Stream returns the device's CUDA stream (a cudaStream_t), nil on CPU. Kernels launched on it run in order
// with the tensor operations of the device.
func (s *Scope) Stream() unsafe.Pointer {
	s.current("stream")
	r := C.mgt_stream(s.dev.native)
	must("stream", r.error)
	return r.value
}

// Scoped runs f in an inner scope: tensors that f makes are dropped when it ends, unless they are kept or hoisted.
func (s *Scope) Scoped(f func()) {
	s.current("scoped")
	mark := len(s.live)
	s.depth++
	defer func() {
		s.depth--
		s.sweep(mark)
	}()
	f()
}

// Hoist moves t, made in the innermost scope, to the scope around it, and returns it.
func (s *Scope) Hoist(t *Tensor) *Tensor {
	s.current("hoist")
	t.check("hoist", s)
	if !t.kept && t.depth == s.depth && t.depth > 0 {
		t.depth--
	}
	return t
}

// Training runs f, a pass of training with or without gradients. Factors of fp32 products are rounded, if
// SetRoundFactors has switched it on, only inside Training. Training restores the mode.
func (s *Scope) Training(f func()) {
	s.current("training")
	set := func(on bool) {
		s.training = on
		C.mgt_set_training(cbool(on))
	}
	defer set(s.training)
	set(true)
	f()
}

// Grad runs f with gradients recorded (on) or not, and restores the mode.
func (s *Scope) Grad(on bool, f func()) {
	s.current("grad")
	set := func(on bool) {
		s.grad = on
		C.mgt_set_grad_mode(cbool(on))
	}
	defer set(s.grad)
	set(on)
	f()
}

// Keep makes t outlive the scope: it lives until t.Drop inside a Do of the same device, or until the device is closed. It returns t.
func (s *Scope) Keep(t *Tensor) *Tensor {
	s.current("keep")
	t.check("keep", s)
	if !t.kept {
		s.live[t.slot] = nil
		t.kept, t.slot = true, len(s.dev.kept)
		s.dev.kept = append(s.dev.kept, t)
	}
	return t
}

// Adopt returns a tensor that shares the at::Tensor of handle. The caller still owns handle, and guarantees
// that it is an at::Tensor* on this scope's device. Adopt imports tensors of other LibTorch bindings.
func (s *Scope) Adopt(handle unsafe.Pointer) *Tensor {
	s.current("adopt")
	if handle == nil {
		fail("adopt", "nil handle")
	}
	return s.take("adopt", C.mgt_adopt(s.dev.native, handle))
}

// take registers the result of op with the innermost scope, or panics with its error.
func (s *Scope) take(op string, r C.mgt_tensor, args ...*Tensor) *Tensor {
	must(op, r.error, args...)
	t := &Tensor{
		dev: s.dev, handle: r.handle, dtype: DType(r.dtype),
		depth: s.depth, slot: len(s.live), dim: int(r.dim),
	}
	for i := range t.dim {
		t.sizes[i] = int64(r.sizes[i])
	}
	s.live = append(s.live, t)
	return t
}

// sweep drops the tensors registered since mark, except tensors hoisted out of the ending scope.
func (s *Scope) sweep(mark int) {
	d, end := s.dev, mark
	for _, t := range s.live[mark:] {
		switch {
		case t == nil:
		case t.depth <= s.depth:
			t.slot = end
			s.live[end] = t
			end++
		default:
			d.queueDrop(t)
		}
	}
	clear(s.live[end:])
	s.live = s.live[:end]
	d.flushDrops()
}

// close drops all remaining tensors.
func (s *Scope) close() {
	s.depth = -1
	s.sweep(0)
	s.dev.live = s.live
}

func cbool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
