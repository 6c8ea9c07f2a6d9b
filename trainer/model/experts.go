package model

import (
	"slices"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

// Errand is rows of one rank on their way to the experts of a layer, which may be those of other ranks. Every rank has one at the same time, if
// only with Nothing.
type Errand struct {
	Layer  int   // from 1 on
	Counts []int // rows for each of the layer's experts

	// Rows are [rows, n], those for the lowest expert first: hidden states and, on the way back, the gradients of the mixture's output and
	// the weights, float32, with which experts' outputs are added up.
	Rows []*torch.Tensor
}

// Carry takes rows to their experts' ranks, and brings back what Serve makes of them there.
type Carry func(e Errand) (back []*torch.Tensor, err error)

// Nothing is the errand of a rank without rows.
func (m *Model) Nothing(s *torch.Scope, layer int, backward bool) Errand {
	rows := func(dt torch.DType, n int) *torch.Tensor { return s.Empty(dt, 0, int64(n)) }
	e := Errand{Layer: layer, Counts: make([]int, m.Config.Mixture.Experts), Rows: []*torch.Tensor{rows(m.Compute.DType(), m.Config.Hidden)}}
	if backward {
		e.Rows = append(e.Rows, rows(m.Compute.DType(), m.Config.Hidden), rows(torch.Float32, 1))
	}
	return e
}

// Serve computes what has come to this rank's experts of a layer: rows as in Errand, in any order, and of each the number of its expert among
// them. It returns their outputs or, on the way back, the gradients of the hidden states and of the weights, and adds up those of the experts.
func (m *Model) Serve(s *torch.Scope, layer int, rows []*torch.Tensor, experts []int32) (results []*torch.Tensor) {
	n, own := int64(len(experts)), m.layers[layer-1].mixture
	if n == 0 { // as always in a rank without experts, of which there may be fewer than ranks
		return Unserved(rows)
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

// Unserved has the shapes of what Serve makes of rows.
func Unserved(rows []*torch.Tensor) []*torch.Tensor {
	if len(rows) == 1 {
		return rows
	}
	return []*torch.Tensor{rows[0], rows[2]}
}

// ownExperts are this rank's experts of a leaf.
func (m *Model) ownExperts(l arch.Leaf) *torch.Tensor {
	at := int64(0)
	mine := m.share.Within(blockOf(l, true).Run)
	if len(mine) > 0 { // there may be fewer experts than ranks
		at = mine[0].At
	}
	shape := slices.Clone(l.Shape)
	shape[0] = mine.Numel() / (l.Numel() / l.Shape[0])
	return m.Compute.Narrow(0, at, mine.Numel()).View(shape...)
}

// Carries says whether the rows of a layer, counted from 1, go to experts that ranks divide among them.
func (m *Model) Carries(layer int) bool {
	return m.Gathered() && layer > 0 && m.Config.HasExperts(layer-1)
}

// departs is a layer at x until its rows leave for their experts: sum is what the experts' outputs are added to, h their input.
func (m *Model) departs(i int, x *torch.Tensor, pass Pass) (sum, h, weight *torch.Tensor, order torch.ByExpert) {
	l := &m.layers[i]
	sum, h = l.attended(i, x, m.normOf(x, i), pass)
	if shared := l.mixture.shared(h, pass); shared != nil {
		sum = sum.Add(shared)
	}
	chosen, weight := l.mixture.route(h, pass.Routes)
	return sum, h, weight, torch.SortByExpert(chosen, m.Config.Mixture.Experts)
}

// blockAway is block of a layer whose experts are those of all ranks. No family has a norm after them.
func (m *Model) blockAway(s *torch.Scope, i int, x *torch.Tensor, pass Pass, carry Carry) (y *torch.Tensor, err error) {
	s.Scoped(func() {
		sum, h, weight, order := m.departs(i, x, pass)
		var back []*torch.Tensor
		if back, err = carry(Errand{i + 1, order.Counts(), []*torch.Tensor{order.Rows(h)}}); err == nil {
			y = s.Hoist(sum.Add(order.Sums(back[0], h.Size(0), weight)))
		}
	})
	return y, err
}

// backBlockAway is backBlock of such a layer at x, given the gradient dy of its result. The gradients of what goes to the experts come back from
// them; those of attention and router are computed after that.
func (m *Model) backBlockAway(s *torch.Scope, i int, x, dy *torch.Tensor, pass Pass, carry Carry) (dx *torch.Tensor, err error) {
	s.Scoped(func() {
		s.Grad(true, func() {
			in := x.Detach()
			in.RequireGrad(true)
			sum, h, weight, order := m.departs(i, in, pass)
			weights := weight.Detach().View(-1, 1).IndexSelect(0, order.Source)
			var back []*torch.Tensor
			if back, err = carry(Errand{i + 1, order.Counts(), []*torch.Tensor{order.Rows(h), order.Rows(dy), weights}}); err != nil {
				return
			}
			dh, dweight := order.Sums(back[0], h.Size(0), nil), back[1].IndexSelect(0, order.Place).View(weight.Shape()...)
			torch.Backward([]*torch.Tensor{sum, h, weight}, []*torch.Tensor{dy, dh, dweight})
			dx = s.Hoist(in.Grad())
		})
	})
	return dx, err
}
