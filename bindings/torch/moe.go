package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// ExpertOrder is an order of T·k rows, one for each expert that a token chose. Rows are sorted by expert, and then by token.
type ExpertOrder struct {
	First  *Tensor // int32 [E+1]: expert e has the rows First[e] to First[e+1]-1
	Source *Tensor // int32 [T·k]: for each row, token·k + the number of its choice
	Place  *Tensor // int32 [T·k]: for each token·k + choice, its row
}

// SortByExpert returns the order for the tokens' chosen experts, int32 [T, k]. experts is the number of experts, E.
func SortByExpert(chosen *Tensor, experts int) ExpertOrder {
	s := chosen.scopeFor("sort by expert")
	o := ExpertOrder{s.Empty(Int32, int64(experts)+1), s.Empty(Int32, chosen.Numel()), s.Empty(Int32, chosen.Numel())}
	must("sort by expert", C.mgt_by_expert_(s.dev.native, chosen.handle, o.First.handle, o.Source.handle, o.Place.handle), chosen)
	return o
}

// Counts returns the number of rows of each expert. On a GPU it waits for the result.
func (o ExpertOrder) Counts() []int {
	first := make([]int32, o.First.Size(0))
	o.First.Int32s(first)
	counts := make([]int, len(first)-1)
	for e := range counts {
		counts[e] = int(first[e+1] - first[e])
	}
	return counts
}

// Rows returns the rows of x [T, H], one for each choice, in this order: [T·k, H], without a gradient.
func (o ExpertOrder) Rows(x *Tensor) *Tensor {
	s := x.scopeFor("rows by expert", o.Source)
	return s.take("rows by expert", C.mgt_expert_rows(s.dev.native, x.handle, o.Source.handle), x, o.Source)
}

// Sums returns the sum of each token's rows [T·k, H], multiplied by weight, float32 [T, k],
// unless that is nil. The result is [T, H], without a gradient.
func (o ExpertOrder) Sums(rows *Tensor, tokens int64, weight *Tensor) *Tensor {
	s := rows.scopeFor("sums by token", o.Place)
	return s.take("sums by token", C.mgt_expert_sums(s.dev.native, rows.handle, o.Place.handle, C.int64_t(tokens), s.optional("sums by token", weight)),
		rows, o.Place, weight)
}

// Routing holds Route's options for a mixture of experts: T tokens, each with k of E experts.
type Routing struct {
	PerToken  int     // k
	Normalise bool    // weights are divided by their sum
	Given     *Tensor // int32 [T, k], experts to use in place of the likeliest; a row that begins with -1 chooses; nil: all choose
	Chosen    *Tensor // int32 [T, k], written: the experts of each token; nil: Route makes it
	Differs   *Tensor // int32 [T], written: 1 if the given experts are not the likeliest; may be nil
	Prob      *Tensor // float32 [E], written: the mean of softmax(logits) over the tokens; may be nil

	// Balance is the coefficient of a loss E·Σ load[e]·Prob[e]. The backward pass adds its gradient to the logits' gradient.
	// load[e] is the share of expert e in Chosen, a constant. 0: no such loss.
	Balance float64
}

// Route chooses for each token the k experts with the largest logits [T, E], float32 (of equal logits the lower
// number), or uses the given experts. It returns them, int32 [T, k], with their weights, float32 [T, k]: softmax
// over all E experts. The choice has no gradient. The bits of a row depend only on that row of the logits.
func Route(logits *Tensor, r Routing) (chosen, weight *Tensor) {
	s := logits.scopeFor("route")
	chosen = r.Chosen
	if chosen == nil {
		chosen = s.Empty(Int32, logits.Size(0), int64(r.PerToken))
	}
	optional := func(t *Tensor) unsafe.Pointer { return s.optional("route", t) }
	return chosen, s.take("route", C.mgt_route(s.dev.native, logits.handle, optional(r.Given), optional(chosen), optional(r.Differs), optional(r.Prob),
		cbool(r.Normalise), C.double(r.Balance)), logits, r.Given, chosen)
}

// SigmoidWeights returns the weights, float32 [T, k], of chosen experts, int32 [T, k]. They are the
// sigmoids of the experts' logits, which are float32 [T, E]. If normalise is set, they are divided
// by their sum + 1e-6. They are multiplied by scale. With grad mode off, on a CPU, the bits of a
// row depend only on that row. The definition is that of Lfm2MoeTopKRouter in transformers.
func SigmoidWeights(logits, chosen *Tensor, normalise bool, scale float64) *Tensor {
	s := logits.scopeFor("sigmoid weights", chosen)
	return s.take("sigmoid weights", C.mgt_sigmoid_weights(s.dev.native, logits.handle, chosen.handle, cbool(normalise), C.double(scale)), logits, chosen)
}

// FewExpertRows is the largest number of experts' rows, over all tokens, that Experts processes on any GPU
// without waiting for the counts. With more rows it cannot be captured, unless ExpertsTogether returns true.
const FewExpertRows = C.MGT_FEW_EXPERT_ROWS

// ExpertsTogether reports whether Experts multiplies any number of rows without waiting for their counts. This is so on GPUs of compute
// capability 9 or 10, in BFloat16, if hidden and ffn (H and F of the experts) are multiples of 8.
func (s *Scope) ExpertsTogether(dt DType, hidden, ffn int) bool {
	s.current("experts together")
	return C.mgt_experts_together(s.dev.native, C.int(dt), C.int64_t(hidden), C.int64_t(ffn)) != 0
}

// MLPs are the gated MLPs of E experts with H inputs and F gates each.
type MLPs struct {
	GateUp, Down         *Tensor // [E*2F, H]: expert e has 2F rows from 2F·e on, gates first; [E*H, F]: expert e has H rows from H·e on
	GateUpBias, DownBias *Tensor // [E*2F] and [E*H]; nil: none
	Gates                Gates
}

// Gates is the gated activation of experts.
type Gates int

// Gated activations.
const (
	SwiGLUGates  Gates = C.MGRPO_SWIGLU
	ClampedGates Gates = C.MGRPO_CLAMPED_GLU // see ClampedGLU
	GeGLUGates   Gates = C.MGRPO_GEGLU
)

// Experts returns Σ_j weight[t, j] · MLP of expert chosen[t, j] at x[t], [T, H]. x is [T, H]; chosen is int32 and
// weight float32, both [T, k]. Experts without tokens are not read. With grad mode off, on a CPU in float32, the
// bits of a row of the result depend only on that row of x, chosen and weight. GateUp and Down may then be bfloat16.
func Experts(x, chosen, weight *Tensor, of MLPs) *Tensor {
	s := x.scopeFor("experts", chosen, weight, of.GateUp, of.Down)
	return s.take("experts", C.mgt_experts(s.dev.native, x.handle, chosen.handle, weight.handle, of.GateUp.handle, of.Down.handle,
		s.optional("experts", of.GateUpBias), s.optional("experts", of.DownBias), C.int(of.Gates)), x, chosen, weight, of.GateUp, of.Down, of.GateUpBias,
		of.DownBias)
}
