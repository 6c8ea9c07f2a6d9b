package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Linear returns x w^T + b: x [..., K], w [N, K], b [N] or nil, result [..., N]. With grad mode off, on CPU
// in float32, the bits of a row of the result depend only on that row of x, for any batch. A quantised w
// gets no gradient, and its b must be frozen, too.
func Linear(x *Tensor, w Matrix, b *Tensor) *Tensor {
	s := x.scopeFor("linear", w.tensors()...)
	bias := s.optional("linear", b)
	if q, ok := w.(*Quantised); ok {
		return q.linear(s, x, bias)
	}
	t := w.(*Tensor)
	return s.take("linear", C.mgt_linear(s.dev.native, x.handle, t.handle, bias), x, t, b)
}

// CappedHead is a head [V, D] whose logits z become Cap·tanh(z/Cap) (Gemma 2). Cap is positive.
// Logits, HeadLogProb and LinearPolicyLoss take it.
type CappedHead struct {
	Matrix
	Cap float64
}

// Logits returns x w^T of a head w [V, D] for x [T, D], like Linear. But on a GPU the result is float32 if x is BFloat16 and no gradient is
// recorded, so that HeadLogProb has the same logits. The logits of a CappedHead record no gradient.
func Logits(x *Tensor, w Matrix) *Tensor {
	t, kind, limit := head("logits", w)
	s := x.scopeFor("logits", t)
	return s.take("logits", C.mgt_logits(s.dev.native, x.handle, t.handle, kind, limit), x, t)
}

// Embedding returns the rows of w [V, D] with the numbers ids: [T, D]. ids is int32 [T]; int64 is allowed, too, if w is a tensor.
func Embedding(w Matrix, ids *Tensor) *Tensor {
	s := ids.scopeFor("embedding", w.tensors()...)
	if q, ok := w.(*Quantised); ok {
		return q.embedding(s, ids)
	}
	t := w.(*Tensor)
	return s.take("embedding", C.mgt_embedding(s.dev.native, t.handle, ids.handle), t, ids)
}

// RMSNorm returns x / sqrt(mean(x^2) + eps) * (offset + w) over the last dimension, D: x [..., D], w [D].
func RMSNorm(x, w *Tensor, offset, eps float64) *Tensor {
	s := x.scopeFor("rms norm", w)
	return s.take("rms norm", C.mgt_rms_norm(s.dev.native, x.handle, w.handle, C.double(offset), C.double(eps)), x, w)
}

// AddRMSNorm returns x + residual, of one shape, and RMSNorm of that sum, with the bits of RMSNorm(x.Add(residual), w,
// offset, eps). The forward and the backward pass each read and write memory once.
func AddRMSNorm(x, residual, w *Tensor, offset, eps float64) (sum, y *Tensor) {
	s := x.scopeFor("add rms norm", residual, w)
	r := C.mgt_add_rms_norm(s.dev.native, x.handle, residual.handle, w.handle, C.double(offset), C.double(eps))
	must("add rms norm", r.error, x, residual, w)
	return s.take("add rms norm", r.first), s.take("add rms norm", r.second)
}

// SwiGLU returns silu(gate) * up of gateUp [..., 2F], whose first half is gate: [..., F].
func SwiGLU(gateUp *Tensor) *Tensor { return glu("swiglu", C.MGRPO_SWIGLU, gateUp) }

// GeGLU returns SwiGLU with the tanh form of GELU in place of silu.
func GeGLU(gateUp *Tensor) *Tensor { return glu("geglu", C.MGRPO_GEGLU, gateUp) }

// ClampedGLU returns g·sigmoid(1.702 g)·(u + 1) of gateUp [..., 2F], whose first half is the
// gate: g is the gate up to 7, and u the other half within [-7, 7] (gpt-oss).
func ClampedGLU(gateUp *Tensor) *Tensor { return glu("clamped glu", C.MGRPO_CLAMPED_GLU, gateUp) }

