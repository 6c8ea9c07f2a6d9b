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
	shared      sharedKV
	pieces      torch.Pieces // of layers with a gated delta rule
}

func (a packedAttention) Attend(layer int, qkv *torch.Tensor, heads torch.Heads, sinks *torch.Tensor) *torch.Tensor {
	q, k, v := heads.Split(qkv)
	l := a.cfg.Layer(layer)
	if of := l.KVLayer(); of != layer {
		k, v = a.shared[of].k, a.shared[of].v
	} else if l.SharesKV() {
		a.shared[layer] = keysValues{k, v}
	}
	return torch.AttentionPacked(q, k, v, a.cu, a.follows, a.scale, l.Window(), sinks)
}

// pass describes the batch to a decoder.
func (in Packed) pass(cfg *arch.Config) Pass {
	att := packedAttention{cu: in.Cu, follows: in.Follows, cfg: cfg, scale: cfg.AttentionScale(), shared: sharedKV{}}
	if cfg.GatedDelta != nil {
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
	return m.Training.Hidden(s, in.IDs, in.pass(&m.Config))
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
