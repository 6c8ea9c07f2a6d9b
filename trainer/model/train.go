package model

import (
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Packed is a batch of sequences without padding. Segment b is rows Cu[b] to Cu[b+1]-1 and continues the sequence that ends
// at row Follows[b], so sequences with a common prefix store it once.
type Packed struct {
	IDs, Pos *torch.Tensor // int32 [T]
	Cu       *torch.Tensor // int32 [B+1]
	Follows  *torch.Tensor // int32 [B], Follows[b] < Cu[b], -1 at the start of a sequence; nil if every segment is a sequence
	Routes   *Routes       // for a mixture of experts; may be nil
}

// packedAttention is causal attention within each sequence of a packed batch.
type packedAttention struct {
	cu, follows *torch.Tensor
	cfg         *arch.Config
	scale       float64
	kept        keptKV
	pieces      torch.Pieces // of layers with a gated delta rule
}

func (a packedAttention) Attend(layer int, qkv *torch.Tensor, heads torch.Heads, sinks *torch.Tensor) *torch.Tensor {
	q, k, v := heads.Split(qkv)
	l := a.cfg.Layer(layer)
	if of := l.KVLayer(); of != layer {
		k, v = a.kept[of].k, a.kept[of].v
	} else if l.SharesKV() {
		a.kept[layer] = keysValues{k, v}
	}
	return torch.AttentionPacked(q, k, v, a.cu, a.follows, a.scale, l.Window(), sinks)
}

func (m *Model) packed(in Packed) Pass {
	att := packedAttention{cu: in.Cu, follows: in.Follows, cfg: &m.Config, scale: m.Config.AttentionScale(), kept: keptKV{}}
	if m.Config.GatedDelta != nil {
		att.pieces = torch.PiecesOf(in.Cu, in.Follows)
	}
	return Pass{Pos: in.Pos, Attention: att, Routes: in.Routes}
}

// Forward computes Hidden for a packed batch.
func (m *Model) Forward(s *torch.Scope, in Packed) *torch.Tensor {
	m.wantWhole("forward")
	if m.module != nil {
		return moduleHidden(m, s, in)
	}
	return m.Hidden(s, in.IDs, m.packed(in))
}

// LossFunc returns tensors that it computes from hidden states [T, Hidden], and the gradient of the loss with respect to each
// of them. It is called while gradients are recorded.
type LossFunc func(hidden *torch.Tensor) (outputs, grads []*torch.Tensor)

// ForwardBackward accumulates the gradient of a loss into the Grad of the leaves.
func (m *Model) ForwardBackward(s *torch.Scope, in Packed, loss LossFunc) {
	s.Grad(true, func() {
		hidden := m.Forward(s, in)
		if m.module != nil && !torch.HasHistory(hidden) {
			panic(&torch.Error{Op: "torchscript", Message: "forward returned hidden states without gradient history, so no parameter but the head, " +
				m.Config.Module.Head + ", would learn: the module must not detach them or compute them under no_grad"})
		}
		outputs, grads := loss(hidden)
		torch.Backward(outputs, grads)
	})
}

// Layers holds callbacks for the layers of a pass, counted from 1. If one returns an error, the pass ends.
type Layers struct {
	Before   func(layer int) error // called before a layer is computed, forward or backward
	After    func(layer int) error // called when the gradient of a layer is complete
	Dispatch Dispatch              // called to compute experts that are divided among ranks
}

// ForwardByLayer computes Forward and calls the functions of layers.
func (m *Model) ForwardByLayer(s *torch.Scope, in Packed, layers Layers) (y *torch.Tensor, err error) {
	pass := m.packed(in)
	x := m.embedded(in.IDs)
	pass.inputs = m.inputsOf(s, in.IDs, x, pass)
	for i := range m.layers {
		input := x
		if x, err = m.nextBlock(s, i, input, pass, layers); err != nil {
			return nil, err
		}
		input.Drop()
	}
	return m.normOf(x, len(m.layers)), nil
}

// ForwardBackwardCheckpointed does the same as ForwardBackward, with activation checkpointing (Chen et al. 2016). It keeps
// one hidden state for each layer that gradients reach, and computes each such block again just before its backward pass.
func (m *Model) ForwardBackwardCheckpointed(s *torch.Scope, in Packed, loss LossFunc, layers Layers) (err error) {
	pass := m.packed(in)
	toEmbedding, lowest := trained(m.embed), 0
	toInputs := m.inputs != nil && (toEmbedding || m.inputs.trained())
	for !toEmbedding && !toInputs && lowest < len(m.layers) && !m.layers[lowest].trained() {
		lowest++
	}
	inputs := make([]*torch.Tensor, len(m.layers)+1)
	inputs[0] = m.embedded(in.IDs)
	pass.inputs = m.inputsOf(s, in.IDs, inputs[0], pass)
	for i := range m.layers {
		if inputs[i+1], err = m.nextBlock(s, i, inputs[i], pass, layers); err != nil {
			return err
		}
		if i < lowest {
			inputs[i].Drop()
		}
	}
	kept := pass.Attention.(packedAttention).kept
	leaves := kept.asLeaves(lowest)
	if pass.inputs != nil {
		pass.inputs = pass.inputs.Detach()
		pass.inputs.RequireGrad(toInputs)
	}
	grad := m.backBlock(s, inputs[len(m.layers)], lowest < len(m.layers), func(x *torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
		return loss(m.normOf(x, len(m.layers)))
	})
	for i := len(m.layers) - 1; i >= lowest; i-- {
		if err := layers.Before(i + 1); err != nil {
			return err
		}
		dy := grad
		if m.DispatchesRows(i + 1) {
			grad, err = m.backwardDispatched(s, i, inputs[i], dy, pass, layers.Dispatch)
		} else {
			grad = m.backBlock(s, inputs[i], i > lowest || toEmbedding, func(x *torch.Tensor) ([]*torch.Tensor, []*torch.Tensor) {
				y := m.scopedBlock(s, i, x, pass)
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
	m.backEmbedding(s, in.IDs, grad, pass, toEmbedding, toInputs)
	return nil
}

// backEmbedding accumulates the gradients of the embeddings, given the gradients of their outputs: grad, and that of pass.inputs.
func (m *Model) backEmbedding(s *torch.Scope, ids, grad *torch.Tensor, pass Pass, toEmbedding, toInputs bool) {
	s.Grad(true, func() {
		var outputs, grads []*torch.Tensor
		x := m.embedded(ids)
		if toEmbedding {
			outputs, grads = append(outputs, x), append(grads, grad)
		}
		if toInputs {
			outputs, grads = append(outputs, m.inputsOf(s, ids, x, pass)), append(grads, pass.inputs.Grad())
		}
		if len(outputs) > 0 {
			torch.Backward(outputs, grads)
		}
	})
}

func (n *inputs) trained() bool {
	return trained(n.embed) || trained(n.norm) || n.project.trained()
}

// trained reports whether the map or one of its adapters is trained.
func (l linear) trained() bool {
	return trained(l.weight) || trained(l.bias) || slices.ContainsFunc(l.lora, func(a torch.LoRA) bool { return trained(a.Values) })
}

// trained reports whether w has a gradient to accumulate.
func trained(w torch.Matrix) bool {
	t, ok := w.(*torch.Tensor)
	return ok && t != nil && t.Grad() != nil
}

// trained reports whether any weight of the layer is trained.
func (l *layer) trained() bool { return slices.ContainsFunc(l.weights, trained) }

// block computes layer i. x and the result are the residual stream before and after it.
func (m *Model) block(i int, x *torch.Tensor, pass Pass) *torch.Tensor {
	sum, out := m.layers[i].forward(i, x, m.normOf(x, i), pass)
	if out == nil {
		return sum
	}
	return sum.Add(out)
}

// nextBlock computes layer i of a forward pass.
func (m *Model) nextBlock(s *torch.Scope, i int, x *torch.Tensor, pass Pass, layers Layers) (*torch.Tensor, error) {
	if err := layers.Before(i + 1); err != nil {
		return nil, err
	}
	if m.DispatchesRows(i + 1) {
		return m.forwardDispatched(s, i, x, pass, layers.Dispatch)
	}
	return m.scopedBlock(s, i, x, pass), nil
}

// scopedBlock computes block and frees the tensors that the backward pass does not keep.
func (m *Model) scopedBlock(s *torch.Scope, i int, x *torch.Tensor, pass Pass) (y *torch.Tensor) {
	s.Scoped(func() {
		y = s.Hoist(m.block(i, x, pass))
		hoistKept(s, pass, i)
	})
	return y
}

// backBlock computes one block at x forward and backward, and accumulates into the leaves. It returns the gradient of x, or
// nil unless wanted is set.
func (m *Model) backBlock(s *torch.Scope, x *torch.Tensor, wanted bool, block LossFunc) *torch.Tensor {
	var dx *torch.Tensor
	s.Scoped(func() {
		s.Grad(true, func() {
			in := x.Detach()
			in.RequireGrad(wanted)
			outputs, grads := block(in)
			torch.Backward(outputs, grads)
			if wanted {
				dx = s.Hoist(in.Grad())
			}
		})
	})
	return dx
}
