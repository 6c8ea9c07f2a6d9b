// Package withgotch links gotch into a program. Importing it enables models and verifiers of the kind torchscript. gotch takes
// minutes to build.
package withgotch

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// init gives gotch to the packages that use it but do not link it.
func init() {
	verify.SetModuleOpener(func(path, device string, threads int) (verify.Module, error) {
		return gotchx.OpenScorer(context.Background(), path, device, threads)
	})
	model.SetModuleOpener(func(s *torch.Scope, path string) (model.Module, error) { return gotchx.OpenModule(s, path) })
}
