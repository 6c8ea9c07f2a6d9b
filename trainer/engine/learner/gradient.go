package learner

import (
	"context"
	"math"

	"github.com/mgrpo/mgrpo/bindings/kernels"
	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// gradient is the gradient of the trained parameters.
type gradient struct {
	sum  *torch.Tensor  // fp32 [params.Numel], or [share.Numel] if part is not nil: the sum over all ranks
	part *microGradient // gradient of one micro-batch in the compute type; nil if that is fp32, and the model complete
	head *torch.Tensor  // view of the head's part of sum, [V, D]: losses add its gradient here; nil: to the leaf's gradient
}

// newGradient allocates the memory and makes the parameters accumulate into it. byLayer is set if backward passes go layer
// by layer.
func newGradient(s *torch.Scope, d *division, byLayer bool) *gradient {
	g, leaves := &gradient{}, d.params.Leaves()
	for _, p := range leaves {
		p.Leaf.RequireGrad(true)
	}
	if len(leaves) > 0 && (leaves[0].Leaf.DType() != torch.Float32 || d.model.Gathered()) {
		g.sum = torch.KeptZeros(s, torch.Float32, d.share.Numel())
		g.part = newMicroGradient(s, d, byLayer)
	} else {
		g.sum = torch.KeptZeros(s, torch.Float32, d.params.Numel())
		for _, p := range leaves {
			p.Leaf.SetGrad(g.sum.Narrow(0, p.From, p.Leaf.Numel()).View(p.Leaf.Shape()...))
		}
	}
	g.head = g.sumOfHead(s, d)
	return g
}

func (g *gradient) zero() {
	g.sum.Zero_()
	if g.part != nil {
		g.part.flat.Zero_() // removes the rest of a failed pass
	}
}

func (g *gradient) drop(leaves []model.Param) {
	for _, p := range leaves {
		p.Leaf.SetGrad(nil)
		p.Leaf.RequireGrad(false)
	}
	g.head.Drop()
	g.sum.Drop()
	if g.part != nil {
		g.part.flat.Drop()
	}
}

// norm sums up the ranks' gradients and returns the norm of the sum.
func (g *gradient) norm(ctx context.Context, d *division) (norm float64, err error) {
	if g.part == nil { // otherwise each micro-batch's gradient was summed already
		err = d.group.run(ctx, d.model.Device, func(*torch.Scope) (err error) {
			for i := 0; i < len(d.blocks) && err == nil; i++ {
				err = d.group.ReduceScatter(ctx, g.sum.Narrow(0, d.blocks[i].From, d.blocks[i].Numel()))
			}
			return err
		})
	}
	var own float64
	if err == nil {
		err = d.model.Device.Do(ctx, func(s *torch.Scope) error {
			for _, p := range d.share {
				norm, err := kernels.GradNorm(model.Backend(s), d.in(g.sum, p).Ptr(), p.Numel())
				if own = math.Hypot(own, norm); err != nil {
					return err
				}
			}
			return nil
		})
	}
	norms, err := agree(ctx, d.group, own, err, 0)
	for _, n := range norms {
		norm = math.Hypot(norm, n)
	}
	return norm, err
}

// sumBlock adds every rank's gradient of a block to the share's. The gradient of this rank's experts covers all
// ranks' rows already.
func (g *gradient) sumBlock(ctx context.Context, d *division, b ranks.Placement) error {
	own, at, with := g.part.flat.Narrow(0, b.First, b.Room), int64(0), d.group.Group
	mine := d.share.Within(b.Span)
	if len(mine) > 0 {
		at = mine[0].At
	}
	if b.Expert > 0 {
		with = ranks.Solo{}
	}
	if err := with.Accumulate(ctx, g.sum.Narrow(0, at, mine.Numel()), own); err != nil {
		return err
	}
	own.Zero_()
	return nil
}

// sumOfHead returns the head's part of the sum if there is one rank on a GPU, a sum in fp32 and gradients in half precision. Losses add
// their products to it directly, without rounding them first. Otherwise it returns nil.
func (g *gradient) sumOfHead(s *torch.Scope, d *division) *torch.Tensor {
	if g.part == nil || !d.model.Device.IsCUDA() || d.group.Size() > 1 {
		return nil
	}
	for _, p := range d.params.Leaves() {
		if torch.Matrix(p.Leaf) != d.model.Training.HeadMatrix() {
			continue
		}
		span := ranks.Span{From: p.From, To: p.From + p.Leaf.Numel()}
		at := d.share.Within(span)[0].At
		return s.Keep(g.sum.Narrow(0, at, span.Numel()).View(p.Leaf.Shape()...))
	}
	return nil
}

// microGradient holds the gradient of one micro-batch in the compute type. It exists if only the gradient of the share is
// accumulated in fp32. In a backward pass that goes layer by layer, all layers use one buffer: the gradient of a layer
// is collected before the next layer begins.
type microGradient struct {
	flat   *torch.Tensor
	places []ranks.Placement // blocks of flat, in the order of their sums
}

// newMicroGradient allocates the memory and makes the parameters accumulate into it.
// byLayer is set if its backward passes go layer by layer.
func newMicroGradient(s *torch.Scope, d *division, byLayer bool) *microGradient {
	p := &microGradient{}
	var size int64
	turns := 0
	if byLayer {
		turns = 1
	}
	p.places, size = ranks.Arrange(d.blocks, turns, func(b ranks.Block) int64 { return b.Computed(d.group.Rank(), d.group.Size()) })
	p.flat = torch.KeptZeros(s, d.model.Compute.DType(), size)
	for _, q := range d.params.Leaves() {
		if n := q.Leaf.Numel(); n > 0 { // there may be fewer experts than ranks
			q.Leaf.SetGrad(p.flat.Narrow(0, ranks.PlaceOf(p.places, q.From), n).View(q.Leaf.Shape()...))
		}
	}
	return p
}
