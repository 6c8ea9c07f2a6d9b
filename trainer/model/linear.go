package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// linear is a linear map of a layer: weight [N, K] and bias [N], nil if the family has no bias. Adapters may be added to
// it.
type linear struct {
	weight torch.Matrix
	bias   *torch.Tensor
	lora   []torch.LoRA // indexed by model; nil: no adapters
}

// apply applies the map to x [T, K]. Row t uses adapter which[t]; if which is nil, all rows use the first one.
func (l linear) apply(x, which *torch.Tensor) *torch.Tensor {
	y := torch.Linear(x, l.weight, l.bias)
	if l.lora == nil {
		return y
	}
	return torch.LoRAAdd_(y, x, l.lora, which)
}
