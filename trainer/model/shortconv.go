package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// shortConv is the gated short convolution of a layer, with the projections before and after it.
type shortConv struct {
	in, out linear
	torch.ShortConv
}

// forward returns the term for the residual stream, given its norm h [T, Hidden].
func (c *shortConv) forward(layer int, h *torch.Tensor, pass Pass) *torch.Tensor {
	return c.out.apply(pass.Attention.Convolve(layer, c.in.apply(h, pass.Adapters), c.ShortConv, pass.Pos), pass.Adapters)
}

func (a packedAttention) Convolve(_ int, bcx *torch.Tensor, conv torch.ShortConv, _ *torch.Tensor) *torch.Tensor {
	return conv.Packed(bcx, a.cu, a.follows)
}

func (a cachedAttention) Convolve(layer int, bcx *torch.Tensor, conv torch.ShortConv, pos *torch.Tensor) *torch.Tensor {
	return conv.Cached(bcx, a.c.k[layer], a.c.table[a.c.group[layer]], a.rows.Sequence, pos)
}
