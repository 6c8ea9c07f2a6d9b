//go:build cuda

package model

import (
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Backend is where our kernels run on the scope's tensors.
func Backend(s *torch.Scope) kernels.Backend {
	if s.Device().IsCUDA() {
		return kernels.CUDA(s.Stream())
	}
	return kernels.CPU
}

// usable refuses no device: the kernels of this build run on every one.
func usable(string, bool) error { return nil }
