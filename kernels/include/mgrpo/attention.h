// Causal self-attention: of packed sequences, with a backward pass, and of queries to a paged cache.
#pragma once
#include "mgrpo/layers.h"
#include "mgrpo/pages.h"

// Computes causal self-attention of `batch` segments, packed end to end. Queries are grouped: query head h reads key/value head
// h / (heads / kv_heads). Segment s has the rows [cu[s], cu[s+1]); cu [batch + 1], cu[0] = 0, not decreasing; T = cu[batch].
// q, out [T, heads, hd], k, v [T, kv_heads, hd], lse [T, heads]: the natural logarithm of the sum of exp(scale * q k). hd in [1, 512].
// A row attends to itself and to the rows that the row before it attends to. The first row of segment s follows the row
// follows[s], which must be in [-1, cu[s]), else MGRPO_INVALID_ARGUMENT. The segment begins a sequence if follows[s] is -1 or
// follows_or_null is null. A beginning that several sequences share is therefore a segment of its own, with its rows once.
// With a window above 0 the query at position i of its sequence attends to keys i - window + 1 to i only; 0 means no window.
// sinks_or_null [heads]: exp(sinks[h]) is one more term of the softmax's denominator, and of the sum in lse. It has no value vector.
// Row t has the same bits as in mgrpo_attention_cached_cpu for the same query, keys and values, for any division of its
// sequence into segments.
MGRPO_API int32_t mgrpo_attention_packed_cpu(const float *q, const float *k, const float *v, const int32_t *cu,
                                             const int32_t *follows_or_null, int64_t batch, const float *sinks_or_null, float *out,
                                             float *lse, int64_t heads, int64_t kv_heads, int64_t hd, float scale, int64_t window);

// dq [T, heads, hd], dk, dv [T, kv_heads, hd] are written (not accumulated into); out and lse are the results of
// the forward pass, including its sinks. Probabilities are computed again. A key's gradient is the sum over all rows that
// attend to it, in the order of the segments, with the same bits for any number of threads. Scratch: a copy of k and v, and the larger of
// four times dk and dv and the keys and values that one segment attends to.
MGRPO_API int32_t mgrpo_attention_packed_bwd_cpu(const float *dout, const float *q, const float *k, const float *v, const float *out,
                                                 const float *lse, const int32_t *cu, const int32_t *follows_or_null, int64_t batch,
                                                 float *dq, float *dk, float *dv, int64_t heads, int64_t kv_heads, int64_t hd, float scale,
                                                 int64_t window);

// Computes attention to a cache. Row r attends to the first length[r] positions of sequence[r], or with a window above 0 to the last
// `window` of these. Other positions, and their entries of the table, are not read. q, out [rows, heads, hd]; k_cache and v_cache have the
// shape of pages; sequence [rows] in [0, sequences), length [rows] in [0, width * block], blocks that are read in [0, blocks), else
// MGRPO_INVALID_ARGUMENT. A row of length 0 gives zeros. sinks_or_null has the meaning described at mgrpo_attention_packed_cpu. The bits
// depend neither on the blocks of a sequence nor on their size. hd in [1, 512] on a CPU, [1, 256] on a GPU. Decoding passes one row a
// sequence; prefill passes a prompt's rows in order, with lengths that grow by one. Consecutive rows of a sequence share the reading of
// its keys and values.
// The caches have the type cache_dtype. It is MGRPO_FLOAT32, or MGRPO_BFLOAT16, whose numbers are converted to float and give the bits that
// they give as float.
MGRPO_API int32_t mgrpo_attention_cached_cpu(const float *q, const void *k_cache, const void *v_cache, int32_t cache_dtype,
                                             mgrpo_pages pages, const int32_t *sequence, const int32_t *length, const float *sinks_or_null,
                                             float *out, int64_t rows, int64_t heads, float scale, int64_t window);

MGRPO_API int32_t mgrpo_attention_cached_cuda(const void *q, const void *k_cache, const void *v_cache, mgrpo_pages pages,
                                              const int32_t *sequence, const int32_t *length, const float *sinks_or_null, int32_t dtype,
                                              void *out, int64_t rows, int64_t heads, float scale, int64_t window, void *stream);
