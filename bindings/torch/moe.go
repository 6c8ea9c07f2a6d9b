package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Routing says how Route treats the tokens of a mixture of experts: T tokens, k of E experts each.
type Routing struct {
	PerToken  int     // k
	Normalise bool    // weights are divided by their sum
	Given     *Tensor // int32 [T, k], experts to take in place of the likeliest; -1 first in a row that chooses; nil: all do
	Chosen    *Tensor // int32 [T, k], written: the experts of each token; nil: Route makes it
	Differs   *Tensor // int32 [T], written: 1 where the given experts are not the likeliest ones; may be nil
	Prob      *Tensor // float32 [E], written: the mean of softmax(logits) over the tokens; may be nil

	// Balance is the coefficient of a loss E·Σ load[e]·Prob[e], whose gradient the backward pass adds to that of the
	// logits; load[e] is the share of expert e in Chosen, a constant. 0: none.
	Balance float64
}

// Route chooses the k experts of the largest logits [T, E], float32, for each token, the lower number of equal ones, or
// takes those given, and returns them, int32 [T, k], with their weights, float32 [T, k]: softmax over all E experts, without a
// gradient of the choice. A row depends on that row of the logits alone, to the bit.
func Route(logits *Tensor, r Routing) (chosen, weight *Tensor) {
	s := logits.scopeFor("route")
	chosen = r.Chosen
	if chosen == nil {
		chosen = s.Empty(Int32, logits.Size(0), int64(r.PerToken))
	}
	optional := func(t *Tensor) unsafe.Pointer {
		if t == nil {
			return nil
		}
		t.check("route", s)
		return t.handle
	}
	return chosen, s.take("route", C.mgt_route(s.dev.native, logits.handle, optional(r.Given), optional(chosen), optional(r.Differs), optional(r.Prob),
		cbool(r.Normalise), C.double(r.Balance)), logits, r.Given, chosen)
}

// FewExpertRows is how many experts' rows, those of all tokens, Experts takes on a GPU without a wait for their numbers. With more it cannot
// be recorded.
const FewExpertRows = C.MGT_FEW_EXPERT_ROWS

// Experts returns Σ_j weight[t, j] · SwiGLU-MLP of expert chosen[t, j] at x[t], [T, H]: x [T, H]; chosen int32 and weight float32
// [T, k]; of expert e gateUp [E*2F, H] holds the rows from 2F·e on, gates first, and down [E*H, F] those from H·e on.
// Experts that no token chose are not read. With grad mode off, on CPU in float32, a row of the result depends on that row of x,
// chosen and weight alone, to the bit; gateUp and down may then be bfloat16.
func Experts(x, chosen, weight, gateUp, down *Tensor) *Tensor {
	s := x.scopeFor("experts", chosen, weight, gateUp, down)
	return s.take("experts", C.mgt_experts(s.dev.native, x.handle, chosen.handle, weight.handle, gateUp.handle, down.handle), x, chosen, weight, gateUp, down)
}
