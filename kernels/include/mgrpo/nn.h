// Forward and backward passes of the layers of a decoder-only transformer, fp32 unless a function states otherwise.
//
// Layout: every tensor is dense and row-major; [T, H, hd] means T rows of H heads of hd floats. Batch
// invariance: a row of a result depends on that row's inputs alone, bit for bit. The number of rows, the
// row's position among them and the number of threads do not matter. The bits may differ between kinds of
// CPU, because the width of the vector registers fixes the order of the sums. Threads: OpenMP, at most the
// caller's omp_get_max_threads(); small calls stay on the calling thread. Aliasing: outputs must not overlap
// inputs unless a function works in place. Returns: MGRPO_OK, or MGRPO_INVALID_ARGUMENT for a negative size,
// a null pointer to a non-empty tensor, a size whose bytes overflow int64, or a condition that a function
// names. Then nothing was written. MGRPO_OUT_OF_MEMORY if scratch cannot be allocated. Zero rows are valid.
#pragma once
#include "mgrpo/status.h"

// Returns the instruction set in use: "amx" (avx512, and products with bfloat16 in tiles), "avx512", "avx2" or
// "portable". It is the best one of the CPU unless the environment variable MGRPO_CPU_ISA names a lower one before the
// first call.
MGRPO_API const char *mgrpo_cpu_isa(void);

// Changes the instruction set of all calls that begin afterwards. Returns MGRPO_UNSUPPORTED if the CPU lacks it,
// MGRPO_INVALID_ARGUMENT if the name is unknown.
MGRPO_API int32_t mgrpo_cpu_use(const char *isa);

// y[r, j] = b[j] + sum_k x[r, k] w[j, k].  x [rows, k], w [n, k], b [n] or null, y [rows, n].
// w is read in place, without a packed copy.
MGRPO_API int32_t mgrpo_linear_cpu(const float *x, const float *w, const float *b_or_null, float *y, int64_t rows, int64_t k, int64_t n);

// The same with w in bfloat16: each weight is widened, products and sums are float32. With "amx" x is the sum of two
// bfloat16, which differs from it by at most 2^-17 of each number. x is rounded to the
// nearest bfloat16, ties to even, if three conditions hold: `round` is not 0, the set in use is "avx512", and the CPU has avx512_bf16.
// Subnormal numbers and sums then become 0, and many rows take half the time. MGRPO_OUT_OF_MEMORY if a thread cannot allocate its rounded
// rows or tiles; y is then unspecified.
MGRPO_API int32_t mgrpo_linear_bf16_cpu(const float *x, const uint16_t *w, const float *b_or_null, float *y, int64_t rows, int64_t k,
                                        int64_t n, int32_t round);

// y = x * inv_rms * (offset + w) with inv_rms[r] = 1 / sqrt(mean(x[r]^2) + eps).  x, y [rows, d], w [d], d >= 1,
// eps >= 0; offset is 0, or 1 if w holds distances from 1; inv_rms_or_null [rows] is written for the backward pass.
// Works in place (y == x).
MGRPO_API int32_t mgrpo_rms_norm_cpu(const float *x, const float *w, float offset, double eps, float *y, float *inv_rms_or_null,
                                     int64_t rows, int64_t d);

// sum = x + residual and y = its norm, in one pass, with the same bits as the addition followed by
// mgrpo_rms_norm_cpu. x, residual, sum, y [rows, d]. sum may be x or residual; y may be the other one.
MGRPO_API int32_t mgrpo_add_rms_norm_cpu(const float *x, const float *residual, const float *w, float offset, double eps, float *sum,
                                         float *y, float *inv_rms_or_null, int64_t rows, int64_t d);

// The backward pass of both. dx [rows, d] is written, dw_or_null [d] is accumulated into. x is the input of the norm. After
// mgrpo_add_rms_norm_cpu it is the sum: pass the sum's other gradient as dx_more [rows, d], which is added to dx, and dx
// is the gradient of either summand. The sum over rows has one fixed order, so dw does not depend on the number of threads.
// dx may be dy or dx_more.
MGRPO_API int32_t mgrpo_rms_norm_bwd_cpu(const float *dy, const float *x, const float *w, float offset, const float *inv_rms,
                                         const float *dx_more_or_null, float *dx, float *dw_or_null, int64_t rows, int64_t d);

// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)).  gate_up [rows, 2 f]: gate, then up; y [rows, f].
MGRPO_API int32_t mgrpo_swiglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);

