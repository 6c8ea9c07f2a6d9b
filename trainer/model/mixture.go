package model

import "github.com/mgrpo/mgrpo/bindings/torch"

// Routes holds the experts of the T rows of a forward pass, for each layer that has experts (L layers, k of E experts).
// With the zero value or nil every row chooses its own experts. Fields that are nil are not used.
type Routes struct {
	Given   *torch.Tensor // int32 [L, T, k]: experts that replace the row's own choice; a row whose first value is -1 chooses itself
	Chosen  *torch.Tensor // int32 [L, T, k], written
	Differs *torch.Tensor // int32 [L, T], written: 1 if Given differs from the row's own choice
	Prob    *torch.Tensor // float32 [L, E], written: the router's mean probabilities
	Balance float64       // coefficient of the load-balancing loss of one layer; see torch.Routing
}

// mixture is the router and the experts of a layer. The router is read in float32 if a float32 copy exists.
type mixture struct {
	index              int // counted among the layers that have experts
	router, routerBias *torch.Tensor
	experts            torch.MLPs
	perToken           int
	normalise          bool

	hasShared                            bool
	sharedGateUp, sharedDown, sharedGate linear // an expert for all tokens, and a gate: the sigmoid of the gate multiplies the expert's output
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
