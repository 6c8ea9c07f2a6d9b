package kernels

// #include "dispatch.h"
import "C"

import "unsafe"

// AdamWConfig is one update's settings.
type AdamWConfig struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Clip                               float64 // the gradient is scaled to at most this norm; 0 = never
	Step                               int64   // the number of this update, from 1
}

// GradNorm returns the L2 norm of grad, float32 [n]. On CPU its bits do not depend on the number of threads.
// NaN or Inf in grad makes the norm NaN or Inf, which is not an error here.
func GradNorm(b Backend, grad unsafe.Pointer, n int64) (float64, error) {
	var norm C.double
	status := C.grad_norm(b.c, grad, C.int64_t(n), &norm)
	return float64(norm), failure("grad_norm", status)
}

// AdamW updates param, m and v, float32 [n], from grad, whose norm is given, and writes the new parameters to
// bf16 [n] too unless that is nil. A norm that is not finite is an *Error with NonFinite and changes nothing.
// Parameters are bit-equal on every backend.
func AdamW(b Backend, param, m, v, grad, bf16 unsafe.Pointer, n int64, norm float64, config AdamWConfig) error {
	c := C.mgrpo_adamw_config{
		lr: C.double(config.LR), beta1: C.double(config.Beta1), beta2: C.double(config.Beta2), eps: C.double(config.Eps),
		weight_decay: C.double(config.WeightDecay), max_norm: C.double(config.Clip), step: C.int64_t(config.Step),
	}
	return failure("adamw", C.adamw(b.c, param, m, v, grad, bf16, C.int64_t(n), C.double(norm), &c))
}
