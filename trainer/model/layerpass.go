package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// Layers holds callbacks for the layers of a pass, counted from 1. If one returns an error, the pass ends.
type Layers struct {
	Before   func(layer int) error // called before a layer is computed, forward or backward
	After    func(layer int) error // called when the gradient of a layer is complete
	Dispatch Dispatch              // called to compute experts that are divided among ranks
}

// layerPass is a pass that computes one layer at a time.
type layerPass struct {
	*Decoder
	s          *torch.Scope
	pass       Pass
	calls      Layers
	dispatches func(layer int) bool // DispatchesRows
}

// byLayer begins a pass over a batch. x is the embedding of its tokens.
func (m *Model) byLayer(s *torch.Scope, in Packed, calls Layers) (p *layerPass, x *torch.Tensor) {
	p = &layerPass{m.Training, s, in.pass(&m.Config), calls, m.DispatchesRows}
	x = p.embedded(in.IDs)
	p.pass.inputs = p.inputsOf(s, in.IDs, x, p.pass)
	return p, x
}

// ForwardByLayer computes Forward and calls the functions of layers.
func (m *Model) ForwardByLayer(s *torch.Scope, in Packed, layers Layers) (y *torch.Tensor, err error) {
	p, x := m.byLayer(s, in, layers)
	for i := range p.layers {
		input := x
		if x, err = p.next(i, input); err != nil {
			return nil, err
		}
		input.Drop()
	}
	return p.normOf(x, len(p.layers)), nil
}

// ForwardBackwardCheckpointed does the same as ForwardBackward, with activation checkpointing (Chen et al. 2016). It keeps
// one hidden state for each layer that gradients reach, and computes each such block again just before its backward pass.
func (m *Model) ForwardBackwardCheckpointed(s *torch.Scope, in Packed, loss LossFunc, layers Layers) (err error) {
	p, x := m.byLayer(s, in, layers)
	toEmbedding, lowest := trained(p.embed), 0
	toInputs := p.inputs != nil && (toEmbedding || p.inputs.trained())
	for !toEmbedding && !toInputs && lowest < len(p.layers) && !p.layers[lowest].trained() {
		lowest++
	}
	inputs := make([]*torch.Tensor, len(p.layers)+1)
	inputs[0] = x
	for i := range p.layers {
		if inputs[i+1], err = p.next(i, inputs[i]); err != nil {
			return err
		}
		if i < lowest {
			inputs[i].Drop()
		}
	}
	kept := p.pass.Attention.(packedAttention).shared
	leaves := kept.asLeaves(lowest)
	if p.pass.inputs != nil {
		p.pass.inputs = p.pass.inputs.Detach()
		p.pass.inputs.RequireGrad(toInputs)
	}
	grad := p.back(inputs[len(p.layers)], lowest < len(p.layers), func(x *torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
		return loss(p.normOf(x, len(p.layers)))
	})
	for i := len(p.layers) - 1; i >= lowest; i-- {
		if err := layers.Before(i + 1); err != nil {
			return err
		}
		dy := grad
		if p.dispatches(i + 1) {
			grad, err = p.backwardDispatched(i, inputs[i], dy)
		} else {
			grad = p.back(inputs[i], i > lowest || toEmbedding, func(x *torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
				y := p.scopedBlock(i, x)
				return kept.extend(i, leaves, []*torch.Tensor{y}, []*torch.Tensor{dy})
			})
		}
		if err != nil {
			return err
		}
		dy.Drop()
		inputs[i+1].Drop()
		if err := layers.After(i + 1); err != nil {
			return err
		}
	}
	p.backEmbedding(in.IDs, grad, toEmbedding, toInputs)
	return nil
}

// backEmbedding accumulates the gradients of the embeddings, given the gradients of their outputs: grad, and that of pass.inputs.
func (p *layerPass) backEmbedding(ids, grad *torch.Tensor, toEmbedding, toInputs bool) {
	p.s.Grad(true, func() {
		var outputs, grads []*torch.Tensor
		x := p.embedded(ids)
		if toEmbedding {
			outputs, grads = append(outputs, x), append(grads, grad)
		}
		if toInputs {
			outputs, grads = append(outputs, p.inputsOf(p.s, ids, x, p.pass)), append(grads, p.pass.inputs.Grad())
		}
		if len(outputs) > 0 {
			torch.Backward(outputs, grads)
		}
	})
}

// block computes layer i. x and the result are the residual stream before and after it.
func (d *Decoder) block(i int, x *torch.Tensor, pass Pass) *torch.Tensor {
	sum, out := d.layers[i].forward(i, x, d.normOf(x, i), pass)
	if out == nil {
		return sum
	}
	return sum.Add(out)
}

// next computes layer i of a forward pass.
func (p *layerPass) next(i int, x *torch.Tensor) (*torch.Tensor, error) {
	if err := p.calls.Before(i + 1); err != nil {
		return nil, err
	}
	if p.dispatches(i + 1) {
		return p.forwardDispatched(i, x)
	}
	return p.scopedBlock(i, x), nil
}

// scopedBlock computes block and frees the tensors that the backward pass does not keep.
func (p *layerPass) scopedBlock(i int, x *torch.Tensor) (y *torch.Tensor) {
	p.s.Scoped(func() {
		y = p.s.Hoist(p.block(i, x, p.pass))
		hoistSharedKV(p.s, p.pass, i)
	})
	return y
}

// back computes one block at x forward and backward, and accumulates into the leaves. It returns the gradient of x, or
// nil unless wanted is set.
func (p *layerPass) back(x *torch.Tensor, wanted bool, block LossFunc) *torch.Tensor {
	var dx *torch.Tensor
	p.s.Scoped(func() {
		p.s.Grad(true, func() {
			in := x.Detach()
			in.RequireGrad(wanted)
			outputs, grads := block(in)
			torch.Backward(outputs, grads)
			if wanted {
				dx = p.s.Hoist(in.Grad())
			}
		})
	})
	return dx
}
