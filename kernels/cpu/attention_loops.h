// Attention over blocks of keys, with a running softmax.
//
// The keys of a query row are divided into blocks that begin at multiples of kKeyBlock from the first key of its sequence. The order of
// every sum of the row depends only on the positions of the keys. Query rows are computed together only to share loads. So the result of a
// row depends only on its own query, keys and values, and not on the spans of memory that contain the keys. Keys that no query row attends
// to are not read.
#pragma once
#include <math.h>
#include <string.h>

#include "layer_loops.h"
#include "linear_dot.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kKeyBlock = 64;
constexpr const float *kNothingAhead = nullptr;

// Calls f(column, n, row) for the spans of the keys at positions [first, first + n_keys), in their order. Keys before `begin` are left out.
// The n keys from column `column` of the block on are the rows from `row` on.
template <class W, class F>
MGRPO_INLINE void for_pieces(const AttentionKeys<W> &keys, int64_t begin, int64_t first, int64_t n_keys, F f) {
  for (int64_t i = 0; i < keys.count && keys.spans[i].position < first + n_keys; i++) {
    const KeySpan &span = keys.spans[i];
    const int64_t from = max64(max64(begin, first), span.position), to = min64(first + n_keys, span.position + span.rows);
    if (from < to) f(from - first, to - from, span.row + from - span.position);
  }
}

// Removes the spans that end at or before the position.
template <class W>
MGRPO_INLINE void skip(AttentionKeys<W> &keys, int64_t position) {
  for (; keys.count > 0 && keys.spans->position + keys.spans->rows <= position; keys.count--) keys.spans++;
}

// Computes out[i] += sum_t a[i, t] b[t] over t in [0, n), for M rows x V vectors.
template <int M, int V, class W, class Load, class Store>
MGRPO_INLINE void mul_tile(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col, int64_t n, const W *b,
                           int64_t b_stride, Load at, Store put) {
  Vec acc[M][V];
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int v = 0; v < V; v++) acc[m][v] = at(out + m * out_stride + v * kLanes);
  for (int64_t t = 0; t < n; t++, b += b_stride, a += a_col) {
    Vec bs[V];
    MGRPO_UNROLL for (int v = 0; v < V; v++) bs[v] = at(b + v * kLanes);
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec as = splat(a[m * a_row]);
      MGRPO_UNROLL for (int v = 0; v < V; v++) acc[m][v] = fma(as, bs[v], acc[m][v]);
    }
  }
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int v = 0; v < V; v++) put(out + m * out_stride + v * kLanes, acc[m][v]);
}

template <int M, class W>
MGRPO_INLINE void mul_rows(float *out, int64_t out_stride, const float *a, int64_t a_row, int64_t a_col, int64_t n, const W *b,
                           int64_t b_stride, int64_t d) {
  constexpr int V = M >= 3 ? 2 : 4;  // at least 8 accumulators where d allows: additions take four cycles
  const auto at = [](const auto *p) MGRPO_LAMBDA_INLINE { return load(p); };
  const auto put = [](float *p, Vec v) MGRPO_LAMBDA_INLINE { store(p, v); };
  int64_t c = 0;
  for (; c + V * kLanes <= d; c += V * kLanes) mul_tile<M, V>(out + c, out_stride, a, a_row, a_col, n, b + c, b_stride, at, put);
  for (; c + kLanes <= d; c += kLanes) mul_tile<M, 1>(out + c, out_stride, a, a_row, a_col, n, b + c, b_stride, at, put);
  if (c < d) {
    const int64_t left = d - c;
    mul_tile<M, 1>(
        out + c, out_stride, a, a_row, a_col, n, b + c, b_stride, [left](const auto *p) MGRPO_LAMBDA_INLINE { return load_n(p, left); },
        [left](float *p, Vec v) MGRPO_LAMBDA_INLINE { store_n(p, v, left); });
  }
}

// Computes out[i, 0..d) += sum_t a[i, t] b[t, 0..d) for i < m and t < n, with t ascending for every element. a[i, t] is a[i * a_row + t *
// a_col].
template <class W>
void mul_block(float *out, int64_t out_stride, int64_t m, const float *a, int64_t a_row, int64_t a_col, int64_t n, const W *b,
               int64_t b_stride, int64_t d) {
  int64_t i = 0;
  for (; i + 4 <= m; i += 4) mul_rows<4>(out + i * out_stride, out_stride, a + i * a_row, a_row, a_col, n, b, b_stride, d);
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
  Vec sum;  // the sum of exp(score - max), in each lane separately
};

// The denominator of a row is sum * exp(max). Its accumulated values must be multiplied by `share` before they are divided by `sum`.
struct Total {
  float max, sum, share;
};

MGRPO_INLINE Total with_sink(const SoftmaxRow &row, float sink) {
  const float max = sink > row.max ? sink : row.max, share = vexp(splat(row.max - max))[0];
  return {max, sum_lanes(row.sum) * share + vexp(splat(sink - max))[0], share};
}

