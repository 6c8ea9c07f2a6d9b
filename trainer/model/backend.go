//go:build !cuda

package model

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Backend returns the backend of our kernels for the scope's tensors.
func Backend(*torch.Scope) kernels.Backend { return kernels.CPU }

// usable returns an error for a GPU: the kernels of this build cannot read its memory.
func usable(spec string, cuda bool) error {
	if cuda {
		return fmt.Errorf("device %q: this program was built without CUDA: run make build CUDA=1 and use bin/mgrpo-cuda, or set device \"cpu\"", spec)
	}
	return nil
}
