package torch

// #include "mgrpo_torch.h"
import "C"

import "unsafe"

// Heads describes the step before attention, which splits a layer's product of queries, keys and values into heads. Row
// r of a product [T, (Heads + 2 KVHeads) hd] has heads of queries, of keys and of values. The heads of queries and keys
// are normalised and then rotated by their position. Elements i and i + R/2 of a head form a plane. It is rotated by
// the angle with the cosine Cos[Pos[r], i] and the sine Sin[Pos[r], i]. Elements from R on do not change. On a GPU a
// position of P or more gives NaN instead of an error.
type Heads struct {
	Heads, KVHeads int // Heads is a multiple of KVHeads
	// Weights as of RMSNorm, in the product's dtype; nil: no norm. They are [hd] for each head, or [Heads hd] and [KVHeads hd] for all
	// heads together.
	QNorm, KNorm *Tensor
	Offset, Eps  float64
	Cos, Sin     *Tensor // float32 [P, R/2] with R at most hd; nil: no rotation
	Pos          *Tensor // int32 [T]

	NormsLast bool    // norms come after the rotation
	Order     *Tensor // int32 [(Heads + 2 KVHeads) hd]: the product's columns in the order of their use, some of them twice; nil: unchanged
	VNorm     *Tensor // weight [hd] of the norm of each value head, with offset 0; nil: no norm
	Growth    *Tensor // float32 [P]: queries at position p are multiplied by Growth[p] at the end; nil: unchanged
}

// native checks h's tensors and returns h for C.
func (h Heads) native(op string, s *Scope) C.mgt_heads {
	pointer := func(t *Tensor) unsafe.Pointer { return s.optional(op, t) }
	return C.mgt_heads{heads: C.int64_t(h.Heads), kv_heads: C.int64_t(h.KVHeads), q_norm: pointer(h.QNorm), k_norm: pointer(h.KNorm),
		offset: C.double(h.Offset), eps: C.double(h.Eps), cos: pointer(h.Cos), sin: pointer(h.Sin), pos: pointer(h.Pos)}
}

// Split returns the heads of a product: q [T, Heads, hd], k and v [T, KVHeads, hd]. No gradient flows to Cos and Sin.
func (h Heads) Split(qkv *Tensor) (q, k, v *Tensor) {
	qkv = h.orderColumns(qkv)
	if !h.NormsLast || h.QNorm == nil {
		q, k, v = h.split(qkv)
		return h.scaleQueries(q), k, h.normaliseValues(v)
	}
	turned := h
	turned.QNorm, turned.KNorm = nil, nil
	q, k, v = turned.split(qkv)
	return h.scaleQueries(RMSNorm(q, h.QNorm, h.Offset, h.Eps)), RMSNorm(k, h.KNorm, h.Offset, h.Eps), h.normaliseValues(v)
}

// normaliseValues normalises values by VNorm.
func (h Heads) normaliseValues(v *Tensor) *Tensor {
	if h.VNorm == nil {
		return v
	}
	return RMSNorm(v, h.VNorm, 0, h.Eps)
}

// orderColumns returns the product with its columns in Order.
func (h Heads) orderColumns(qkv *Tensor) *Tensor {
	if h.Order == nil {
		return qkv
	}
	return qkv.IndexSelect(1, h.Order)
}

// scaleQueries returns queries multiplied by Growth, in their dtype.
func (h Heads) scaleQueries(q *Tensor) *Tensor {
	if h.Growth == nil {
		return q
	}
	return q.Mul(h.Growth.IndexSelect(0, h.Pos).View(-1, 1, 1).To(q.DType()))
}

// split does the work of Split without Order and Growth, with norms before the rotation.
func (h Heads) split(qkv *Tensor) (q, k, v *Tensor) {
	const op = "heads"
	s := qkv.scopeFor(op, h.Pos)
	r := C.mgt_split_heads(s.dev.native, qkv.handle, h.native(op, s))
	must(op, r.error, qkv, h.QNorm, h.KNorm, h.Cos, h.Sin, h.Pos)
	return s.take(op, r.q), s.take(op, r.k), s.take(op, r.v)
}

// Cache computes Split without gradients. It writes the keys and values of row r to position Pos[r] of
// sequence[r] in paged caches [N, KVHeads, B, hd], with B a power of two. Position p is place p % B of block
// table[sequence[r], p / B]. table is int32 [S, W], sequence is int32 [T]. If several rows name the same place,
// the last one is kept. On a GPU a row that names a place outside of the cache is skipped without an error.
func (h Heads) Cache(qkv, kCache, vCache, table, sequence *Tensor) (q *Tensor) {
	if (!h.NormsLast || h.QNorm == nil) && h.VNorm == nil {
		return h.scaleQueries(h.cache(h.orderColumns(qkv), kCache, vCache, table, sequence))
	}
	q, k, v := h.Split(qkv)
	made := qkv.scopeFor("heads to the cache").Empty(q.DType(), q.Size(0), (q.Size(1)+2*k.Size(1))*q.Size(2))
	at := int64(0)
	for _, part := range []*Tensor{q, k, v} {
		width := part.Size(1) * part.Size(2)
		made.Narrow(1, at, width).CopyFrom(part.View(-1, width))
		at += width
	}
	return Heads{Heads: h.Heads, KVHeads: h.KVHeads, Pos: h.Pos}.cache(made, kCache, vCache, table, sequence)
}

// cache does the work of Cache without Order and Growth, with norms before the rotation.
func (h Heads) cache(qkv, kCache, vCache, table, sequence *Tensor) (q *Tensor) {
	const op = "heads to the cache"
	s := qkv.scopeFor(op, kCache, vCache, table, sequence, h.Pos)
	return s.take(op, C.mgt_cache_heads(s.dev.native, qkv.handle, h.native(op, s), kCache.handle, vCache.handle, table.handle, sequence.handle),
		qkv, h.QNorm, h.KNorm, h.Cos, h.Sin, h.Pos, kCache, vCache, table, sequence)
}
