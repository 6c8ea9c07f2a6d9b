//go:build cuda

package kernels

// #include "dispatch.h"
import "C"

import "unsafe"

// CUDA returns a backend that works on the device memory of the calling thread's current GPU, on the given CUDA stream (nil: the
// default stream).
func CUDA(stream unsafe.Pointer) Backend {
	return Backend{c: C.mgrpo_backend{gpu: C.linked_gpu(), stream: stream}, name: "cuda"}
}
