package kernels

// #include "dispatch.h"
import "C"

import (
	"errors"
	"unsafe"
)

// Memory holds the arrays of one or several calls in the memory of a backend, for callers without a tensor library. The
// first failure is kept for Err, so a caller can put several arrays and check once.
type Memory struct {
	backend Backend
	arrays  []unsafe.Pointer
	err     error
}

// NewMemory returns an empty Memory on a backend.
func NewMemory(b Backend) *Memory { return &Memory{backend: b} }

// Err returns the first failure of Put, or nil.
func (m *Memory) Err() error { return m.err }

// Free frees all arrays after the kernels that were called before have ended.
func (m *Memory) Free() error {
	var errs []error
	for _, at := range m.arrays {
		errs = append(errs, failure("release", C.release(m.backend.c, at)))
	}
	m.arrays = nil
	return errors.Join(errs...)
}

// Array is a slice in the memory of a backend: the slice itself on the CPU, a copy on a GPU.
type Array[T any] struct {
	on   Backend
	host []T
	at   unsafe.Pointer
}

// Put copies a slice into the memory. Its type must not contain pointers. The array of an empty slice has a nil Pointer.
func Put[T any](m *Memory, host []T) Array[T] {
	a := Array[T]{on: m.backend, host: host, at: pointer(host)}
	if m.backend.c.gpu == nil || len(host) == 0 || m.err != nil {
		return a
	}
	a.at = m.upload(pointer(host), a.bytes())
	return a
}

func (m *Memory) upload(host unsafe.Pointer, bytes int64) unsafe.Pointer {
	var at unsafe.Pointer
	if m.err = failure("allocate", C.allocate(m.backend.c, C.int64_t(bytes), &at)); m.err != nil {
		return nil
	}
	m.arrays = append(m.arrays, at)
	m.err = failure("upload", C.upload(m.backend.c, at, host, C.int64_t(bytes)))
	return at
}

// Pointer returns the array's address in the backend's memory.
func (a Array[T]) Pointer() unsafe.Pointer { return a.at }

// Download waits for the kernels and copies the array back into the slice that was put.
func (a Array[T]) Download() error {
	if a.on.c.gpu == nil || len(a.host) == 0 {
		return nil
	}
	return failure("download", C.download(a.on.c, pointer(a.host), a.at, C.int64_t(a.bytes())))
}

func (a Array[T]) bytes() int64 {
	var element T
	return int64(len(a.host)) * int64(unsafe.Sizeof(element))
}
