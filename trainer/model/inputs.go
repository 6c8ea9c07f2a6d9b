package model

import (
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
)

// inputs makes the embeddings that the layers of Gemma 4 add: from a table, and from the model's embedding.
type inputs struct {
	embed   torch.Matrix // [vocabulary, Layers·Inputs]
	project linear       // [Layers·Inputs, Hidden]
	norm    *torch.Tensor
}

// inputsOf returns the embeddings for all layers, [T, Layers·Inputs], of tokens and their embedding in the model. It returns nil if
// layers add none.
func (d *Decoder) inputsOf(s *torch.Scope, ids, embedded *torch.Tensor, pass Pass) (all *torch.Tensor) {
	if d.inputs == nil {
		return nil
	}
	s.Scoped(func() {
		own := d.rowsOf(d.inputs.embed, ids, math.Sqrt(float64(d.cfg.LayerInputs())))
		projected := d.inputs.project.apply(embedded, pass.Adapters).Scale(1 / math.Sqrt(float64(d.cfg.Hidden)))
		each := torch.RMSNorm(projected.View(-1, int64(d.cfg.LayerInputs())), d.inputs.norm, d.cfg.Features().NormOffset, d.cfg.RMSEps)
		all = s.Hoist(each.View(own.Shape()...).Add(own).Scale(math.Sqrt2 / 2))
	})
	return all
}

// ownInput adds a layer's embedding to the residual stream: norm(up(gelu(gate(x)) · embedding)).
type ownInput struct {
	gate, up linear
	norm     *torch.Tensor
}

// forward returns the term for the residual stream x [T, Hidden].
func (o *ownInput) forward(l *layer, x *torch.Tensor, pass Pass) *torch.Tensor {
	width := int64(l.cfg.LayerInputs())
	own := pass.inputs.Narrow(1, int64(l.index)*width, width)
	return norm(l.cfg, o.up.apply(o.gate.apply(x, pass.Adapters).GELU().Mul(own), pass.Adapters), o.norm)
}
