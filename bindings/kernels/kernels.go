// Package kernels calls libmgrpo_kernels from Go: group advantages, token log-probs, the policy loss, AdamW
// and sampling, on CPU and, in builds with the tag cuda, on a GPU.
//
// Arrays of tokens and parameters are raw addresses in the memory of the call's Backend (host memory on
// CPU, device memory on a GPU). A call returns when its results are written and does not keep addresses. On a GPU
// AdamW and EnqueueSample differ: they only enqueue their work on the stream, which uses the addresses later. On a CPU
// the OpenMP threads of the calling OS thread divide the work. Results do not depend on their number.
//
// Shapes, formulas and sources are in kernels/include/mgrpo.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package kernels

/*
#cgo CFLAGS: -I${SRCDIR}/../../kernels/include
#cgo LDFLAGS: -L${SRCDIR}/../../build/lib -lmgrpo_kernels -Wl,-rpath,${SRCDIR}/../../build/lib
#cgo cuda CFLAGS: -DMGRPO_CUDA
#cgo cuda LDFLAGS: -lmgrpo_kernels_cuda
#include "dispatch.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// DType is the element type of a raw buffer. The numbers are c10::ScalarType's.
type DType int32

// The element types that kernels read.
const (
	Float32  DType = C.MGRPO_FLOAT32
	Float64  DType = C.MGRPO_FLOAT64
	BFloat16 DType = C.MGRPO_BFLOAT16
)

// Backend is the device of a call's arrays and of its work. The zero value is CPU.
type Backend struct {
	c    C.mgrpo_backend
	name string
}

// CPU is the backend that works on host memory.
var CPU Backend

// OfTable returns the backend of a GPU with kernels in a library that the caller has loaded. table is the address of a mgrpo_gpu (gpu.h).
// Tests use it to run the kernels on an emulated GPU.
func OfTable(name string, table unsafe.Pointer) Backend {
	return Backend{c: C.mgrpo_backend{gpu: (*C.mgrpo_gpu)(table)}, name: name}
}

// String returns the backend's name: cpu, cuda, or the name given to OfTable.
func (b Backend) String() string {
	if b.c.gpu == nil {
		return "cpu"
	}
	return b.name
}

// pointer returns the address of s's elements, or nil for an empty slice. The caller must keep the slice alive while the address is used. A
// GPU's kernels cannot read it.
func pointer[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// Status is a code of mgrpo/status.h.
type Status int32

// The codes that a caller may distinguish.
const (
	InvalidArgument Status = C.MGRPO_INVALID_ARGUMENT
	NonFinite       Status = C.MGRPO_NON_FINITE
	Refused         Status = C.MGRPO_REFUSED
	OutOfMemory     Status = C.MGRPO_OUT_OF_MEMORY
	CUDAError       Status = C.MGRPO_CUDA_ERROR
	Unsupported     Status = C.MGRPO_UNSUPPORTED
)

func (s Status) String() string { return C.GoString(C.mgrpo_status_string(C.int32_t(s))) }

// Error reports that a kernel did not perform a call, for a reason other than refused data.
type Error struct {
	Op     string // the kernel's name
	Status Status
	Row    int64  // the offending row, or -1
	Cause  string // CUDA's error message, or ""
}

func (e *Error) Error() string {
	text := "kernels: " + e.Op
	if e.Row >= 0 {
		text += fmt.Sprintf(": row %d", e.Row)
	}
	text += ": " + e.Status.String()
	if e.Cause != "" {
		text += ": " + e.Cause
	}
	return text
}

// failure returns a call's outcome as an error, or nil for success.
func failure(op string, r C.mgrpo_outcome) error { return rowFailure(op, r, -1) }

func rowFailure(op string, r C.mgrpo_outcome, row C.int64_t) error {
	if r.status == C.MGRPO_OK {
		return nil
	}
	e := &Error{Op: op, Status: Status(r.status), Row: int64(row)}
	if r.cause != nil {
		e.Cause = C.GoString(r.cause)
		C.free(unsafe.Pointer(r.cause))
	}
	return e
}
