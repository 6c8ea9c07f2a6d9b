package learner

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/ranks"
)

// partial is the gradient of one micro-batch in the compute type, where that is not fp32. Where a backward pass goes layer by layer, the
// layers take turns in one piece of memory: the gradient of each is collected before that of the next begins.
type partial struct {
	flat   *torch.Tensor
	blocks []block // in the order in which they are collected
	next   int     // the next of them
	numel  int64   // of all parameters
}

// block is elements [from, to) of the parameters, whose gradient is in partial.flat from element `at` on.
type block struct {
	layer        int // from 1 on; 0: of none, so that its gradient is complete with the whole pass
	from, to, at int64
}

// newPartial allocates the memory and makes the parameters accumulate into it.
func newPartial(s *torch.Scope, params []model.Param, numel int64, dtype torch.DType, byLayer bool) *partial {
	p := &partial{numel: numel, blocks: blocksOf(params, byLayer)}
	size := int64(0)
	for _, b := range p.blocks {
		size = max(size, b.at+b.to-b.from)
	}
	p.flat = s.Keep(s.Zeros(dtype, size))
	for _, q := range params {
		for _, b := range p.blocks {
			if b.from <= q.Offset && q.Offset < b.to {
				q.Leaf.SetGrad(p.flat.Narrow(0, b.at+q.Offset-b.from, q.Leaf.Numel()).View(q.Leaf.Shape()...))
			}
		}
	}
	return p
}

// blocksOf are the longest runs of parameters of one layer: those of the layers first, from the last down, all in the memory behind the
// others'.
func blocksOf(params []model.Param, byLayer bool) (blocks []block) {
	var layers, others []block
	for _, p := range params {
		b := block{from: p.Offset, to: p.Offset + p.Leaf.Numel()}
		into := &others
		if byLayer && p.Layer > 0 {
			b.layer, into = p.Layer, &layers
		}
		if i := len(*into) - 1; i >= 0 && (*into)[i].layer == b.layer && (*into)[i].to == b.from {
			(*into)[i].to = b.to
		} else {
			*into = append(*into, b)
		}
	}
	at := int64(0)
	for i := range others {
		others[i].at = at
		at += others[i].to - others[i].from
	}
	for i := len(layers) - 1; i >= 0; i-- {
		layers[i].at = at
		if n := len(blocks); n > 0 && blocks[n-1].layer == layers[i].layer { // a layer in several runs
			layers[i].at = blocks[n-1].at + blocks[n-1].to - blocks[n-1].from
		}
		blocks = append(blocks, layers[i])
	}
	return append(blocks, others...)
}

// collect adds the gradient of a layer, of all ranks, to sum.
func (p *partial) collect(ctx context.Context, g ranks.Group, sum *torch.Tensor, layer int) error {
	for p.next < len(p.blocks) && p.blocks[p.next].layer == layer {
		if err := p.collectNext(ctx, g, sum); err != nil {
			return err
		}
	}
	return nil
}

// collectRest is collect of what the pass has not collected: of a pass that came to its end what is of no layer, and of a rank that made
// none everything, which is 0.
func (p *partial) collectRest(ctx context.Context, g ranks.Group, sum *torch.Tensor) error {
	for p.next < len(p.blocks) {
		if err := p.collectNext(ctx, g, sum); err != nil {
			return err
		}
	}
	p.next = 0
	return nil
}

func (p *partial) collectNext(ctx context.Context, g ranks.Group, sum *torch.Tensor) error {
	b := p.blocks[p.next]
	own := p.flat.Narrow(0, b.at, b.to-b.from)
	if err := g.Accumulate(ctx, sum, own, b.from, p.numel); err != nil {
		return err
	}
	own.Zero_()
	p.next++
	return nil
}

// clear forgets what a pass has left that did not come to its end.
func (p *partial) clear() {
	p.flat.Zero_()
	p.next = 0
}
