package learner

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model"
	"github.com/mgrpo/mgrpo/trainer/model/ranks"
)

// passes runs forward and backward passes of this rank, with the exchanges that all ranks make during them.
type passes struct {
	*division
	grad         *gradient
	checkpointed bool       // activations are recomputed in the backward pass
	maxRows      int        // of a micro-batch
	ahead        []exchange // the remaining exchanges of the current pass

	watch       func(done, total int) // called after each pass; may be nil
	done, total int                   // passes of the batch
}

// exchange is a step of a pass that all ranks make together: gather a divided layer, in two steps; dispatch rows to a
// layer's experts and return the results; or sum up the gradient of a block. computeLayer is a marker: compute the layer here.
type exchange struct {
	kind exchangeKind
	at   int // the layer, from 1; of sumGrads: the index in microGradient.places
}

type exchangeKind int

const (
	gatherStart   exchangeKind = iota // the layer's gather begins
	gatherFinish                      // the layer is present
	computeLayer                      // the pass computes the layer
	dispatchRows                      // rows to experts, and their outputs back
	dispatchGrads                     // the same with gradients, in the backward pass
	sumGrads                          // the gradient of the block is summed up
)

// exchangesOf lists the exchanges of one pass over m, in order. Every rank makes all of them, even if its own pass
// fails, since the others wait for it. The next layer is gathered while a layer is computed.
func (p *passes) exchangesOf(m *model.Model, backward bool) (all []exchange) {
	backward = backward && p.grad.part != nil // a backward pass without a microGradient makes no exchanges
	if !backward && !m.Gathered() {
		return nil
	}
	var visits []int
	for i := range m.Config.Layers {
		visits = append(visits, i+1)
	}
	if backward {
		down := slices.Clone(visits)
		slices.Reverse(down)
		visits = append(visits, down...)
	}
	var resident [model.ResidentLayers]int // or being gathered
	coming := map[int]bool{}
	for i, layer := range visits {
		for _, next := range visits[i:min(i+model.ResidentLayers, len(visits))] {
			if place := &resident[next%model.ResidentLayers]; m.Gathered() && *place != next {
				*place, coming[next] = next, true
				all = append(all, exchange{gatherStart, next})
			}
		}
		if coming[layer] {
			coming[layer] = false
			all = append(all, exchange{gatherFinish, layer})
		}
		all = append(all, exchange{computeLayer, layer})
		down := i >= m.Config.Layers
		switch {
		case m.DispatchesRows(layer) && down:
			all = append(all, exchange{dispatchGrads, layer})
		case m.DispatchesRows(layer):
			all = append(all, exchange{dispatchRows, layer})
		}
		if down {
			all = append(all, p.gradSumsOf(layer)...)
		}
	}
	if backward {
		all = append(all, p.gradSumsOf(0)...)
	}
	return all
}

// gradSumsOf returns the exchanges that sum up a layer's gradients; layer 0 stands for weights outside of layers.
func (p *passes) gradSumsOf(layer int) (all []exchange) {
	for i, b := range p.grad.part.places {
		if b.Layer == layer {
			all = append(all, exchange{sumGrads, i})
		}
	}
	return all
}

// passSeries is a series of passes that all ranks make together.
type passSeries struct {
	model    *model.Model
	micro    [][]*Sequence                 // this rank's micro-batches
	n        int                           // number of passes: as many as the rank with the most micro-batches needs
	backward bool                          // each pass has a backward pass
	failed   error                         // why this rank cannot run its passes; nil: it can
	run      func(micro []*Sequence) error // runs a pass of this rank; nil if it has no micro-batches
}

// run runs the passes of a series. A rank without a micro-batch for a pass takes part in its exchanges with zeros. A rank that has
// failed takes part with any values, since no update will follow.
func (p *passes) run(ctx context.Context, series passSeries) error {
	failed := series.failed
	for i := range series.n {
		p.ahead = p.exchangesOf(series.model, series.backward)
		if i < len(series.micro) && failed == nil {
			failed = series.run(series.micro[i])
		}
		expertErr, err := p.exchangeRest(ctx, series.model)
		failed = cmp.Or(failed, expertErr)
		if err != nil {
			if failed != nil && !isRefusal(failed) {
				return failed // the cause, if it is known
			}
			return err
		}
		p.passed()
	}
	return failed
}

