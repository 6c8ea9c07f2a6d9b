package torch

import (
	"fmt"
	"strings"

	"github.com/mgrpo/mgrpo/bindings/kernels"
)

// Error is the error of an operation of this package. Inside Device.Do operations panic with it, and Do returns it. The package has no
// other panics.
type Error struct {
	Op      string         // the operation, such as "matmul"
	Message string         // LibTorch's or this package's description
	Shapes  []string       // its tensors, such as "float32[2 3]", in the order of the arguments
	Status  kernels.Status // reason of one of our kernels; 0 if the error does not come from a kernel
}

func (e *Error) Error() string {
	if len(e.Shapes) == 0 {
		return fmt.Sprintf("torch: %s: %s", e.Op, e.Message)
	}
	return fmt.Sprintf("torch: %s: %s (%s)", e.Op, e.Message, strings.Join(e.Shapes, ", "))
}

// OutOfMemory reports whether the operation failed because memory was full.
func (e *Error) OutOfMemory() bool {
	for _, words := range []string{"can't allocate memory", "out of memory", "bad_alloc"} { // the CPU's allocator, CUDA, C++
		if strings.Contains(e.Message, words) {
			return true
		}
	}
	return false
}

// LostError reports that this process can no longer use a GPU after a failure of CUDA, such as an
// illegal address. CUDA returns that failure for every later call. A new process can use the GPU.
type LostError struct {
	Device string // "cuda:N"
	Cause  string // CUDA's message
}

func (e *LostError) Error() string {
	return fmt.Sprintf("torch: this process has lost %s, and a new one can use it: %s", e.Device, e.Cause)
}

// fail panics with the error of op; Do recovers it.
func fail(op, message string, tensors ...*Tensor) { panic(newError(op, message, tensors...)) }

func newError(op, message string, tensors ...*Tensor) *Error {
	e := &Error{Op: op, Message: strings.TrimSpace(message)}
	for _, t := range tensors {
		if t != nil {
			e.Shapes = append(e.Shapes, t.describe())
		}
	}
	return e
}
