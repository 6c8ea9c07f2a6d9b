package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// RoutedRows holds the rows that one rank sends to the experts of a layer, which may belong to other ranks. All ranks dispatch at
// the same time; a rank without rows dispatches NoRoutedRows.
type RoutedRows struct {
	Layer  int   // from 1 on
	Counts []int // rows for each of the layer's experts

	// Rows has tensors [rows, n], sorted by expert: hidden states, and in the backward pass also the gradients of the mixture's
	// output and the float32 weights of the experts' outputs.
	Rows []*torch.Tensor
}

// Dispatch sends rows to the ranks of their experts, and returns the results of ApplyExperts there.
type Dispatch func(rows RoutedRows) (back []*torch.Tensor, err error)

// NoRoutedRows returns the RoutedRows of a rank without rows.
func (m *Model) NoRoutedRows(s *torch.Scope, layer int, backward bool) RoutedRows {
	rows := func(dt torch.DType, n int) *torch.Tensor { return s.Empty(dt, 0, int64(n)) }
	none := RoutedRows{Layer: layer, Counts: make([]int, m.Config.Mixture.Experts), Rows: []*torch.Tensor{rows(m.Compute.DType(), m.Config.Hidden)}}
	if backward {
		none.Rows = append(none.Rows, rows(m.Compute.DType(), m.Config.Hidden), rows(torch.Float32, 1))
	}
	return none
}

// ApplyExperts applies this rank's experts of a layer to the rows that arrived. They are rows as in RoutedRows but in
// any order, with the index of each row's expert among this rank's. It returns the experts' outputs. In the backward
// pass it returns the gradients of the hidden states and of the weights, and accumulates the gradients of the experts.
func (m *Model) ApplyExperts(s *torch.Scope, layer int, rows []*torch.Tensor, experts []int32) (results []*torch.Tensor) {
	n, own := int64(len(experts)), m.Training.layers[layer-1].mixture
	if n == 0 { // always so in a rank without experts: a layer may have fewer experts than there are ranks
		return EmptyResults(rows)
	}
	chosen := s.FromInt32(experts, n, 1)
	if len(rows) == 1 {
		return []*torch.Tensor{torch.Experts(rows[0], chosen, s.Full(torch.Float32, 1, n, 1), own.experts)}
	}
	s.Grad(true, func() {
		x, weight := rows[0].Detach(), rows[2].Detach()
		x.RequireGrad(true)
		weight.RequireGrad(true)
		torch.Backward([]*torch.Tensor{torch.Experts(x, chosen, weight, own.experts)}, []*torch.Tensor{rows[1]})
		results = []*torch.Tensor{x.Grad(), weight.Grad()}
	})
	return results
}

// EmptyResults returns tensors with the shapes of ApplyExperts' results for these rows, and without meaningful values.
func EmptyResults(rows []*torch.Tensor) []*torch.Tensor {
	if len(rows) == 1 {
		return rows
	}
	return []*torch.Tensor{rows[0], rows[2]}
}

// DispatchesRows reports whether the rows of a layer, counted from 1, are sent to experts that belong to several ranks.
func (m *Model) DispatchesRows(layer int) bool {
	return m.Gathered() && layer > 0 && m.Config.Layer(layer-1).HasExperts() && m.Config.DividesExperts()
}

// untilExperts computes the part of a layer before its experts, at x. h is the input of the experts, whose weighted outputs the
// caller adds to sum. order sorts the rows by expert.
func (p *layerPass) untilExperts(i int, x *torch.Tensor) (sum, h, weight *torch.Tensor, order torch.ExpertOrder) {
	l := &p.layers[i]
	sum, h = l.attended(i, x, p.normOf(x, i), p.pass)
	if shared := l.mixture.shared(h, p.pass); shared != nil {
		sum = sum.Add(shared)
	}
	chosen, weight := l.mixture.route(h, p.pass.Routes)
	return sum, h, weight, torch.SortByExpert(chosen, p.cfg.Mixture.Experts)
}

// forwardDispatched computes a layer whose experts are divided among the ranks. No such family has a norm after the experts.
func (p *layerPass) forwardDispatched(i int, x *torch.Tensor) (y *torch.Tensor, err error) {
	p.s.Scoped(func() {
		sum, h, weight, order := p.untilExperts(i, x)
		var back []*torch.Tensor
		if back, err = p.calls.Dispatch(RoutedRows{i + 1, order.Counts(), []*torch.Tensor{order.Rows(h)}}); err == nil {
			y = p.s.Hoist(sum.Add(order.Sums(back[0], h.Size(0), weight)))
		}
	})
	return y, err
}

// backwardDispatched computes the gradient of such a layer at x from the gradient dy of its result. The experts' ranks return
// the gradients of the experts' inputs; the gradients of attention and router follow.
func (p *layerPass) backwardDispatched(i int, x, dy *torch.Tensor) (dx *torch.Tensor, err error) {
	p.s.Scoped(func() {
		p.s.Grad(true, func() {
			in := x.Detach()
			in.RequireGrad(true)
			sum, h, weight, order := p.untilExperts(i, in)
			weights := weight.Detach().View(-1, 1).IndexSelect(0, order.Source)
			var back []*torch.Tensor
			if back, err = p.calls.Dispatch(RoutedRows{i + 1, order.Counts(), []*torch.Tensor{order.Rows(h), order.Rows(dy), weights}}); err != nil {
				return
			}
			dh, dweight := order.Sums(back[0], h.Size(0), nil), back[1].IndexSelect(0, order.Place).View(weight.Shape()...)
			torch.Backward([]*torch.Tensor{sum, h, weight}, []*torch.Tensor{dy, dh, dweight})
			dx = p.s.Hoist(in.Grad())
		})
	})
	return dx, err
}
