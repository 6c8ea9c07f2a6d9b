// The gated short convolution of LFM2 (Lfm2ShortConv in transformers). bcx [T, 3 d] is a product whose rows hold gates B, gates C and
// inputs x, of d values each. With u = B x, the result of a row is
//
//   y[j] = C[j] (bias[j] + sum over i < width of w[j, i] u[width - 1 - i rows before it, j])
//
// Rows before the beginning of a sequence add nothing. The conventions of mgrpo/layers.h hold: a row's bits depend on its own inputs and on
// the inputs of the width - 1 rows before it in its sequence. They depend neither on other sequences, nor on the division of a sequence
// into segments, passes or blocks, nor on the number of threads.
#pragma once
#include "mgrpo/layers.h"
#include "mgrpo/pages.h"

// width is 1 to 8. w [d, width]; bias_or_null [d]. If silu is not 0, the convolution is the one before a gated delta
// rule (mgrpo/delta_rule.h). There are no gates, a row of the product is u itself, [T, d] in place of [T, 3 d], and
//
//   y[j] = silu(bias[j] + sum over i < width of w[j, i] u[width - 1 - i rows before it, j])
typedef struct mgrpo_short_conv {
  int64_t d, width;
  const void *w, *bias_or_null;
  int32_t silu;
} mgrpo_short_conv;

// Segments with cu [batch + 1] and follows_or_null [batch] as for mgrpo_attention_packed_cpu. The first row of segment s
// comes after the row follows[s], and sequences with a common beginning contain its rows once. y [T, d], T = cu[batch].
MGRPO_API int32_t mgrpo_short_conv_packed_cpu(const float *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows_or_null,
                                              int64_t batch, float *y);

// dbcx, of the size of bcx, is written. dw_or_null [d, width] and dbias_or_null [d] are accumulated into,
// with the rows in order. The gradient of a row's u is the sum over the rows that read it: itself, then the
// rows after it depth first. Its own segment is before the segments that follow it, and these are in order.
MGRPO_API int32_t mgrpo_short_conv_packed_bwd_cpu(const float *dy, const float *bcx, mgrpo_short_conv conv, const int32_t *cu,
                                                  const int32_t *follows_or_null, int64_t batch, float *dbcx, float *dw_or_null,
                                                  float *dbias_or_null);

// The same against a cache [blocks, 1, block, d] of u, with pages.kv_heads 1 and pages.hd d. Row r is position pos[r] of sequence[r]: its
// u is written there, and u of the width - 1 positions before it is read. Rows of a sequence may come in one call or in many. If rows
// name the same place, the last one remains. y [rows, d] has the bits of mgrpo_short_conv_packed_cpu. sequence, pos and blocks must be in
// range as for mgrpo_cache_heads_cpu.
MGRPO_API int32_t mgrpo_short_conv_cached_cpu(const float *bcx, mgrpo_short_conv conv, float *cache, mgrpo_pages pages,
                                              const int32_t *sequence, const int32_t *pos, float *y, int64_t rows);

// The same, with conv.silu only, against states [slots, width - 1, d]: u of the last rows of a sequence, the newest last. Row r is
// position pos[r] of the sequence with the state slot[r]. The rows of a sequence follow each other in the order of their positions.
// The first one comes after the rows of the state. A row at position 0 begins a sequence, and its state is not read. The states of
// all sequences that have rows are advanced. y [rows, d] has the bits of mgrpo_short_conv_packed_cpu. slot must be in [0, slots) and
// pos >= 0. If the rows of a slot do not follow each other, the result is undefined, but nothing outside of y and states is written.
MGRPO_API int32_t mgrpo_short_conv_states_cpu(const float *u, mgrpo_short_conv conv, float *states, int64_t slots, const int32_t *slot,
                                              const int32_t *pos, float *y, int64_t rows);

// The same on a GPU, with the conventions of mgrpo/layers.h: one dtype, float32 or bfloat16; dw and dbias are float32. u is rounded to the
// dtype, packed and cached alike. `rows` is T. A segment that follows a row outside of [-1, cu[s]) begins with NaN; so does the result of
// a row that reads a place outside of its table or cache. Scratch: 3 T + batch integers; in the backward pass also at most
// 128 (width + 1) d floats, and T d floats with silu.
MGRPO_API int32_t mgrpo_short_conv_packed_cuda(const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows_or_null,
                                               int64_t batch, int32_t dtype, void *y, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_short_conv_packed_bwd_cuda(const void *dy, const void *bcx, mgrpo_short_conv conv, const int32_t *cu,
                                                   const int32_t *follows_or_null, int64_t batch, int32_t dtype, void *dbcx,
                                                   float *dw_or_null, float *dbias_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_short_conv_cached_cuda(const void *bcx, mgrpo_short_conv conv, int32_t dtype, void *cache, mgrpo_pages pages,
                                               const int32_t *sequence, const int32_t *pos, void *y, int64_t rows, void *stream);
// A row whose slot is outside of [0, slots), such as padding, gives NaN and changes no state.
MGRPO_API int32_t mgrpo_short_conv_states_cuda(const void *u, mgrpo_short_conv conv, int32_t dtype, void *states, int64_t slots,
                                               const int32_t *slot, const int32_t *pos, void *y, int64_t rows, void *stream);
