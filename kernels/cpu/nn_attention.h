// Attention by blocks of keys with a running softmax.
//
// A query row meets the keys in blocks that start at multiples of kKeyBlock from its sequence's first
// key, and every sum of the row has an order fixed by the key index alone; query rows are processed
// together only to share loads. So a row's result depends on its own query, keys and values only.
#pragma once
#include <math.h>
#include <string.h>

#include "nn_dot.h"
#include "nn_ops.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kKeyBlock = 64;

// M rows x V vectors of out[i] += sum_t a[i, t] b[t] over t in [0, n).
template <int M, int V, class Load, class Store>
MGRPO_INLINE void mul_tile(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col, int64_t n,
                           const float *b, int64_t b_stride, Load at, Store put) {
  Vec acc[M][V];
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int v = 0; v < V; v++) acc[m][v] = at(out + m * out_stride + v * kLanes);
  for (int64_t t = 0; t < n; t++, b += b_stride, a += a_col) {
    Vec bs[V];
    MGRPO_UNROLL for (int v = 0; v < V; v++) bs[v] = at(b + v * kLanes);
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec as = splat(a[m * a_row]);
      MGRPO_UNROLL for (int v = 0; v < V; v++) acc[m][v] = fma(as, bs[v], acc[m][v]);
    }
  }
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int v = 0; v < V; v++) put(out + m * out_stride + v * kLanes, acc[m][v]);
}

template <int M>
MGRPO_INLINE void mul_rows(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col, int64_t n,
                           const float *b, int64_t b_stride, int64_t d) {
  constexpr int V = M >= 3 ? 2 : 4;  // at least 8 accumulators where d allows: additions take four cycles
  const auto at = [](const float *p) MGRPO_LAMBDA_INLINE { return load(p); };
  const auto put = [](float *p, Vec v) MGRPO_LAMBDA_INLINE { store(p, v); };
  int64_t c = 0;
  for (; c + V * kLanes <= d; c += V * kLanes)
    mul_tile<M, V>(out + c, out_stride, a, a_row, a_col, n, b + c, b_stride, at, put);
  for (; c + kLanes <= d; c += kLanes)
    mul_tile<M, 1>(out + c, out_stride, a, a_row, a_col, n, b + c, b_stride, at, put);
  if (c < d) {
    const int64_t left = d - c;
    mul_tile<M, 1>(
        out + c, out_stride, a, a_row, a_col, n, b + c, b_stride,
        [left](const float *p) MGRPO_LAMBDA_INLINE { return load_n(p, left); },
        [left](float *p, Vec v) MGRPO_LAMBDA_INLINE { store_n(p, v, left); });
  }
}

// out[i, 0..d) += sum_t a[i, t] b[t, 0..d) for i < m, t < n, with t ascending for every element;
// a[i, t] is a[i * a_row + t * a_col].
void mul_block(float *out, int64_t out_stride, int64_t m, const float *a, int64_t a_row, int64_t a_col, int64_t n,
               const float *b, int64_t b_stride, int64_t d) {
  int64_t i = 0;
  for (; i + 4 <= m; i += 4)
    mul_rows<4>(out + i * out_stride, out_stride, a + i * a_row, a_row, a_col, n, b, b_stride, d);
  out += i * out_stride, a += i * a_row;
  if (m - i == 3) mul_rows<3>(out, out_stride, a, a_row, a_col, n, b, b_stride, d);
  if (m - i == 2) mul_rows<2>(out, out_stride, a, a_row, a_col, n, b, b_stride, d);
  if (m - i == 1) mul_rows<1>(out, out_stride, a, a_row, a_col, n, b, b_stride, d);
}

MGRPO_INLINE void scale_row(float *row, float factor, int64_t d) {
  for (int64_t c = 0; c < d; c += kLanes) store(row + c, load(row + c) * splat(factor));
}

struct SoftmaxRow {
  float max;
  Vec sum;  // of exp(score - max), lane by lane
};

// Turns n raw scores into exp(score - running max), rescaling what the row holds when the max rises.
MGRPO_INLINE void softmax_block(SoftmaxRow &row, float *scores, int64_t n, float scale, float *acc, int64_t d) {
  Vec top = splat(-INFINITY);
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec s = keep_first(load(scores + j) * splat(scale), n - j, -INFINITY);
    store(scores + j, s);
    top = vmax(top, s);
  }
  const float block_max = max_lanes(top);
  if (!(block_max <= row.max)) {
    const float rescale = vexp(splat(row.max - block_max))[0];
    row.max = block_max;
    row.sum *= rescale;
    scale_row(acc, rescale, d);
  }
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec p = keep_first(vexp(load(scores + j) - splat(row.max)), n - j, 0.0f);
    store(scores + j, p);
    row.sum += p;
  }
}

// acc[i] += p[i] . v for four rows at once as far as all of them reach, then for each alone.
MGRPO_INLINE void accumulate_values(float *acc, const float *p, const int64_t *n, int rows, const float *v,
                                    int64_t kv_stride, int64_t hd) {
  int64_t shared = n[0];
  for (int i = 1; i < rows; i++) shared = min64(shared, n[i]);
  mul_block(acc, kMaxHeadDim, rows, p, kKeyBlock, 1, shared, v, kv_stride, hd);
  for (int i = 0; i < rows; i++)
    if (n[i] > shared)
      mul_block(acc + i * kMaxHeadDim, kMaxHeadDim, 1, p + i * kKeyBlock + shared, kKeyBlock, 1, n[i] - shared,
                v + shared * kv_stride, kv_stride, hd);
}

