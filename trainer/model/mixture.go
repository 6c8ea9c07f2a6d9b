package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// Routes are the experts through which the T rows of a forward pass go, of each layer that has experts (L layers, k of E
// experts). The zero value and nil let every row choose. Fields that are nil are not used.
type Routes struct {
	Given   *torch.Tensor // int32 [L, T, k]: what a row takes in place of its own choice; -1 first in one that chooses
	Chosen  *torch.Tensor // int32 [L, T, k], written
	Differs *torch.Tensor // int32 [L, T], written: 1 where Given is not the row's own choice
	Prob    *torch.Tensor // float32 [L, E], written: the router's mean probabilities
	Balance float64       // coefficient of the load-balancing loss of one layer; see torch.Routing
}

// mixture is the router and the experts of a layer. Routers are read in float32 where there is a copy in it.
type mixture struct {
	index              int // among the layers that have experts
	router, routerBias *torch.Tensor
	experts            torch.MLPs
	perToken           int
	normalise          bool

	hasShared                            bool
	sharedGateUp, sharedDown, sharedGate linear // an expert for all tokens, and the gate whose sigmoid multiplies its output
}

// of returns the mixture's output for h [T, Hidden].
func (m *mixture) of(h *torch.Tensor, pass Pass) *torch.Tensor {
	chosen, weight := m.route(h, pass.Routes)
	out := torch.Experts(h, chosen, weight, m.experts)
	if shared := m.shared(h, pass); shared != nil {
		return out.Add(shared)
	}
	return out
}

// shared returns the output of the expert for all tokens, or nil for a family without one.
func (m *mixture) shared(h *torch.Tensor, pass Pass) *torch.Tensor {
	if !m.hasShared {
		return nil
	}
	out := m.sharedDown.of(torch.SwiGLU(m.sharedGateUp.of(h, pass.Adapters)), pass.Adapters)
	return out.Mul(m.sharedGate.of(h, pass.Adapters).Sigmoid())
}

// route chooses the experts of each row of h, int32 [T, k], and their weights. The router's logits are float32, whatever type h has.
func (m *mixture) route(h *torch.Tensor, routes *Routes) (chosen, weight *torch.Tensor) {
	bias := m.routerBias
	if bias != nil {
		bias = bias.To(torch.Float32)
	}
	logits := torch.Linear(h.To(torch.Float32), m.router.To(torch.Float32), bias)
	r := torch.Routing{PerToken: m.perToken, Normalise: m.normalise}
	if routes != nil {
		at := func(t *torch.Tensor) *torch.Tensor {
			if t == nil {
				return nil
			}
			return t.Select(0, int64(m.index))
		}
		r.Given, r.Chosen, r.Differs, r.Prob, r.Balance = at(routes.Given), at(routes.Chosen), at(routes.Differs), at(routes.Prob), routes.Balance
	}
	return torch.Route(logits, r)
}
