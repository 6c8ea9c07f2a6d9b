// Queries, keys and values by head: norm, rotary position embedding, and the key-value cache.
#pragma once
#include "mgrpo/layers.h"
#include "mgrpo/pages.h"

// Prepares attention: splits a layer's product of queries, keys and values into heads. Then it normalises the heads of
// queries and keys as mgrpo_rms_norm_cpu does, and rotates them by their positions. A row of the product [rows, (heads + 2 kv_heads)
// hd] has the heads of queries, of keys and of values. There is at least one of each, heads is a multiple of kv_heads, and a row has at
// most 2^31 - 1 numbers.
typedef struct mgrpo_heads {
  int64_t heads, kv_heads, hd;
  const void *q_norm, *k_norm;  // weights; both null: no norm
  int32_t whole;                // 0: each head, by weights [hd]; else the heads of a row together, by weights [heads hd] and [kv_heads hd]
  float offset;                 // added to the weights of the norms, as in mgrpo_rms_norm_cpu
  double eps;                   // of the norms
  // Rotary position embedding, half-split, of the first `rotary` dimensions of each head, an even number: dimension i < rotary/2 is
  // paired with i + rotary/2.  y[i] = x[i] cos - x[i + rotary/2] sin, y[i + rotary/2] = x[i + rotary/2] cos + x[i] sin, with the
  // angle's cosine and sine at [pos[r], i]; the other dimensions do not change. Without rotated dimensions these pointers may be null.
  const float *cos, *sin;  // [max_pos, rotary/2]
  int64_t rotary, max_pos;
  const int32_t *pos;  // [rows] in [0, max_pos), else MGRPO_INVALID_ARGUMENT
} mgrpo_heads;

// q [rows, heads, hd], k, v [rows, kv_heads, hd].  For normalised heads inv_q_or_null and inv_k_or_null [rows, groups] are
// written for the backward pass. A group is a head, or the heads of a row together.
MGRPO_API int32_t mgrpo_split_heads_cpu(const float *qkv, mgrpo_heads layout, float *q, float *k, float *v, float *inv_q_or_null,
                                        float *inv_k_or_null, int64_t rows);

// The backward pass. dqkv is written, dw_q_or_null and dw_k_or_null are accumulated into, as by mgrpo_rms_norm_bwd_cpu. qkv_or_null,
// inv_q_or_null and inv_k_or_null are read only if heads are normalised.
MGRPO_API int32_t mgrpo_split_heads_bwd_cpu(const float *dq, const float *dk, const float *dv, const float *qkv_or_null, mgrpo_heads layout,
                                            const float *inv_q_or_null, const float *inv_k_or_null, float *dqkv, float *dw_q_or_null,
                                            float *dw_k_or_null, int64_t rows);

// Does what mgrpo_split_heads_cpu does, but writes keys and values to caches: row r to position layout.pos[r] of sequence[r].
// k_cache and v_cache have the shape of pages; sequence [rows] in [0, sequences), layout.pos [rows] in [0, width * block), and
// their blocks in the table in [0, blocks), else MGRPO_INVALID_ARGUMENT. If rows name the same place, the last one remains.
// The caches have the type cache_dtype: MGRPO_FLOAT32 or MGRPO_BFLOAT16. Numbers are rounded to the nearest bfloat16, ties to even.
MGRPO_API int32_t mgrpo_cache_heads_cpu(const float *qkv, mgrpo_heads layout, float *q, void *k_cache, void *v_cache, int32_t cache_dtype,
                                        mgrpo_pages pages, const int32_t *sequence, int64_t rows);

MGRPO_API int32_t mgrpo_split_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k, void *v,
                                         float *inv_q_or_null, float *inv_k_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_split_heads_bwd_cuda(const void *dq, const void *dk, const void *dv, const void *qkv_or_null, mgrpo_heads layout,
                                             const float *inv_q_or_null, const float *inv_k_or_null, int32_t dtype, void *dqkv,
                                             float *dw_q_or_null, float *dw_k_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_cache_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k_cache, void *v_cache,
                                         mgrpo_pages pages, const int32_t *sequence, int64_t rows, void *stream);
