//go:build cuda

package kernels

import "unsafe"

// CUDA works on the device memory of the calling thread's current GPU, on the given CUDA stream (nil: the
// default stream).
func CUDA(stream unsafe.Pointer) Backend {
	var b Backend
	b.c.cuda, b.c.stream = 1, stream
	return b
}
