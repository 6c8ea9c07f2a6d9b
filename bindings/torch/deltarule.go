package torch

// #include "mgrpo_torch.h"
import "C"

// DeltaRule is the gated delta rule of Qwen3.5 (Yang et al. 2024, arXiv 2412.06464), with queries and keys
// of length 1 as in transformers. A row of x [T, 2·KeyHeads·KeyDim + ValueHeads·ValueDim] holds the heads
// of queries, keys and values. A row of ba [T, 2·ValueHeads] holds the logits of the step sizes, then the
// inputs of the decays. The result is [T, ValueHeads·ValueDim]. mgrpo/delta_rule.h has the equations.
type DeltaRule struct {
	KeyHeads, ValueHeads, KeyDim, ValueDim int     // ValueHeads is a multiple of KeyHeads; dimensions are 1 to 256
	ALog, DtBias                           *Tensor // float32 [ValueHeads]
}

// Pieces describes how packed rows are divided for DeltaRule.Packed.
type Pieces struct{ host, device *Tensor }

// PiecesOf divides segments, with cu and follows as for AttentionPacked. On a GPU it waits for both.
func PiecesOf(cu, follows *Tensor) Pieces {
	const op = "pieces"
	s := cu.scopeFor(op)
	r := C.mgt_pieces(s.dev.native, cu.handle, s.optional(op, follows))
	must(op, r.error, cu, follows)
	return Pieces{s.take(op, r.first), s.take(op, r.second)}
}

// Packed applies the rule to segments. No row reads a row of another sequence. x, ba, ALog and DtBias
// get gradients. On a CPU in float32 the bits of a row depend only on the rows of its sequence up to
// itself. States at the ends of pieces are kept for the backward pass, 1/64 of the states of all rows.
func (d DeltaRule) Packed(x, ba *Tensor, pieces Pieces) *Tensor {
	const op = "delta rule"
	s := x.scopeFor(op, ba, d.ALog, d.DtBias, pieces.host, pieces.device)
	return s.take(op, C.mgt_delta_rule_packed(s.dev.native, x.handle, ba.handle, d.native(), pieces.host.handle, pieces.device.handle), x, ba, d.ALog, d.DtBias)
}

// Advance applies the rule to rows of sequences with states [slots, ValueHeads, KeyDim, ValueDim] in float32, and
// advances the states. Row r is position pos[r] of the sequence with state slot[r], both int32 [T]. The rows of a
// sequence follow each other in order, after the rows that its state includes; position 0 begins a sequence. No
// gradient is recorded. In float32 and on a GPU the result has the bits of Packed, for any division of a sequence's
// rows into calls. On a GPU rows whose slot is outside of the states give NaN.
func (d DeltaRule) Advance(x, ba, states, slot, pos *Tensor) *Tensor {
	const op = "delta rule of states"
	s := x.scopeFor(op, ba, d.ALog, d.DtBias, states, slot, pos)
	return s.take(op, C.mgt_delta_rule_states(s.dev.native, x.handle, ba.handle, d.native(), states.handle, slot.handle, pos.handle), x, ba, states, slot, pos)
}

func (d DeltaRule) native() C.mgt_delta_rule {
	return C.mgt_delta_rule{key_heads: C.int64_t(d.KeyHeads), value_heads: C.int64_t(d.ValueHeads), key_dim: C.int64_t(d.KeyDim),
		value_dim: C.int64_t(d.ValueDim), a_log: d.ALog.handle, dt_bias: d.DtBias.handle}
}
