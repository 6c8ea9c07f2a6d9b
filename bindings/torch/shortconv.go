package torch

// #include "mgrpo_torch.h"
import "C"

// ShortConv is the gated short convolution of LFM2. A row of its product [T, 3D] holds gates B, gates C and inputs x.
// With u = B·x, row t of the result [T, D] is C·(Bias + Σ_n Weight[:, width-1-n]·u[n rows before t in its sequence]), for
// n below the width, 1 to 8. Rows before the beginning of a sequence add nothing. u is rounded to the product's type.
type ShortConv struct {
	Weight *Tensor // [D, width] or [D, 1, width], in the product's type
	Bias   *Tensor // [D]; nil: none

	// SiLU selects the convolution before a gated delta rule: the product [T, D] is u itself, and row t of the result is
	// silu(Bias + Σ_n Weight[:, width-1-n]·u[n rows before t]).
	SiLU bool
}

// Packed applies the convolution to segments, with cu and follows as for AttentionPacked: no row reads a row of another sequence. Product,
// weight and bias get gradients. With grad mode off, on a CPU in float32, the bits of a row depend only on the rows that it reads.
func (c ShortConv) Packed(bcx, cu, follows *Tensor) *Tensor {
	const op = "short convolution"
	s := bcx.scopeFor(op, c.Weight, cu)
	return s.take(op, C.mgt_short_conv_packed(s.dev.native, bcx.handle, c.Weight.handle, s.optional(op, c.Bias), cbool(c.SiLU), cu.handle,
		s.optional(op, follows)), bcx, c.Weight, c.Bias, cu, follows)
}

// Cached applies the convolution to rows of sequences in a paged cache [N, 1, B, D] of u, with table, sequence and pos as for
// Heads.Cache. Row r is position pos[r] of sequence[r]. Its u is written there, and the width-1 positions before it are read. No
// gradient is recorded. In float32 and on a GPU the result has the bits of Packed, in however many calls the rows of a sequence come.
func (c ShortConv) Cached(bcx, cache, table, sequence, pos *Tensor) *Tensor {
	const op = "cached short convolution"
	s := bcx.scopeFor(op, c.Weight, cache, table, sequence, pos)
	return s.take(op, C.mgt_short_conv_cached(s.dev.native, bcx.handle, c.Weight.handle, s.optional(op, c.Bias), cache.handle, table.handle,
		sequence.handle, pos.handle), bcx, c.Weight, c.Bias, cache, table, sequence, pos)
}

// Advance applies a convolution with SiLU to rows of sequences with states [slots, width-1, D]
// in u's type, as DeltaRule.Advance does. A state holds u of the last rows of a sequence.
func (c ShortConv) Advance(u, states, slot, pos *Tensor) *Tensor {
	const op = "short convolution of states"
	s := u.scopeFor(op, c.Weight, states, slot, pos)
	return s.take(op, C.mgt_short_conv_states(s.dev.native, u.handle, c.Weight.handle, s.optional(op, c.Bias), states.handle, slot.handle, pos.handle),
		u, c.Weight, c.Bias, states, slot, pos)
}
