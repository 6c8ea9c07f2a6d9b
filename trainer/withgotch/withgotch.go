// Package withgotch links gotch into a program. Importing it enables models and verifiers of the kind torchscript. Each
// .bin file of PyTorch is then read twice, by gotch and by this project, and both must agree. gotch takes minutes to build.
package withgotch

import (
	"context"
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/weights"
	"github.com/mgrpo/mgrpo/trainer/task/verify"
)

// init gives gotch to the packages that use it but do not link it.
func init() {
	weights.SetBinReader(readBin)
	verify.SetModuleOpener(func(path, device string, threads int) (verify.Module, error) {
		return gotchx.OpenScorer(context.Background(), path, device, threads)
	})
	model.SetModuleOpener(func(s *torch.Scope, path string) (model.Module, error) { return gotchx.OpenModule(s, path) })
}

var binDTypes = map[torch.DType]weights.DType{
	torch.Float32: weights.F32, torch.Float16: weights.F16, torch.BFloat16: weights.BF16,
}

// readBin reads the pickle of a .bin file of PyTorch, which package weights has scanned before.
func readBin(pickled []byte) ([]weights.BinTensor, error) {
	found, err := gotchx.StateDict(pickled)
	if err != nil {
		return nil, err
	}
	tensors := make([]weights.BinTensor, len(found))
	for i, t := range found {
		dtype, ok := binDTypes[t.DType]
		if !ok {
			return nil, fmt.Errorf("tensor %q is %v; weights are float32, float16 or bfloat16", t.Name, t.DType)
		}
		tensors[i] = weights.BinTensor{Name: t.Name, Storage: t.Storage, DType: dtype, Size: t.Size, Offset: t.Offset, Shape: t.Shape, Stride: t.Stride}
	}
	return tensors, nil
}
