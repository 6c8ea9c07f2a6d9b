package main

import (
	"fmt"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/bindings/torch/gotchx"
	"github.com/mgrpo/mgrpo/trainer/weights"
)

// PyTorch's own checkpoint files come in through gotch, after package checkpoint has scanned them.
func init() { weights.SetBinLoader(loadBin) }

var binDTypes = map[torch.DType]weights.DType{
	torch.Float32: weights.F32, torch.Float16: weights.F16, torch.BFloat16: weights.BF16,
}

func loadBin(path string, visit func(name string, shape []int64, dtype weights.DType, data []byte) error) error {
	return gotchx.LoadBin(path, func(name string, shape []int64, dtype torch.DType, data []byte) error {
		known, ok := binDTypes[dtype]
		if !ok {
			return fmt.Errorf("%s: tensor %q is %v; weights are float32, float16 or bfloat16", path, name, dtype)
		}
		return visit(name, shape, known, data)
	})
}
