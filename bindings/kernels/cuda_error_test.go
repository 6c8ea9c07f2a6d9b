//go:build cuda

package kernels

import (
	"errors"
	"strings"
	"testing"
	"unsafe"
)

// More scratch than any GPU has is asked for: where there is one it refuses, and where there is none CUDA says that.
func TestCUDAErrorNamesItsCause(t *testing.T) {
	var unread float32
	_, err := GradNorm(CUDA(nil), unsafe.Pointer(&unread), 1<<62)
	var e *Error
	if !errors.As(err, &e) || !strings.HasPrefix(e.Cause, "cudaMallocAsync: ") || !strings.HasSuffix(err.Error(), e.Cause) {
		t.Errorf("got %v", err)
	}
}