void attend(const float *const *q, const int64_t *length, int rows, const float *k, const float *v,
            int64_t kv_stride, int64_t hd, float scale, float *const *out, float *const *lse) {
  alignas(64) float scores[kAttentionTile * kKeyBlock];
  alignas(64) float acc[kAttentionTile * kMaxHeadDim];
  SoftmaxRow state[kAttentionTile];
  const int64_t padded = (hd + kLanes - 1) / kLanes * kLanes;
  int64_t longest = 0;
  for (int i = 0; i < rows; i++) {
    state[i] = {-INFINITY, Vec{}};
    for (int64_t c = 0; c < padded; c += kLanes) store(acc + i * kMaxHeadDim + c, Vec{});
    longest = max64(longest, length[i]);
  }
  for (int64_t first = 0; first < longest; first += kKeyBlock) {
    const int64_t keys = min64(kKeyBlock, longest - first);
    dot_block(PointerRows{q}, rows, k + first * kv_stride, kv_stride, keys, hd, nullptr, scores, kKeyBlock,
              v + first * kv_stride);
    int64_t n[kAttentionTile];
    for (int i = 0; i < rows; i++) {
      n[i] = max64(0, min64(keys, length[i] - first));
      if (n[i] > 0)
        softmax_block(state[i], scores + i * kKeyBlock, n[i], scale, acc + i * kMaxHeadDim, padded);
    }
    for (int i = 0; i < rows; i += 4)
      accumulate_values(acc + i * kMaxHeadDim, scores + i * kKeyBlock, n + i, rows - i < 4 ? rows - i : 4,
                        v + first * kv_stride, kv_stride, hd);
  }
  for (int i = 0; i < rows; i++) {
    const float sum = sum_lanes(state[i].sum);
    scale_row(acc + i * kMaxHeadDim, length[i] > 0 ? 1.0f / sum : 0.0f, padded);
    memcpy(out[i], acc + i * kMaxHeadDim, static_cast<size_t>(hd) * sizeof(float));
    if (lse != nullptr) *lse[i] = state[i].max + logf(sum);
  }
}

// Query rows of one head in a block of the backward pass.
constexpr int64_t kQueryBlock = 32;

// From raw scores to probabilities and, in place of dprob, to the gradient of the raw scores.
MGRPO_INLINE void score_gradients(float *prob, float *dprob, int64_t n, int64_t visible, float scale, float lse,
                                  float delta) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec p = keep_first(vexp(fma(load(prob + j), splat(scale), splat(-lse))), visible - j, 0.0f);
    store(dprob + j, keep_first(p * (load(dprob + j) - splat(delta)) * splat(scale), visible - j, 0.0f));
    store(prob + j, p);
  }
}

MGRPO_INLINE float dot(const float *a, const float *b, int64_t n) {
  Vec sum{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  if (i < n) sum = fma(load_n(a + i, n - i), load_n(b + i, n - i), sum);
  return sum_lanes(sum);
}

// Rows [first, first + rows) of query head `head` of the group against all keys they see.
void attend_bwd_rows(const AttentionSequence &s, const AttentionGradients &g, int64_t head, int64_t first,
                     int64_t rows) {
  alignas(64) float prob[kQueryBlock * kKeyBlock];
  alignas(64) float dprob[kQueryBlock * kKeyBlock];
  float delta[kQueryBlock];
  const int64_t offset = first * s.q_stride + head * s.hd, lse_stride = s.q_stride / s.hd;
  const float *q = s.q + offset, *dout = g.dout + offset, *lse = g.lse + first * lse_stride + head;
  for (int64_t i = 0; i < rows; i++) delta[i] = dot(dout + i * s.q_stride, g.out + offset + i * s.q_stride, s.hd);

  for (int64_t key = 0; key < first + rows; key += kKeyBlock) {
    const int64_t keys = min64(kKeyBlock, first + rows - key), at = key * s.kv_stride;
    dot_block(StridedRows{q, s.q_stride}, rows, s.k + at, s.kv_stride, keys, s.hd, nullptr, prob, kKeyBlock,
              nullptr);
    dot_block(StridedRows{dout, s.q_stride}, rows, s.v + at, s.kv_stride, keys, s.hd, nullptr, dprob, kKeyBlock,
              nullptr);
    for (int64_t i = 0; i < rows; i++)
      score_gradients(prob + i * kKeyBlock, dprob + i * kKeyBlock, keys, first + i + 1 - key, s.scale,
                      lse[i * lse_stride], delta[i]);
    mul_block(g.dv + at, s.kv_stride, keys, prob, 1, kKeyBlock, rows, dout, s.q_stride, s.hd);
    mul_block(g.dk + at, s.kv_stride, keys, dprob, 1, kKeyBlock, rows, q, s.q_stride, s.hd);
    mul_block(g.dq + offset, s.q_stride, rows, dprob, kKeyBlock, 1, keys, s.k + at, s.kv_stride, s.hd);
  }
}

void attend_bwd(const AttentionSequence &s, const AttentionGradients &g) {
  const size_t bytes = static_cast<size_t>(s.hd) * sizeof(float);
  for (int64_t t = 0; t < s.length; t++) {
    memset(g.dk + t * s.kv_stride, 0, bytes);
    memset(g.dv + t * s.kv_stride, 0, bytes);
    memset(g.dq + t * s.q_stride, 0, bytes * static_cast<size_t>(s.group));
  }
  for (int64_t head = 0; head < s.group; head++)
    for (int64_t first = 0; first < s.length; first += kQueryBlock)
      attend_bwd_rows(s, g, head, first, min64(kQueryBlock, s.length - first));
}

}  // namespace
}  // namespace mgrpo::cpu