// Replaces the raw scores [from, n) by exp(score - max). If the running maximum rises, the sums of the row are rescaled.
MGRPO_INLINE void softmax_block(SoftmaxRow &row, float *scores, int64_t from, int64_t n, float scale, float *acc, int64_t d) {
  const int64_t begin = from / kLanes * kLanes;
  Vec top = splat(-INFINITY);
  for (int64_t j = begin; j < n; j += kLanes) {
    const Vec s = keep_between(load(scores + j) * splat(scale), from - j, n - j, -INFINITY);
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
  for (int64_t j = begin; j < n; j += kLanes) {
    const Vec p = keep_between(vexp(load(scores + j) - splat(row.max)), from - j, n - j, 0.0f);
    store(scores + j, p);
    row.sum += p;
  }
}

// Adds the products of p[i] with the keys [from[i], to[i]) of v to acc[i], for up to four rows. The keys that all rows attend to are
// multiplied for all rows together. The other keys are multiplied for each row separately.
template <class W>
MGRPO_INLINE void accumulate_values(float *acc, int64_t acc_stride, const float *p, const int64_t *from, const int64_t *to, int rows,
                                    const W *v, int64_t stride, int64_t hd) {
  int64_t begin = from[0], end = to[0];
  for (int i = 1; i < rows; i++) begin = max64(begin, from[i]), end = min64(end, to[i]);
  end = max64(begin, end);
  const auto alone = [&](int i, int64_t first, int64_t last) MGRPO_LAMBDA_INLINE {
    if (first < last)
      mul_block(acc + i * acc_stride, acc_stride, 1, p + i * kKeyBlock + first, kKeyBlock, 1, last - first, v + first * stride, stride, hd);
  };
  for (int i = 0; i < rows; i++) alone(i, from[i], min64(begin, to[i]));
  mul_block(acc, acc_stride, rows, p + begin, kKeyBlock, 1, end - begin, v + begin * stride, stride, hd);
  for (int i = 0; i < rows; i++) alone(i, max64(end, from[i]), to[i]);
}

template <class W>
void attend(const float *const *q, const int64_t *length, int rows, AttentionKeys<W> keys, int64_t hd, float scale, int64_t window,
            const float *sinks, float *const *out, float *const *lse) {
  alignas(64) float scores[kAttentionTile * kKeyBlock];
  alignas(64) float acc[kAttentionTile * kMaxHeadDim];
  SoftmaxRow state[kAttentionTile];
  const int64_t padded = (hd + kLanes - 1) / kLanes * kLanes;
  int64_t earliest[kAttentionTile], begin = INT64_MAX, longest = 0;  // the keys that the rows attend to
  for (int i = 0; i < rows; i++) {
    state[i] = {-INFINITY, Vec{}};
    for (int64_t c = 0; c < padded; c += kLanes) store(acc + i * padded + c, Vec{});
    earliest[i] = first_seen(length[i] - 1, window);
    begin = min64(begin, earliest[i]);
    longest = max64(longest, length[i]);
  }
  for (int64_t first = begin / kKeyBlock * kKeyBlock; first < longest; first += kKeyBlock) {
    const int64_t n_keys = min64(kKeyBlock, longest - first);
    skip(keys, first);
    for_pieces(keys, begin, first, n_keys, [&](int64_t column, int64_t n, int64_t row) MGRPO_LAMBDA_INLINE {
      dot_block(PointerRows{q}, rows, keys.k + row * keys.stride, keys.stride, n, hd, nullptr, scores + column, kKeyBlock,
                keys.v + row * keys.stride);
    });
    for (int i = 0; i < rows; i++)
      if (length[i] > first && earliest[i] < first + n_keys)
        softmax_block(state[i], scores + i * kKeyBlock, max64(earliest[i] - first, 0), min64(n_keys, length[i] - first), scale,
                      acc + i * padded, padded);
    for_pieces(keys, begin, first, n_keys, [&](int64_t column, int64_t n, int64_t row) MGRPO_LAMBDA_INLINE {
      int64_t from[kAttentionTile], to[kAttentionTile];
      for (int i = 0; i < rows; i++) {
        from[i] = max64(earliest[i] - first - column, 0);
        to[i] = min64(n, length[i] - first - column);
      }
      for (int i = 0; i < rows; i += 4)
        accumulate_values(acc + i * padded, padded, scores + i * kKeyBlock + column, from + i, to + i, rows - i < 4 ? rows - i : 4,
                          keys.v + row * keys.stride, keys.stride, hd);
    });
  }
  for (int i = 0; i < rows; i++) {
    const Total total = sinks != nullptr ? with_sink(state[i], sinks[i]) : Total{state[i].max, sum_lanes(state[i].sum), 1.0f};
    scale_row(acc + i * padded, length[i] > 0 ? total.share / total.sum : 0.0f, padded);
    memcpy(out[i], acc + i * padded, static_cast<size_t>(hd) * sizeof(float));
    if (lse != nullptr) *lse[i] = total.max + logf(total.sum);
  }
}

// The number of query rows of one head in a block of the backward pass.
constexpr int64_t kQueryBlock = 32;

// Replaces raw scores by probabilities, and the gradients of probabilities by the gradients of the raw scores. The row attends to the keys
// [from, to).
MGRPO_INLINE void score_gradients(float *prob, float *dprob, int64_t n, int64_t from, int64_t to, float scale, float lse, float delta) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec p = keep_between(vexp(fma(load(prob + j), splat(scale), splat(-lse))), from - j, to - j, 0.0f);
    store(dprob + j, keep_between(p * (load(dprob + j) - splat(delta)) * splat(scale), from - j, to - j, 0.0f));
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

// Computes the backward pass of rows [first, first + rows) of query head `head` of the group, with all keys that they attend to.
void attend_bwd_rows(const AttentionQueries &s, AttentionKeys<float> keys, float *dk, float *dv, int64_t head, int64_t first,
                     int64_t rows) {
  alignas(64) float prob[kQueryBlock * kKeyBlock];
  alignas(64) float dprob[kQueryBlock * kKeyBlock];
  alignas(64) float q[kQueryBlock * kMaxHeadDim],
      dout[kQueryBlock * kMaxHeadDim];  // dense copies, for the reason given at HeadMajor in attention_packed.cpp
  float delta[kQueryBlock];
  const int64_t offset = first * s.stride + head * s.hd, lse_stride = s.stride / s.hd;
  const float *lse = s.lse + first * lse_stride + head;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = offset + i * s.stride;
    memcpy(q + i * s.hd, s.q + at, static_cast<size_t>(s.hd) * sizeof(float));
    memcpy(dout + i * s.hd, s.dout + at, static_cast<size_t>(s.hd) * sizeof(float));
    delta[i] = dot(dout + i * s.hd, s.out + at, s.hd);
  }

  const int64_t position = s.position + first, begin = first_seen(position, s.window);
  const int64_t base = first_seen(s.position, s.window);  // the position of the first row of dk and dv
  for (int64_t key = begin; key < position + rows; key += kKeyBlock) {
    const int64_t n_keys = min64(kKeyBlock, position + rows - key);
    skip(keys, key);
    for_pieces(keys, key, key, n_keys, [&](int64_t column, int64_t n, int64_t row) MGRPO_LAMBDA_INLINE {
      const int64_t at = row * keys.stride;
      dot_block(StridedRows{q, s.hd}, rows, keys.k + at, keys.stride, n, s.hd, nullptr, prob + column, kKeyBlock, kNothingAhead);
      dot_block(StridedRows{dout, s.hd}, rows, keys.v + at, keys.stride, n, s.hd, nullptr, dprob + column, kKeyBlock, kNothingAhead);
    });
    for (int64_t i = 0; i < rows; i++)
      score_gradients(prob + i * kKeyBlock, dprob + i * kKeyBlock, n_keys, first_seen(position + i, s.window) - key, position + i + 1 - key,
                      s.scale, lse[i * lse_stride], delta[i]);
    mul_block(dv + (key - base) * s.hd, s.hd, n_keys, prob, 1, kKeyBlock, rows, dout, s.hd, s.hd);
    mul_block(dk + (key - base) * s.hd, s.hd, n_keys, dprob, 1, kKeyBlock, rows, q, s.hd, s.hd);
    for_pieces(keys, key, key, n_keys, [&](int64_t column, int64_t n, int64_t row) MGRPO_LAMBDA_INLINE {
      mul_block(s.dq + offset, s.stride, rows, dprob + column, kKeyBlock, 1, n, keys.k + row * keys.stride, keys.stride, s.hd);
    });
  }
}

void attend_bwd(const AttentionQueries &s, const AttentionKeys<float> &keys, float *dk, float *dv) {
  const size_t row_bytes = static_cast<size_t>(s.hd) * sizeof(float);
  const size_t key_bytes = static_cast<size_t>(s.position + s.rows - first_seen(s.position, s.window)) * row_bytes;
  memset(dk, 0, key_bytes);
  memset(dv, 0, key_bytes);
  for (int64_t t = 0; t < s.rows; t++) memset(s.dq + t * s.stride, 0, row_bytes * static_cast<size_t>(s.group));
  for (int64_t head = 0; head < s.group; head++)
    for (int64_t first = 0; first < s.rows; first += kQueryBlock)
      attend_bwd_rows(s, keys, dk, dv, head, first, min64(kQueryBlock, s.rows - first));
}

}  // namespace
}  // namespace mgrpo::cpu
