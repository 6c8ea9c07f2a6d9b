//go:build !cuda

package model

import (
	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
)

// Backend is where our kernels run on the scope's tensors.
func Backend(*torch.Scope) kernels.Backend { return kernels.CPU }
