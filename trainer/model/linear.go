package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// linear is a linear map of a layer: weight [N, K] and bias [N], nil where the family has none.
type linear struct{ weight, bias *torch.Tensor }

// of applies the map to x [T, K].
func (l linear) of(x *torch.Tensor) *torch.Tensor { return torch.Linear(x, l.weight, l.bias) }
