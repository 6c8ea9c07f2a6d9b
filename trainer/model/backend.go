//go:build !cuda

package model

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Backend returns the backend of our kernels for the scope's tensors.
func Backend(*torch.Scope) kernels.Backend { return kernels.CPU }

// usable refuses a GPU: the kernels of this build cannot read its memory.
func usable(spec string, cuda bool) error {
	if cuda {
		return fmt.Errorf("device %q: this is the build without CUDA: make build CUDA=1 and run bin/mgrpo-cuda, or use device \"cpu\"", spec)
	}
	return nil
}
