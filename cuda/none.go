//go:build !cuda

package cuda

import (
	"time"
	"unsafe"
)

// Driver returns the version of the CUDA driver, such as "13.0", or "" without a driver.
func Driver() string { return "" }

// Devices returns the GPUs of this machine; in a build without CUDA an empty list.
func Devices() ([]Device, error) { return nil, nil }

// MemoryOf returns the state of the memory of GPU index.
func MemoryOf(index int) (Memory, error) { return Memory{}, ErrNoCUDA }

// Timer measures the GPU time between two points of a stream.
type Timer struct{}

// NewTimer returns a timer for work on the given CUDA stream (nil: the default stream) of GPU index.
func NewTimer(index int, stream unsafe.Pointer) (*Timer, error) { return nil, ErrNoCUDA }

// Start marks the beginning.
func (*Timer) Start() error { return ErrNoCUDA }

// Stop marks the end, waits for the work before it and returns the time since Start.
func (*Timer) Stop() (time.Duration, error) { return 0, ErrNoCUDA }

// Close frees the timer.
func (*Timer) Close() error { return ErrNoCUDA }

// Kernel is a function of a module, which is a file of compiled CUDA code, on one GPU.
type Kernel struct{}

// LoadKernel loads a file that nvcc compiled on GPU index, and finds one of its functions.
func LoadKernel(index int, file, function string) (*Kernel, error) { return nil, ErrNoCUDA }

// Launch launches the function on a CUDA stream (nil: the default stream).
func (*Kernel) Launch(blocks, threads int, stream unsafe.Pointer, parameters ...uint64) error {
	return ErrNoCUDA
}

// Close unloads the module.
func (*Kernel) Close() error { return ErrNoCUDA }