// passed counts a pass.
func (p *passes) passed() {
	if p.done++; p.watch != nil {
		p.watch(p.done, p.total)
	}
}

// exchangeRest makes the remaining exchanges of the pass over m, without rows of this rank. It continues if this rank's
// experts fail on other ranks' rows, and returns that error as expertErr.
func (p *passes) exchangeRest(ctx context.Context, m *model.Model) (expertErr, err error) {
	if len(p.ahead) == 0 {
		return nil, nil
	}
	err = p.group.run(ctx, m.Device, func(s *torch.Scope) (err error) {
		for len(p.ahead) > 0 && err == nil {
			s.Training(func() {
				s.Scoped(func() { _, err = p.exchangeNext(ctx, s, m, nil) })
			})
			if errors.As(err, new(failedExperts)) {
				expertErr, err = cmp.Or(expertErr, err), nil
			}
		}
		return err
	})
	return expertErr, err
}

// exchangeNext makes the next exchange of the pass over m. For dispatched rows it returns the results.
func (p *passes) exchangeNext(ctx context.Context, s *torch.Scope, m *model.Model, rows *model.RoutedRows) (back []*torch.Tensor, err error) {
	x := p.ahead[0]
	if rows == nil && (x.kind == dispatchRows || x.kind == dispatchGrads) {
		none := m.NoRoutedRows(s, x.at, x.kind == dispatchGrads)
		rows = &none
	}
	p.ahead = p.ahead[1:]
	switch x.kind {
	case gatherStart:
		err = m.Gather(x.at, func(block *torch.Tensor) error { return p.group.StartAllGather(ctx, block) })
	case gatherFinish:
		err = m.EachBlock(x.at, func(_ ranks.Placement, block *torch.Tensor) error { return p.group.FinishAllGather(ctx, block) })
	case dispatchRows, dispatchGrads:
		back, err = p.dispatch(ctx, s, m, *rows)
	case sumGrads:
		err = p.grad.sumBlock(ctx, p.division, p.grad.part.places[x.at])
	}
	return back, err
}

// layers returns hooks that make the exchanges of a pass over m when it reaches a layer.
func (p *passes) layers(ctx context.Context, s *torch.Scope, m *model.Model) model.Layers {
	return model.Layers{
		Before: func(int) (err error) {
			for computed := false; !computed && len(p.ahead) > 0 && err == nil; {
				computed = p.ahead[0].kind == computeLayer
				_, err = p.exchangeNext(ctx, s, m, nil)
			}
			return err
		},
		After: func(layer int) (err error) {
			for len(p.ahead) > 0 && p.ahead[0].kind == sumGrads && p.grad.part.places[p.ahead[0].at].Layer == layer && err == nil {
				_, err = p.exchangeNext(ctx, s, m, nil)
			}
			return err
		},
		Dispatch: func(rows model.RoutedRows) ([]*torch.Tensor, error) { return p.exchangeNext(ctx, s, m, &rows) },
	}
}

// hidden runs the forward pass of one micro-batch.
func (p *passes) hidden(ctx context.Context, s *torch.Scope, m *model.Model, in model.Packed) (*torch.Tensor, error) {
	if m.Gathered() {
		return m.ForwardByLayer(s, in, p.layers(ctx, s, m))
	}
	return m.Forward(s, in), nil
}

// forwardBackward accumulates the gradient of one micro-batch.
func (p *passes) forwardBackward(ctx context.Context, s *torch.Scope, in model.Packed, loss model.LossFunc) error {
	if p.checkpointed {
		return p.model.ForwardBackwardCheckpointed(s, in, loss, p.layers(ctx, s, p.model))
	}
	p.model.ForwardBackward(s, in, loss)
	return nil
}
