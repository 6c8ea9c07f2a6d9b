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
	flat  *torch.Tensor
	parts []part // in the order in which they are collected
	next  int    // the next of them
}

// part is a block whose gradient is in partial.flat from element `place` on.
type part struct {
	ranks.Block
	place int64
}

// newPartial allocates the memory and makes the parameters accumulate into it.
func newPartial(s *torch.Scope, params []model.Param, blocks []ranks.Block, dtype torch.DType, byLayer bool) *partial {
	p := &partial{}
	var size int64
	p.parts, size = arrange(blocks, byLayer)
	p.flat = s.Keep(s.Zeros(dtype, size))
	for _, q := range params {
		for _, b := range p.parts {
			if b.From <= q.Offset && q.Offset < b.To {
				q.Leaf.SetGrad(p.flat.Narrow(0, b.place+q.Offset-b.From, q.Leaf.Numel()).View(q.Leaf.Shape()...))
			}
		}
	}
	return p
}

// arrange places blocks in memory, and says how much they need: what is of no layer first, and behind that, in one place, the layers. These
// are collected first, from the last down. Unless passes go layer by layer all blocks have their own places.
func arrange(blocks []ranks.Block, byLayer bool) (parts []part, size int64) {
	var layers, others []part
	for _, b := range blocks {
		if byLayer && b.Layer > 0 {
			layers = append(layers, part{Block: b})
			continue
		}
		others = append(others, part{b, size})
		size += b.Numel()
	}
	behind := size
	for i := len(layers) - 1; i >= 0; i-- {
		at := behind
		if n := len(parts); n > 0 && parts[n-1].Layer == layers[i].Layer { // a layer in several blocks
			at = parts[n-1].place + parts[n-1].Numel()
		}
		parts = append(parts, part{layers[i].Block, at})
		size = max(size, at+layers[i].Numel())
	}
	return append(parts, others...), size
}

// collectGradient adds every rank's gradient of a micro-batch to the fp32 gradient of the share if the compute type is not fp32: what the
// pass has not collected. Of a pass that came to its end that is what is of no layer, and of a rank that made none everything, which is 0.
func (l *Learner) collectGradient(ctx context.Context) error {
	if l.part == nil {
		return nil
	}
	return l.meet(ctx, func(*torch.Scope) error {
		for l.part.next < len(l.part.parts) {
			if err := l.collectNext(ctx); err != nil {
				return err
			}
		}
		l.part.next = 0
		return nil
	})
}

// collectLayer collects the gradient of a layer in the middle of a backward pass.
func (l *Learner) collectLayer(ctx context.Context) func(layer int) error {
	return func(layer int) error {
		for p := l.part; p != nil && p.next < len(p.parts) && p.parts[p.next].Layer == layer; {
			if err := l.collectNext(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

func (l *Learner) collectNext(ctx context.Context) error {
	p := l.part.parts[l.part.next]
	own, at := l.part.flat.Narrow(0, p.place, p.Numel()), int64(0)
	mine := l.share.Within(p.Run)
	if len(mine) > 0 {
		at = mine[0].At
	}
	if err := l.group.Accumulate(ctx, l.grad.Narrow(0, at, mine.Numel()), own); err != nil {
		return err
	}
	own.Zero_()
	l.part.next++
	return nil
}

// clear forgets what a pass has left that did not come to its end.
func (p *partial) clear() {
	p.flat.Zero_()
	p.next = 0
}
