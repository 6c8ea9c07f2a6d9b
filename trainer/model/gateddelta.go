package model

import (
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// gatedDelta is the gated delta rule of a layer: the projections before and after it, the
// convolution over queries, keys and values, and the norm of its result.
type gatedDelta struct {
	in, out            linear
	conv               torch.ShortConv
	aLog, dtBias, norm *torch.Tensor
	sizes              *arch.GatedDelta
	eps                float64
}

// forward returns the term for the residual stream, given its norm h [T, Hidden]. The product of h
// holds queries, keys and values; gates of the result; logits of step sizes; and inputs of decays.
func (d *gatedDelta) forward(layer int, h *torch.Tensor, pass Pass) *torch.Tensor {
	product, channels, values := d.in.apply(h, pass.Adapters), int64(d.sizes.Channels()), int64(d.sizes.Values())
	qkv, gates := product.Narrow(1, 0, channels), product.Narrow(1, channels, values)
	ba := product.Narrow(1, channels+values, 2*int64(d.sizes.ValueHeads))
	rule := torch.DeltaRule{KeyHeads: d.sizes.KeyHeads, ValueHeads: d.sizes.ValueHeads, KeyDim: d.sizes.KeyDim, ValueDim: d.sizes.ValueDim,
		ALog: d.aLog.To(torch.Float32), DtBias: d.dtBias.To(torch.Float32)}
	y := pass.Attention.Recur(layer, qkv, ba, d.conv, rule, pass.Pos)
	normed := torch.RMSNorm(y.View(-1, int64(d.sizes.ValueDim)), d.norm, 0, d.eps).View(-1, values)
	return d.out.apply(torch.SwiGLU(gates.Concat(normed)), pass.Adapters)
}

func (a packedAttention) Recur(_ int, qkv, ba *torch.Tensor, conv torch.ShortConv, rule torch.DeltaRule, _ *torch.Tensor) *torch.Tensor {
	return rule.Packed(conv.Packed(qkv, a.cu, a.follows), ba, a.pieces)
}

func (a cachedAttention) Recur(layer int, qkv, ba *torch.Tensor, conv torch.ShortConv, rule torch.DeltaRule, pos *torch.Tensor) *torch.Tensor {
	state := a.c.states[layer]
	return rule.Advance(conv.Advance(qkv, state.inputs, a.rows.State, pos), ba, state.states, a.rows.State, pos)
}

// recurrent holds the states of a layer with a gated delta rule, by number.
type recurrent struct {
	states *torch.Tensor // float32 [states, ValueHeads, KeyDim, ValueDim]
	inputs *torch.Tensor // [states, width-1, channels]: the last inputs of the convolution
}

func newRecurrent(s *torch.Scope, g *arch.GatedDelta, compute torch.DType, states int) *recurrent {
	n := int64(states)
	return &recurrent{
		states: s.Keep(s.Zeros(torch.Float32, n, int64(g.ValueHeads), int64(g.KeyDim), int64(g.ValueDim))),
		inputs: s.Keep(s.Zeros(compute, n, int64(g.Width-1), int64(g.Channels()))),
	}
}
