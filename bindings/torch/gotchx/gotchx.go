// Package gotchx connects bindings/torch with gotch. Programs write loss terms with gotch (Term). trainer/withgotch uses the rest of the
// package: TorchScript modules as policies and judges. Tensors pass in both directions without a copy.
//
// Build gotch modules inside Scope.Grad(true): some of gotch's constructors transform their weights once, and such weights get no gradient
// if none is recorded meanwhile. In this repository only this package and examples/head-in-go import gotch. Building it needs the
// environment that env.sh prints.
package gotchx

import (
	"runtime"

	"github.com/sugarme/gotch"
	"github.com/sugarme/gotch/ts"

	"github.com/mgrpo/mgrpo/bindings/torch"
	_ "github.com/mgrpo/mgrpo/bindings/torch/gotchx/cachefolder" // before gotch
)

// fromGotch returns a tensor of the scope that shares t's storage and gradient history. t stays the
// caller's: it may be dropped while the result lives. A tensor on another device is an error.
func fromGotch(s *torch.Scope, t *ts.Tensor) *torch.Tensor {
	shared := s.Adopt(t.Ctensor())
	runtime.KeepAlive(t)
	return shared
}

// toGotch returns a gotch tensor that shares t's storage and gradient history, which the caller must drop. It
// may outlive t. Use it inside Do of t's device: gotch reports errors by the calling thread.
func toGotch(t *torch.Tensor) *ts.Tensor { return ts.FromCtensor(t.Share()) }

// toDevice returns gotch's name of a device.
func toDevice(d *torch.Device) gotch.Device {
	if d.IsCUDA() {
		return gotch.CudaBuilder(uint(d.Index()))
	}
	return gotch.CPU
}
