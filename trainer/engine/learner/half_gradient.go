package learner

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// partial holds the gradient of one micro-batch in the compute type. It exists if only the gradient of the share is
// accumulated in fp32. In a backward pass that goes layer by layer, all layers use one buffer: the gradient of a layer
// is collected before the next layer begins.
type partial struct {
	flat   *torch.Tensor
	places []ranks.Placement // in the order in which they are collected
}

// newPartial allocates the memory and makes the learner's parameters accumulate into it.
// byLayer is set if its backward passes go layer by layer.
func newPartial(s *torch.Scope, l *Learner, byLayer bool) *partial {
	p := &partial{}
	var size int64
	turns := 0
	if byLayer {
		turns = 1
	}
	p.places, size = ranks.Arrange(l.blocks, turns, func(b ranks.Block) int64 { return b.Computed(l.group.Rank(), l.group.Size()) })
	p.flat = torch.KeptZeros(s, l.model.Compute.DType(), size)
	for _, q := range l.params.Leaves() {
		if n := q.Leaf.Numel(); n > 0 { // there may be fewer experts than ranks
			q.Leaf.SetGrad(p.flat.Narrow(0, ranks.At(p.places, q.From), n).View(q.Leaf.Shape()...))
		}
	}
	return p
}

// collectBlock adds every rank's gradient of a block to the share's. The gradient of this rank's experts covers all
// ranks' rows already.
func (l *Learner) collectBlock(ctx context.Context, b ranks.Placement) error {
	own, at, group := l.part.flat.Narrow(0, b.First, b.Room), int64(0), l.group
	mine := l.share.Within(b.Span)
	if len(mine) > 0 {
		at = mine[0].At
	}
	if b.Expert > 0 {
		group = ranks.Solo{}
	}
	if err := group.Accumulate(ctx, l.grad.Narrow(0, at, mine.Numel()), own); err != nil {
		return err
	}
	own.Zero_()
	return nil
}

// sumOfHead returns the part of grad that holds the head's gradient, if this rank has all of it in fp32 while the
// gradients of the leaves are in half precision. On a GPU, products of a micro-batch are added to it directly and are
// not rounded first.
func (l *Learner) sumOfHead(s *torch.Scope, leaves []model.Param) *torch.Tensor {
	if l.part == nil || !l.model.Device.IsCUDA() || l.group.Size() > 1 {
		return nil
	}
	for _, p := range leaves {
		if torch.Matrix(p.Leaf) != l.model.HeadMatrix() {
			continue
		}
		span := ranks.Span{From: p.From, To: p.From + p.Leaf.Numel()}
		at := l.share.Within(span)[0].At
		return s.Keep(l.grad.Narrow(0, at, span.Numel()).View(p.Leaf.Shape()...))
	}
	return nil
}
