// Package cuda calls the CUDA driver through gorgonia/cu. It lists the GPUs of this machine, reads their free memory,
// times work on a stream, and launches kernels from files. Builds without the tag `cuda` have the same
// functions and find no GPU: gorgonia/cu ends the process if no driver answers, so only bin/mgrpo-cuda links it.
//
// This package is private and changes without notice; docs/library.md lists the public ones.
package cuda

import (
	"errors"
	"fmt"
	"os"
)

// ErrNoCUDA is the error of functions that need a GPU, in builds without CUDA.
var ErrNoCUDA = errors.New("cuda: this program was built without CUDA: make build CUDA=1")

// Required reports whether MGRPO_REQUIRE_GPU is 1. Then tests and the doctor fail without a
// GPU, instead of skipping the parts that need one.
func Required() bool { return os.Getenv("MGRPO_REQUIRE_GPU") == "1" }

// Device describes one GPU.
type Device struct {
	Index  int    // as in the device name "cuda:N"
	Name   string // such as "NVIDIA H200"
	Memory int64  // total bytes
	Major  int    // compute capability, such as 9.0
	Minor  int
}

// String returns a readable name, such as "cuda:0 NVIDIA H200, 140 GiB, sm_90".
func (d Device) String() string {
	return fmt.Sprintf("cuda:%d %s, %d GiB, sm_%d%d", d.Index, d.Name, d.Memory>>30, d.Major, d.Minor)
}

// Memory is the state of a GPU's memory in bytes, over all processes.
type Memory struct {
	Free, Total int64
}
