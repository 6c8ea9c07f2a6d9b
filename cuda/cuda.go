// Package cuda tells through gorgonia/cu which GPUs this machine has, how much of their memory is free, and how long
// work on a stream took. Builds without the tag `cuda` have the same functions and see no GPU: gorgonia/cu ends the
// process where no driver answers, so it is linked into bin/mgrpo-cuda alone.
package cuda

import (
	"errors"
	"fmt"
	"os"
)

// ErrNoCUDA is the error of builds without CUDA wherever a GPU is asked for.
var ErrNoCUDA = errors.New("cuda: this program was built without CUDA: make build CUDA=1")

// Required reports whether MGRPO_REQUIRE_GPU is 1: tests and the doctor then fail where there is no GPU, instead of leaving
// out what needs one.
func Required() bool { return os.Getenv("MGRPO_REQUIRE_GPU") == "1" }

// Device describes one GPU.
type Device struct {
	Index  int    // as in the device name "cuda:N"
	Name   string // such as "NVIDIA H200"
	Memory int64  // bytes in all
	Major  int    // compute capability, such as 9.0
	Minor  int
}

// String returns the device as people name it, such as "cuda:0 NVIDIA H200, 140 GiB, sm_90".
func (d Device) String() string {
	return fmt.Sprintf("cuda:%d %s, %d GiB, sm_%d%d", d.Index, d.Name, d.Memory>>30, d.Major, d.Minor)
}

// Memory is the state of a GPU's memory in bytes, all processes counted.
type Memory struct {
	Free, Total int64
}
