package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// linear is a linear map of a layer: weight [N, K] and bias [N], nil where the family has none. Adapters may add to it.
type linear struct {
	weight torch.Matrix
	bias   *torch.Tensor
	lora   []torch.LoRA // by number; nil: none
}

// of applies the map to x [T, K]. Row t has adapter which[t], all rows the first if which is nil.
func (l linear) of(x, which *torch.Tensor) *torch.Tensor {
	y := torch.Linear(x, l.weight, l.bias)
	if l.lora == nil {
		return y
	}
	return torch.LoRAAdd_(y, x, l.lora, which)
}
