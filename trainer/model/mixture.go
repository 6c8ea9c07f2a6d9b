package model

import (
	"math"

	"github.com/mgrpo/mgrpo/bindings/torch"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

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

	sigmoid    *arch.SigmoidRouter // nil: weights are softmaxes
	choiceBias *torch.Tensor       // [E], of sigmoid.Bias; nil: none

	parallel *parallelWeights // nil: the mixture replaces the dense MLP

	hasShared bool
	// An expert for all tokens, and a gate: the sigmoid of the gate multiplies the expert's output.
	sharedGateUp, sharedDown, sharedGate linear
}

// parallelWeights holds the weights that a family adds for a mixture of experts next to a dense MLP.
// These are norms [Hidden] of the experts' inputs, of their sum and of the dense MLP's result. There are
// also the weight [Hidden] of the norm of the router's inputs, and factors [E] of the experts' weights.
type parallelWeights struct{ input, output, dense, router, scales *torch.Tensor }

// addParallel returns the sum of the experts' output for x [T, Hidden] and the dense MLP's, each after its norm.
func (l *layer) addParallel(x, dense *torch.Tensor, pass Pass) *torch.Tensor {
	m := l.mixture
	chosen, weight := m.route(m.parallel.routerInput(l.cfg, x), pass.Routes)
	out := torch.Experts(norm(l.cfg, x, m.parallel.input), chosen, weight, m.experts)
	return norm(l.cfg, dense, m.parallel.dense).Add(norm(l.cfg, out, m.parallel.output))
}

// routerInput returns the float32 input of the router for x.
func (b *parallelWeights) routerInput(c *arch.Config, x *torch.Tensor) *torch.Tensor {
	return torch.RMSNorm(x.To(torch.Float32), b.router.To(torch.Float32), 0, c.RMSEps).Scale(1 / math.Sqrt(float64(c.Hidden)))
}

// scaled multiplies the weights of chosen experts, both [T, k], by the experts' factors.
func (b *parallelWeights) scaled(chosen, weight *torch.Tensor) *torch.Tensor {
	factors := torch.Embedding(b.scales.To(torch.Float32).View(-1, 1), chosen.View(-1))
	return weight.Mul(factors.View(weight.Shape()...))
}

func gatesOf(c *arch.Config) torch.Gates {
	switch {
	case c.Features().ClampedGates:
		return torch.ClampedGates
	case c.Features().GELU:
		return torch.GeGLUGates
	}
	return torch.SwiGLUGates
}

// forward returns the mixture's output for h [T, Hidden].
func (m *mixture) forward(h *torch.Tensor, pass Pass) *torch.Tensor {
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
	out := m.sharedDown.apply(torch.SwiGLU(m.sharedGateUp.apply(h, pass.Adapters)), pass.Adapters)
	return out.Mul(m.sharedGate.apply(h, pass.Adapters).Sigmoid())
}

// route chooses the experts of each row of h, int32 [T, k], and their weights.
func (m *mixture) route(h *torch.Tensor, routes *Routes) (chosen, weight *torch.Tensor) {
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
	logits := m.logits(h)
	if m.sigmoid != nil {
		chosen, _ = torch.Route(m.scores(logits), r)
		return chosen, torch.SigmoidWeights(logits, chosen, m.normalise, m.sigmoid.Scale)
	}
	chosen, weight = torch.Route(logits, r)
	if m.parallel != nil {
		weight = m.parallel.scaled(chosen, weight)
	}
	return chosen, weight
}

// scores returns the experts' scores, float32 [T, E], without a gradient: sigmoids, plus a bias. The experts with the largest
// scores are chosen.
func (m *mixture) scores(logits *torch.Tensor) *torch.Tensor {
	scores := logits.Detach().Sigmoid()
	if m.choiceBias != nil {
		scores = scores.Add(m.choiceBias.Detach().To(torch.Float32))
	}
	return scores
}

// logits returns the router's logits of each row of h, float32 [T, E].
func (m *mixture) logits(h *torch.Tensor) *torch.Tensor {
	bias := m.routerBias
	if bias != nil {
		bias = bias.To(torch.Float32)
	}
	return torch.Linear(h.To(torch.Float32), m.router.To(torch.Float32), bias)
}
