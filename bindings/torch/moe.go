package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// ByExpert is the order of T·k rows, one for each expert that a token chose, in which those of the lowest expert come first, and of one
// expert in the order of the tokens.
type ByExpert struct {
	First  *Tensor // int32 [E+1]: the rows of expert e are those from First[e] up to First[e+1]
	Source *Tensor // int32 [T·k]: of each row, token·k + which of its choices
	Place  *Tensor // int32 [T·k]: the row of each of these
}

// SortByExpert is the order of what tokens chose, int32 [T, k], of so many experts.
func SortByExpert(chosen *Tensor, experts int) ByExpert {
	s := chosen.scopeFor("sort by expert")
	o := ByExpert{s.Empty(Int32, int64(experts)+1), s.Empty(Int32, chosen.Numel()), s.Empty(Int32, chosen.Numel())}
	must("sort by expert", C.mgt_by_expert_(s.dev.native, chosen.handle, o.First.handle, o.Source.handle, o.Place.handle), chosen)
	return o
}

// Counts are how many rows each expert has. Of a GPU it waits for them.
func (o ByExpert) Counts() []int {
	first := make([]int32, o.First.Size(0))
	o.First.Int32s(first)
	counts := make([]int, len(first)-1)
	for e := range counts {
		counts[e] = int(first[e+1] - first[e])
	}
	return counts
}

// Rows are x's [T, H], each once for each of its choices, [T·k, H], without a gradient.
func (o ByExpert) Rows(x *Tensor) *Tensor {
	s := x.scopeFor("rows by expert", o.Source)
	return s.take("rows by expert", C.mgt_expert_rows(s.dev.native, x.handle, o.Source.handle), x, o.Source)
}

// Sums adds up the rows [T·k, H] of each of T tokens, times weight, float32 [T, k], if that is not nil, without a gradient.
func (o ByExpert) Sums(rows *Tensor, tokens int64, weight *Tensor) *Tensor {
	s := rows.scopeFor("sums by token", o.Place)
	return s.take("sums by token", C.mgt_expert_sums(s.dev.native, rows.handle, o.Place.handle, C.int64_t(tokens), s.optional("sums by token", weight)), rows, o.Place, weight)
}

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
	optional := func(t *Tensor) unsafe.Pointer { return s.optional("route", t) }
	return chosen, s.take("route", C.mgt_route(s.dev.native, logits.handle, optional(r.Given), optional(chosen), optional(r.Differs), optional(r.Prob),
		cbool(r.Normalise), C.double(r.Balance)), logits, r.Given, chosen)
}

// FewExpertRows is how many experts' rows, those of all tokens, Experts takes on any GPU without a wait for their numbers. With more it cannot
// be recorded, unless ExpertsTogether says so.
const FewExpertRows = C.MGT_FEW_EXPERT_ROWS

// ExpertsTogether reports whether Experts multiplies any number of rows without a wait for their numbers: on GPUs whose compute capability is
// 9 or 10, in BFloat16, where hidden and ffn, H and F of the experts, are multiples of 8.
func (s *Scope) ExpertsTogether(dt DType, hidden, ffn int) bool {
	s.current("experts together")
	return C.mgt_experts_together(s.dev.native, C.int(dt), C.int64_t(hidden), C.int64_t(ffn)) != 0
}

// MLPs are the gated MLPs of E experts with H inputs and F gates each.
type MLPs struct {
	GateUp, Down         *Tensor // [E*2F, H], of expert e the rows from 2F·e on, gates first; [E*H, F], the rows from H·e on
	GateUpBias, DownBias *Tensor // [E*2F] and [E*H]; nil: none
	Clamped              bool    // ClampedGLU in place of SwiGLU
}

// Experts returns Σ_j weight[t, j] · MLP of expert chosen[t, j] at x[t], [T, H]: x [T, H]; chosen int32 and weight float32 [T, k]. Experts that no token chose are not read. With grad mode off, on CPU in float32, a row of the result depends on that row of x,
// chosen and weight alone, to the bit; GateUp and Down may then be bfloat16.
func Experts(x, chosen, weight *Tensor, of MLPs) *Tensor {
	s := x.scopeFor("experts", chosen, weight, of.GateUp, of.Down)
	return s.take("experts", C.mgt_experts(s.dev.native, x.handle, chosen.handle, weight.handle, of.GateUp.handle, of.Down.handle,
		s.optional("experts", of.GateUpBias), s.optional("experts", of.DownBias), cbool(of.Clamped)), x, chosen, weight, of.GateUp, of.Down, of.GateUpBias, of.DownBias)
}
