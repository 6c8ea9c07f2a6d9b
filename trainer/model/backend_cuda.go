//go:build cuda

package model

import (
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Backend returns the backend of our kernels for the scope's tensors.
func Backend(s *torch.Scope) kernels.Backend {
	if s.Device().IsCUDA() {
		return kernels.CUDA(s.Stream())
	}
	return kernels.CPU
}

// usable accepts every device: this build has kernels for CPU and GPU.
func usable(string, bool) error { return nil }
