package learner

import (
	"context"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
)

// exchange is what the ranks do together in the middle of a pass: they gather a layer of a model that none holds whole, or add up the gradient
// of a block.
type exchange struct {
	layer   int // from 1 on; 0: of none
	collect int // place in partial.places; -1: gather the layer
}

// exchangesOf are those of one pass over m, in their order. Every rank makes all of them, whatever becomes of its own pass: the others
// wait for it.
func (l *Learner) exchangesOf(m *model.Model, backward bool) (all []exchange) {
	there := 0
	gather := func(layer int) {
		if m.Gathered() && layer > 0 && layer != there {
			all = append(all, exchange{layer, -1})
			there = layer
		}
	}
	for i := range m.Config.Layers {
		gather(i + 1)
	}
	if !backward || l.part == nil {
		return all
	}
	for i, b := range l.part.places {
		gather(b.Layer)
		all = append(all, exchange{b.Layer, i})
	}
	return all
}

// each makes as many passes over m as the rank with the most micro-batches has, of which mine are this rank's. A rank with fewer, or that
// failed, makes the exchanges of the rest with zeros, or with whatever it has, since no update will be made.
func (l *Learner) each(ctx context.Context, m *model.Model, mine [][]*Sequence, passes int, backward bool, failed error, pass func(micro []*Sequence) error) error {
	for i := range passes {
		l.ahead = l.exchangesOf(m, backward)
		if i < len(mine) && failed == nil {
			failed = pass(mine[i])
		}
		if err := l.exchangeRest(ctx, m); err != nil {
			if failed != nil && !refused(failed) {
				return failed // which may be why
			}
			return err
		}
	}
	return failed
}

// exchangeRest makes those exchanges of the pass over m that it has not come to.
func (l *Learner) exchangeRest(ctx context.Context, m *model.Model) error {
	if len(l.ahead) == 0 {
		return nil
	}
	return l.meetOn(ctx, m.Device, func(*torch.Scope) error {
		for len(l.ahead) > 0 {
			if err := l.exchangeNext(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// exchangeNext makes the next exchange of the pass over m.
func (l *Learner) exchangeNext(ctx context.Context, m *model.Model) error {
	x := l.ahead[0]
	l.ahead = l.ahead[1:]
	if x.collect < 0 {
		return l.gather(ctx, m, x.layer)
	}
	return l.collectBlock(ctx, l.part.places[x.collect])
}

// gather gathers a layer of a model that no rank holds whole; 0: what is in none.
func (l *Learner) gather(ctx context.Context, m *model.Model, layer int) error {
	return m.Gather(layer, func(block *torch.Tensor) error { return l.group.AllGather(ctx, block) })
}

// layers makes the exchanges of a pass over m as it comes to the layers.
func (l *Learner) layers(ctx context.Context, m *model.Model) model.Layers {
	next := func(layer int, collects bool) bool {
		return len(l.ahead) > 0 && l.ahead[0].layer == layer && (l.ahead[0].collect >= 0) == collects
	}
	return model.Layers{
		Before: func(layer int) error {
			if next(layer, false) { // else it is there
				return l.exchangeNext(ctx, m)
			}
			return nil
		},
		After: func(layer int) error {
			for next(layer, true) {
				if err := l.exchangeNext(ctx, m); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// hidden is the forward pass of one micro-batch.
func (l *Learner) hidden(ctx context.Context, s *torch.Scope, m *model.Model, in model.Packed) (*torch.Tensor, error) {
	if m.Gathered() {
		return m.ForwardByLayer(s, in, l.layers(ctx, m).Before)
	}
	return m.Forward(s, in), nil
}

// forwardBackward accumulates the gradient of one micro-batch.
func (l *Learner) forwardBackward(ctx context.Context, s *torch.Scope, in model.Packed, objective model.Objective) error {
	if l.opt.Checkpoint {
		return l.model.ForwardBackwardCheckpointed(s, in, objective, l.layers(ctx, l.model))
	}
	l.model.ForwardBackward(s, in, objective)
	return nil
}

// Logits is model.Logits of a model of which every rank has a share of the layers: the others call Assist meanwhile.
func (l *Learner) Logits(ctx context.Context, ids []int32, ends []int) (logits [][]float32, err error) {
	one := [][]*Sequence{nil} // pass
	err = l.each(ctx, l.model, one, len(one), false, nil, func([]*Sequence) error {
		logits, err = l.model.LogitsOf(ctx, ids, ends, func(s *torch.Scope, in model.Packed) (*torch.Tensor, error) { return l.hidden(ctx, s, l.model, in) })
		return err
	})
	return logits, err
}

// Assist has this rank's share of the layers take part in a forward pass of another rank.
func (l *Learner) Assist(ctx context.Context) error {
	return l.each(ctx, l.model, nil, 1, false, nil, nil)
}
