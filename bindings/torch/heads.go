package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Heads says what becomes of the product of a layer's queries, keys and values before attention. Row r of a product
// [T, (Heads + 2 KVHeads) hd] has heads of queries, of keys and of values. Those of queries and keys are normalised, and then turned
// by their position: elements i and i + R/2 of a head are the plane that turns by the angle whose cosine and sine are Cos[Pos[r], i]
// and Sin[Pos[r], i]; elements from R on stay. On a GPU a position that is not below P gives NaN instead of an error.
type Heads struct {
	Heads, KVHeads int     // the first is a multiple of the second
	QNorm, KNorm   *Tensor // weights as RMSNorm has them, of the product's dtype, of each head [hd] or of all heads together [Heads hd] and [KVHeads hd]; nil: no norm
	Offset, Eps    float64
	Cos, Sin       *Tensor // float32 [P, R/2] with R at most hd; nil: nothing turns
	Pos            *Tensor // int32 [T]

	NormsLast bool    // norms come after the turn
	Order     *Tensor // int32 [(Heads + 2 KVHeads) hd]: columns of the product in the order in which they are used; nil: as they are
	Growth    *Tensor // float32 [P]: queries at position p are multiplied by Growth[p] at the end; nil: they are not
}

// native is h for C, with its tensors checked.
func (h Heads) native(op string, s *Scope) C.mgt_heads {
	of := func(t *Tensor) unsafe.Pointer {
		if t == nil {
			return nil
		}
		t.check(op, s)
		return t.handle
	}
	return C.mgt_heads{heads: C.int64_t(h.Heads), kv_heads: C.int64_t(h.KVHeads), q_norm: of(h.QNorm), k_norm: of(h.KNorm),
		offset: C.double(h.Offset), eps: C.double(h.Eps), cos: of(h.Cos), sin: of(h.Sin), pos: of(h.Pos)}
}

// Split returns the heads of a product: q [T, Heads, hd], k and v [T, KVHeads, hd]. No gradient flows to Cos and Sin.
func (h Heads) Split(qkv *Tensor) (q, k, v *Tensor) {
	qkv = h.ordered(qkv)
	if !h.NormsLast || h.QNorm == nil {
		q, k, v = h.split(qkv)
		return h.grown(q), k, v
	}
	turned := h
	turned.QNorm, turned.KNorm = nil, nil
	q, k, v = turned.split(qkv)
	return h.grown(RMSNorm(q, h.QNorm, h.Offset, h.Eps)), RMSNorm(k, h.KNorm, h.Offset, h.Eps), v
}

// ordered puts the columns of the product in Order.
func (h Heads) ordered(qkv *Tensor) *Tensor {
	if h.Order == nil {
		return qkv
	}
	return qkv.IndexSelect(1, h.Order)
}

// grown multiplies queries by Growth, in their dtype.
func (h Heads) grown(q *Tensor) *Tensor {
	if h.Growth == nil {
		return q
	}
	return q.Mul(h.Growth.IndexSelect(0, h.Pos).View(-1, 1, 1).To(q.DType()))
}

// split does the work of Split without Order and Growth, with norms before the turn.
func (h Heads) split(qkv *Tensor) (q, k, v *Tensor) {
	const op = "heads"
	s := qkv.scopeFor(op, h.Pos)
	r := C.mgt_split_heads(s.dev.native, qkv.handle, h.native(op, s))
	must(op, r.error, qkv, h.QNorm, h.KNorm, h.Cos, h.Sin, h.Pos)
	return s.take(op, r.q), s.take(op, r.k), s.take(op, r.v)
}

// Cache is Split without gradients, and makes the keys and values of row r position Pos[r] of sequence[r] in caches in blocks,
// [N, KVHeads, B, hd], B a power of two: position p is place p % B of the block that table[sequence[r], p / B] names. table is int32
// [S, W], sequence is int32 [T]. Of rows that name the same place the last one stays. On a GPU a row that names a place outside of
// the cache is not written and is no error.
func (h Heads) Cache(qkv, kCache, vCache, table, sequence *Tensor) (q *Tensor) {
	if !h.NormsLast || h.QNorm == nil {
		return h.grown(h.cache(h.ordered(qkv), kCache, vCache, table, sequence))
	}
	q, k, v := h.Split(qkv)
	made := qkv.scopeFor("heads to the cache").Empty(qkv.DType(), qkv.Shape()...)
	at := int64(0)
	for _, part := range []*Tensor{q, k, v} {
		width := part.Size(1) * part.Size(2)
		made.Narrow(1, at, width).CopyFrom(part.View(-1, width))
		at += width
	}
	return Heads{Heads: h.Heads, KVHeads: h.KVHeads, Pos: h.Pos}.cache(made, kCache, vCache, table, sequence)
}

// cache does the work of Cache without Order and Growth, with norms before the turn.
func (h Heads) cache(qkv, kCache, vCache, table, sequence *Tensor) (q *Tensor) {
	const op = "heads to the cache"
	s := qkv.scopeFor(op, kCache, vCache, table, sequence, h.Pos)
	return s.take(op, C.mgt_cache_heads(s.dev.native, qkv.handle, h.native(op, s), kCache.handle, vCache.handle, table.handle, sequence.handle),
		qkv, h.QNorm, h.KNorm, h.Cos, h.Sin, h.Pos, kCache, vCache, table, sequence)
}
