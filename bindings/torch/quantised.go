package torch

// #include "mgrpo_torch.h"
// #include "mgrpo/quant.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Matrix is the matrix of a linear map, a head or an embedding: a *Tensor [N, K] or a *Quantised.
type Matrix interface {
	DType() DType       // of the rows that an embedding returns
	Size(dim int) int64 // N, K
	Drop()
	tensors() []*Tensor
}

func (t *Tensor) tensors() []*Tensor { return []*Tensor{t} }

// QuantType is a quantisation type, with its number in GGUF files.
type QuantType int32

// The supported quantisation types.
const (
	Q4_0 QuantType = C.MGRPO_Q4_0
	Q4_1 QuantType = C.MGRPO_Q4_1
	Q5_0 QuantType = C.MGRPO_Q5_0
	Q5_1 QuantType = C.MGRPO_Q5_1
	Q8_0 QuantType = C.MGRPO_Q8_0
	Q4_K QuantType = C.MGRPO_Q4_K
	Q5_K QuantType = C.MGRPO_Q5_K
	Q6_K QuantType = C.MGRPO_Q6_K
)

// QuantPart is rows of one quantisation: uint8 [rows, bytes of a row].
type QuantPart struct {
	Type   QuantType
	Blocks *Tensor
}

// Quantised is a frozen matrix [N, K] in the blocks of a GGUF file. Products widen it tile by tile to the format's
// values. On a CPU in float32, without a recorded gradient, the results have the same bits as with the widened matrix.
type Quantised struct {
	handles []unsafe.Pointer
	types   []C.int32_t
	blocks  []*Tensor
	rows, k int64
	dtype   DType
}

// NewQuantised returns a matrix with rows of k weights. Its parts follow each other in rows. The matrix of an embedding or a head
// has one part. An embedding returns rows of type dt, Float32 or BFloat16. The parts' tensors must live as long as the matrix.
func NewQuantised(k int64, dt DType, parts ...QuantPart) *Quantised {
	q := &Quantised{k: k, dtype: dt}
	for _, p := range parts {
		if p.Blocks.Dim() != 2 || p.Blocks.DType() != Uint8 {
			fail("quantised", "blocks must be uint8 [rows, bytes of a row]", p.Blocks)
		}
		q.blocks, q.rows = append(q.blocks, p.Blocks), q.rows+p.Blocks.Size(0)
		q.handles, q.types = append(q.handles, p.Blocks.handle), append(q.types, C.int32_t(p.Type))
	}
	return q
}

// DType returns the type of the rows that an embedding returns.
func (q *Quantised) DType() DType { return q.dtype }

// Size returns N for dimension 0 and K for dimension 1.
func (q *Quantised) Size(dim int) int64 { return [...]int64{q.rows, q.k}[dim] }

// Drop frees the parts.
func (q *Quantised) Drop() {
	for _, t := range q.blocks {
		t.Drop()
	}
}

func (q *Quantised) tensors() []*Tensor { return q.blocks }

// singlePart returns the single part of an embedding's or a head's matrix.
func (q *Quantised) singlePart(op string) (*Tensor, C.int32_t) {
	if len(q.blocks) != 1 {
		fail(op, fmt.Sprintf("a matrix of %d parts: 1 is needed", len(q.blocks)))
	}
	return q.blocks[0], q.types[0]
}

// head returns the arguments of a head's functions for its matrix.
func head(op string, w Matrix) (t *Tensor, kind C.int32_t, limit C.double) {
	if c, ok := w.(CappedHead); ok {
		w, limit = c.Matrix, C.double(c.Cap)
	}
	if q, ok := w.(*Quantised); ok {
		t, kind = q.singlePart(op)
		return t, kind, limit
	}
	return w.(*Tensor), C.MGT_NOT_QUANTISED, limit
}

func (q *Quantised) linear(s *Scope, x *Tensor, bias unsafe.Pointer) *Tensor {
	r := C.mgt_linear_quant(s.dev.native, x.handle, unsafe.SliceData(q.handles), unsafe.SliceData(q.types), C.int64_t(len(q.types)), bias)
	return s.take("linear", r, append([]*Tensor{x}, q.blocks...)...)
}

func (q *Quantised) embedding(s *Scope, ids *Tensor) *Tensor {
	blocks, kind := q.singlePart("embedding")
	return s.take("embedding", C.mgt_embedding_quant(s.dev.native, blocks.handle, kind, C.int64_t(q.k), C.int(q.dtype), ids.handle), blocks, ids)
}

// Widen returns rows from to from+n-1 in float32: [n, K]. They must be in one part.
func (q *Quantised) Widen(s *Scope, from, n int64) *Tensor {
	for i, t := range q.blocks {
		if rows := t.Size(0); from < rows {
			ids := make([]int32, n)
			for j := range ids {
				ids[j] = int32(from) + int32(j)
			}
			part := NewQuantised(q.k, Float32, QuantPart{QuantType(q.types[i]), t})
			return part.embedding(s, s.FromInt32(ids, n))
		}
		from -= t.Size(0)
	}
	fail("widen", "rows outside of the matrix", q.blocks...)
	return nil
}
