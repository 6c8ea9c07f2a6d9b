package model

import (
	"fmt"
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Decoder computes the forward pass with weights of one precision.
type Decoder struct {
	cfg         *arch.Config
	embed, head torch.Matrix
	norm        *torch.Tensor
	inputs      *inputs // embeddings that layers add; nil: they add none
	layers      []layer
}

// headTensors are the tensors of headTables that a layer uses; nil: it does not need them.
type headTensors struct{ order, growth, vNorm *torch.Tensor }

// layer holds the weights of one layer. Fields that the family lacks are nil.
type layer struct {
	cfg                            *arch.Config
	preAttentionNorm, preMLPNorm   *torch.Tensor // before attention and before the MLP
	postAttentionNorm, postMLPNorm *torch.Tensor // after them
	qkv, o                         linear
	qNorm, kNorm                   *torch.Tensor
	sinks                          *torch.Tensor // [Heads]: terms of the denominators of attention's softmax
	conv                           *shortConv    // in place of attention
	delta                          *gatedDelta   // in place of attention
	gates                          *torch.Tensor // int32 [Heads*HeadDim]: columns of qkv that gate attention's result; nil: it is not gated
	gateUp, down                   linear
	mixture                        *mixture // in place of gateUp and down, or beside them
	rotation                       rotation
	table                          headTensors
	own                            *ownInput
	factor                         *torch.Tensor // of the layer's result, [1]
	index                          int
	weights                        []torch.Matrix // tensors of all fields, without quantised matrices
}

// Attention separates the decoder from its two kinds of attention: packed training and cached generation. qkv is a layer's
// product of queries, keys and values; heads describes how its heads are normalised and rotated. sinks may be nil, see
// torch.AttentionPacked. The result is [T, Heads, HeadDim]. In layers that convolve, Convolve takes the place of Attend. bcx
// [T, 3·Hidden] is a layer's product of gates and inputs, at the positions pos, and the result is [T, Hidden]. In layers
// with a gated delta rule, Recur takes its place: qkv is the input of the convolution conv, and the result is [T, ValueHeads·ValueDim].
type Attention interface {
	Attend(layer int, qkv *torch.Tensor, heads torch.Heads, sinks *torch.Tensor) *torch.Tensor
	Convolve(layer int, bcx *torch.Tensor, conv torch.ShortConv, pos *torch.Tensor) *torch.Tensor
	Recur(layer int, qkv, ba *torch.Tensor, conv torch.ShortConv, rule torch.DeltaRule, pos *torch.Tensor) *torch.Tensor
}

// Pass describes the T rows of a forward pass, apart from their tokens.
type Pass struct {
	Pos       *torch.Tensor // int32 [T]
	Attention Attention
	Routes    *Routes       // may be nil
	Adapters  *torch.Tensor // int32 [T], of a MultiAdapterDecoder: the index of each row's model, -1 for none; nil: all use the first
	inputs    *torch.Tensor // embeddings that layers add, [T, Layers·Inputs]; nil: they add none
}

// decoder binds leaves to the layers: the matrices of linear maps come from matrices, all other tensors from rest. adapters
// holds the adapters of several models, in the order of their indices.
func (m *Model) decoder(matrices, rest []*torch.Tensor, adapters ...map[string]torch.LoRA) *Decoder {
	b := &binder{m: m, matrices: matrices, rest: rest, adapters: adapters, at: map[string]int{}}
	for i, l := range m.Layout.Leaves {
		b.at[l.Name] = i
	}
	d := &Decoder{cfg: &m.Config, embed: b.weight("embed", b.rest), norm: b.other("norm"), head: b.weight("head", b.matrices)}
	if m.Config.LayerInputs() > 0 {
		d.inputs = &inputs{embed: b.weight("inputs_embed", b.rest), project: b.linear("inputs"), norm: b.other("inputs_norm")}
	}
	if m.Config.Tied {
		d.head = b.weight("embed", b.matrices)
	}
	routed := 0
	for i := range m.Config.Layers {
		first := len(b.bound)
		l := b.layer(i)
		if m.Config.Layer(i).HasExperts() {
			l.mixture = b.mixture(fmt.Sprintf("layers.%d.", i), routed)
			routed++
		}
		l.weights = b.bound[first:]
		d.layers = append(d.layers, l)
	}
	return d
}

// Head returns the output projection [VocabSize, Hidden], with the cap of its logits if the family has one. For a tied model it is the
// embedding.
func (d *Decoder) Head() torch.Matrix {
	if d.cfg.LogitCap > 0 {
		return torch.CappedHead{Matrix: d.head, Cap: d.cfg.LogitCap}
	}
	return d.head
}

// HeadMatrix returns the matrix of Head.
func (d *Decoder) HeadMatrix() torch.Matrix { return d.head }

// DType returns the type of the activations.
func (d *Decoder) DType() torch.DType { return d.norm.DType() }

// Hidden computes the forward pass without the head: given ids int32 [T] it returns the normalised hidden states [T,
// Hidden] of the last layer. Call it inside Device.Do.
func (d *Decoder) Hidden(s *torch.Scope, ids *torch.Tensor, pass Pass) *torch.Tensor {
	x := d.embedded(ids)
	pass.inputs = d.inputsOf(s, ids, x, pass)
	h := d.normOf(x, 0)
	for i := range d.layers {
		oldX, oldH := x, h
		s.Scoped(func() { // free all tensors of the block except its result
			sum, out := d.layers[i].forward(i, oldX, oldH, pass)
			x, h = addNorm(d.cfg, sum, out, d.normBefore(i+1))
			s.Hoist(x)
			if h != x {
				s.Hoist(h)
			}
			hoistSharedKV(s, pass, i)
		})
		oldX.Drop()
		oldH.Drop()
	}
	return scaled(h, d.cfg.Multipliers.HiddenScale())
}

// embedded returns the embedding of ids in the type of the norms, scaled if the family scales it. In bf16 the scale is
// rounded to bf16.
func (d *Decoder) embedded(ids *torch.Tensor) *torch.Tensor {
	return d.rowsOf(d.embed, ids, d.cfg.EmbeddingScale())
}

// rowsOf returns rows of an embedding, scaled, in the type of the norms.
func (d *Decoder) rowsOf(embedding torch.Matrix, ids *torch.Tensor, scale float64) *torch.Tensor {
	x := torch.Embedding(embedding, ids)
	if unconverted := x; unconverted.DType() != d.norm.DType() {
		x = unconverted.To(d.norm.DType())
		unconverted.Drop()
	}
	switch {
	case scale == 1:
		return x
	case x.DType() == torch.BFloat16:
		return x.Scale(float64(toBFloat16(float32(scale))))
	}
	return x.Scale(float64(float32(scale)))
}

// toBFloat16 rounds to the nearest bf16, ties to even.
func toBFloat16(v float32) float32 {
	bits := math.Float32bits(v)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

// normBefore returns the weight of the norm before layer i, nil if the family has none. After the last layer it is the
// final norm.
func (d *Decoder) normBefore(i int) *torch.Tensor {
	if i == len(d.layers) {
		return d.norm
	}
	return d.layers[i].preAttentionNorm
}

func (d *Decoder) normOf(x *torch.Tensor, i int) *torch.Tensor {
	h := norm(d.cfg, x, d.normBefore(i))
	if i == len(d.layers) {
		return scaled(h, d.cfg.Multipliers.HiddenScale())
	}
	return h
}

// scaled multiplies x by a constant of the family.
func scaled(x *torch.Tensor, factor float64) *torch.Tensor {
	if factor == 1 {
		return x
	}
	return x.Scale(factor)
}

// norm returns the RMSNorm of x; without a weight it returns x.
func norm(c *arch.Config, x, weight *torch.Tensor) *torch.Tensor {
	if weight == nil {
		return x
	}
	return torch.RMSNorm(x, weight, c.Features().NormOffset, c.RMSEps)
}

// addNorm returns x + out and its norm, computed in one pass; without a weight both results are the sum. out may be nil.
func addNorm(c *arch.Config, x, out, weight *torch.Tensor) (sum, h *torch.Tensor) {
	if out == nil {
		return x, norm(c, x, weight)
	}
	if weight == nil {
		sum = x.Add(out)
		return sum, sum
	}
	return torch.AddRMSNorm(x, out, weight, c.Features().NormOffset, c.RMSEps)
}

// forward computes one decoder block: attention and an MLP, each added to the residual x [T, Hidden], with norms before
// them, after them, or both. h is the norm of x. The new residual is sum + out. The caller adds them, so that one kernel
// can add and normalise. A nil out adds nothing.
func (l *layer) forward(i int, x, h *torch.Tensor, pass Pass) (sum, out *torch.Tensor) {
	x, h = l.attended(i, x, h, pass)
	out = l.added(l.mlp(x, h, pass), l.postMLPNorm)
	if l.own != nil {
		x = x.Add(out)
		out = l.own.forward(l, x, pass)
	}
	if l.factor == nil {
		return x, out
	}
	return x.Add(out).Mul(l.factor.Detach().To(x.DType())), nil
}

// added returns the term that is added to the residual stream, given the output of attention or of an MLP. weight may be
// nil.
func (l *layer) added(out, weight *torch.Tensor) *torch.Tensor {
	return scaled(norm(l.cfg, out, weight), l.cfg.Multipliers.ResidualScale())
}

// attended returns the residual after attention, or what the layer has in its place, and its norm.
func (l *layer) attended(i int, x, h *torch.Tensor, pass Pass) (sum, normed *torch.Tensor) {
	var out *torch.Tensor
	switch {
	case l.conv != nil:
		out = l.conv.forward(i, h, pass)
	case l.delta != nil:
		out = l.delta.forward(i, h, pass)
	default:
		qkv := l.qkv.apply(h, pass.Adapters)
		a := pass.Attention.Attend(i, qkv, l.heads(pass.Pos), l.sinks).View(-1, int64(l.cfg.Heads*l.cfg.Layer(i).HeadDim()))
		if l.gates != nil {
			a = torch.SigmoidGLU(qkv.IndexSelect(1, l.gates).Concat(a))
		}
		out = l.o.apply(a, pass.Adapters)
	}
	return addNorm(l.cfg, x, l.added(out, l.postAttentionNorm), l.preMLPNorm)
}

// heads describes how the product of queries, keys and values at the positions pos is split into heads.
func (l *layer) heads(pos *torch.Tensor) torch.Heads {
	f := l.cfg.Features()
	h := torch.Heads{Heads: l.cfg.Heads, KVHeads: l.cfg.Layer(l.index).KVHeads(), QNorm: l.qNorm, KNorm: l.kNorm, Offset: f.NormOffset, Eps: l.cfg.RMSEps,
		Cos: l.rotation.cos, Sin: l.rotation.sin, Pos: pos, NormsLast: f.NormsAfterRope, Order: l.table.order, Growth: l.table.growth}
	switch {
	case l.cfg.Layer(l.index).KVLayer() != l.index:
		h.KVHeads, h.KNorm = 1, l.qNorm // see orderOf
	case f.ValueNorms:
		h.VNorm = l.table.vNorm
	}
	return h
}

// mlp applies the gated MLP, the layer's mixture of experts, or both, to h, the norm of x. Both are [T, Hidden].
func (l *layer) mlp(x, h *torch.Tensor, pass Pass) *torch.Tensor {
	switch {
	case l.mixture == nil:
		return l.gated(h, pass)
	case l.mixture.parallel != nil:
		return l.addParallel(x, l.gated(h, pass), pass)
	}
	return l.mixture.forward(h, pass)
}

// gated applies the gated MLP to h [T, Hidden].
func (l *layer) gated(h *torch.Tensor, pass Pass) *torch.Tensor {
	gateUp := l.gateUp.apply(h, pass.Adapters)
	if l.cfg.Features().GELU {
		return l.down.apply(torch.GeGLU(gateUp), pass.Adapters)
	}
	return l.down.apply(torch.SwiGLU(gateUp), pass.Adapters)
}