// dgate_up [rows, 2 f] is written; it may be gate_up.
MGRPO_API int32_t mgrpo_swiglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The same with the tanh form of GELU: y = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) * up.
MGRPO_API int32_t mgrpo_geglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_geglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The gate of gpt-oss: with g = min(gate, 7) and u = min(max(up, -7), 7), y = g / (1 + exp(-1.702 g)) (u + 1). Numbers beyond
// these limits have the gradient 0.
MGRPO_API int32_t mgrpo_clamped_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_clamped_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The gated linear unit of Dauphin et al. 2017: y = up / (1 + exp(-gate)).
MGRPO_API int32_t mgrpo_sigmoid_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_sigmoid_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The step between the product of a layer's queries, keys and values and attention: the product is split into heads. The heads of queries
// and keys are normalised as by mgrpo_rms_norm_cpu, and then rotated by their positions. A row of the product [rows, (heads +
// 2 kv_heads) hd] has the heads of queries, of keys and of values. There is at least one of each, heads is a multiple of kv_heads,
// and a row has at most 2^31 - 1 numbers.
typedef struct mgrpo_heads {
  int64_t heads, kv_heads, hd;
  const void *q_norm, *k_norm;  // weights; both null: no norm
  int32_t whole;                // 0: each head, by weights [hd]; else the heads of a row together, by weights [heads hd] and [kv_heads hd]
  float offset;                 // of the weights, as there
  double eps;
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

// The shape of a key-value cache [blocks, kv_heads, block, hd]. A block has `block` tokens, a power of two, and a sequence has at most
// 2^31 tokens. Position p of sequence s is place p % block in block table[s, p / block].
typedef struct mgrpo_pages {
  const int32_t *table;  // [sequences, width]: blocks, in the order of the positions
  int64_t sequences, width;
  int64_t blocks, kv_heads, block, hd;
} mgrpo_pages;

// Does what mgrpo_split_heads_cpu does, but writes keys and values to caches: row r to position layout.pos[r] of sequence[r].
// k_cache and v_cache have the shape of pages; sequence [rows] in [0, sequences), layout.pos [rows] in [0, width * block), and
// their blocks in the table in [0, blocks), else MGRPO_INVALID_ARGUMENT. If rows name the same place, the last one remains.
MGRPO_API int32_t mgrpo_cache_heads_cpu(const float *qkv, mgrpo_heads layout, float *q, float *k_cache, float *v_cache, mgrpo_pages pages,
                                        const int32_t *sequence, int64_t rows);

// Computes attention to a cache. Row r attends to the first length[r] positions of sequence[r], or with a window above 0 to the last
// `window` of these. Other positions, and their entries of the table, are not read.  q, out [rows, heads, hd]; k_cache and v_cache have the
// shape of pages; sequence [rows] in [0, sequences), length [rows] in [0, width * block], blocks that are read in [0, blocks), else
// MGRPO_INVALID_ARGUMENT. A row of length 0 gives zeros. sinks_or_null has the meaning described at
// mgrpo_attention_packed_cpu. The bits depend neither on the blocks of a sequence nor on their
// size. hd in [1, 512] on a CPU, [1, 256] on a GPU. Decoding passes one row a sequence; prefill passes a prompt's rows in order, with
// lengths that grow by one. Consecutive rows of a sequence share the reading of its keys and values.
MGRPO_API int32_t mgrpo_attention_cached_cpu(const float *q, const float *k_cache, const float *v_cache, mgrpo_pages pages,
                                             const int32_t *sequence, const int32_t *length, const float *sinks_or_null, float *out,
                                             int64_t rows, int64_t heads, float scale, int64_t window);

// The same on a GPU. Arrays are in device memory; x, y, w and similar have one dtype, float32 or bfloat16; cos, sin,
// inv_rms, dw and sinks are float32. Arithmetic is float32, and a bfloat16 result is rounded once. The sum of
// mgrpo_add_rms_norm_cuda is rounded before it is normalised, and a head between norm and rotation. Attention to a
// bfloat16 cache multiplies on tensor cores, with softmax weights as sums of two bfloat16 terms. A row's bits depend
// on that row only, and the bits of dw on its inputs only. Calls only enqueue, so the host does not read table,
// sequence, pos and length. A row that names a place outside its table or cache gives NaN, or is not written to the
// cache, and no other memory is accessed for it. Scratch is allocated in the stream's order. A norm's backward pass
// takes at most 2 KiB a column. More than 512 rows that go to a cache take at most 32 bytes a row. Attention with
// more than 512 keys a row takes hd + 2 floats for each row, head and part of the keys, at most 64 parts and 64 MiB.
MGRPO_API int32_t mgrpo_rms_norm_cuda(const void *x, const void *w, int32_t dtype, float offset, double eps, void *y,
                                      float *inv_rms_or_null, int64_t rows, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_add_rms_norm_cuda(const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps,
                                          void *sum, void *y, float *inv_rms_or_null, int64_t rows, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_rms_norm_bwd_cuda(const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more_or_null,
                                          int32_t dtype, float offset, void *dx, float *dw_or_null, int64_t rows, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_swiglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_swiglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                        void *stream);
MGRPO_API int32_t mgrpo_geglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_geglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                       void *stream);
MGRPO_API int32_t mgrpo_clamped_glu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_clamped_glu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                             void *stream);
MGRPO_API int32_t mgrpo_sigmoid_glu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_sigmoid_glu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                             void *stream);
MGRPO_API int32_t mgrpo_split_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k, void *v,
                                         float *inv_q_or_null, float *inv_k_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_split_heads_bwd_cuda(const void *dq, const void *dk, const void *dv, const void *qkv_or_null, mgrpo_heads layout,
                                             const float *inv_q_or_null, const float *inv_k_or_null, int32_t dtype, void *dqkv,
                                             float *dw_q_or_null, float *dw_k_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_cache_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k_cache, void *v_cache,
                                         mgrpo_pages pages, const int32_t *sequence, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_attention_cached_cuda(const void *q, const void *k_cache, const void *v_cache, mgrpo_pages pages,
                                              const int32_t *sequence, const int32_t *length, const float *sinks_or_null, int32_t dtype,
                                              void *out, int64_t rows, int64_t heads, float scale, int64_t window, void *stream);