// SigmoidGLU returns sigmoid(gate)·up of gateUp [..., 2F], whose first half is the gate (Dauphin et al. 2017).
func SigmoidGLU(gateUp *Tensor) *Tensor { return glu("sigmoid glu", C.MGRPO_SIGMOID_GLU, gateUp) }

func glu(op string, gates C.int, gateUp *Tensor) *Tensor {
	s := gateUp.scopeFor(op)
	return s.take(op, C.mgt_glu(s.dev.native, gates, gateUp.handle), gateUp)
}

// AttentionPacked returns causal attention within each of B segments laid end to end. The arguments are q [T, H, hd], k
// and v [T, KV, hd], and cu int32 [B+1], the segments' offsets from 0 to T. The result is [T, H, hd]. Query head h
// attends with head h/(H/KV) of k and v; scores are multiplied by scale. A row attends to itself and to all rows that
// the row before it attends to. The first row of segment s comes after row follows[s], with follows int32 [B] and values
// in [-1, cu[s]), so sequences with a common beginning store its rows once. -1 marks a segment that begins a sequence.
// If follows is nil, all segments do. With a window above 0 a row attends only to the last `window` of these rows. sinks
// [H] may be nil. exp(sinks[h]) is one more term of the denominator of head h's softmax. sinks gets a gradient, too.
func AttentionPacked(q, k, v, cu, follows *Tensor, scale float64, window int, sinks *Tensor) *Tensor {
	s := q.scopeFor("attention", k, v, cu)
	return s.take("attention", C.mgt_attention_packed(s.dev.native, q.handle, k.handle, v.handle, cu.handle, s.optional("attention", follows),
		s.optional("attention", sinks), C.double(scale), C.int64_t(window)), q, k, v, cu, follows, sinks)
}

// optional returns the handle of a tensor that may be nil.
func (s *Scope) optional(op string, t *Tensor) unsafe.Pointer {
	if t == nil {
		return nil
	}
	t.check(op, s)
	return t.handle
}

// AttentionCached returns attention [T, H, hd] from row r of q [T, H, hd] to the first length[r] positions of sequence[r] in caches that
// Heads.Cache has filled. With a window above 0 it is the last `window` of these positions. sequence and length are int32 [T], with lengths
// from 1 to W·B. The blocks of other positions, and their entries in the table, are not read. No gradient is recorded. AttentionPacked
// describes sinks. On a CPU in float32 the bits of a row's result depend only on that row and on its keys and values, and not on their
// blocks. On a GPU a place outside of the cache may give NaN instead of an error, because the host would have to wait for an error.
func AttentionCached(q, kCache, vCache, table, sequence, length *Tensor, scale float64, window int, sinks *Tensor) *Tensor {
	s := q.scopeFor("cached attention", kCache, vCache, table, sequence, length)
	return s.take("cached attention", C.mgt_attention_cached(s.dev.native, q.handle, kCache.handle, vCache.handle, table.handle, sequence.handle, length.handle,
		s.optional("cached attention", sinks), C.double(scale), C.int64_t(window)), q, kCache, vCache, table, sequence, length, sinks)
}

// HeadLogProb returns, for p = softmax(h w^T / tau), log p of the target and the entropy of p
// of each row, both float32 [N]. The arguments are h [N, D], w [V, D], targets int32 [N].
// Logits are computed chunk rows at a time and again in the backward pass, so the [N, V] matrix
// never exists. Gradients flow to h and w from both results, but not to a quantised w.
func HeadLogProb(h *Tensor, w Matrix, targets *Tensor, tau float64, chunk int64) (logp, entropy *Tensor) {
	t, kind, limit := head("head log prob", w)
	s := h.scopeFor("head log prob", t, targets)
	r := C.mgt_head_log_prob(s.dev.native, h.handle, t.handle, kind, targets.handle, C.double(tau), C.int64_t(chunk), limit)
	must("head log prob", r.error, h, t, targets)
	return s.take("head log prob", r.first), s.take("head log prob", r.second)
}
