//go:build cuda

package kernels

import (
	"errors"
	"strings"
	"testing"
	"unsafe"
)

// Requests more scratch memory than any GPU has. The error must contain CUDA's message, which also holds on a machine without a GPU.
func TestCUDAErrorNamesItsCause(t *testing.T) {
	var unread float32
	_, err := GradNorm(CUDA(nil), unsafe.Pointer(&unread), 1<<62)
	var e *Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Cause, "cudaMallocAsync: ") || !strings.HasSuffix(err.Error(), e.Cause) {
		t.Errorf("got %v", err)
	}
}
