// Dot products of rows with rows: the inner loop of linear layers and of attention scores.
//
// Vectors run along k. Each pair of a row and an output has one vector accumulator, which adds products from k = 0 upwards. Then its lanes
// are added in a fixed tree. A tile only determines which pairs share loads, so the result of a pair does not depend on its tile. The rows
// of w are float or bfloat16 (uint16_t). The rows of x are float. With instructions that multiply pairs of bfloat16, the rows of x and of w
// can both be bfloat16.
#pragma once
#include "simd.h"

namespace mgrpo::cpu {
namespace {

// kDotRows: rows of x in a tile with 4 outputs. Their accumulators and one row of operands fill the registers. A tile of 2 rows has too few
// independent sums, so with 16 registers there are also tiles of 4 rows and 3 outputs.
constexpr int kDotRows = kLanes == 16 ? 5 : 3;
constexpr int kFourRowOutputs = kLanes == 16 ? 4 : 3;

constexpr int64_t kLineBytes = 64;  // bytes of a cache line

template <class X>
struct RowsOf {
  using Number = X;
  const X *first;
  int64_t stride;
  const X *operator()(int64_t i) const { return first + i * stride; }
};
using StridedRows = RowsOf<float>;

struct PointerRows {
  using Number = float;
  const float *const *pointers;
  const float *operator()(int64_t i) const { return pointers[i]; }
};

// The numbers of a row that one step of a sum multiplies. A lane adds one product to its sum, or two products of bfloat16.
template <class X>
constexpr int64_t kStep = kLanes;

#if defined(__AVX512BF16__)
template <>
constexpr int64_t kStep<uint16_t> = 2 * kLanes;

MGRPO_INLINE __m512bh load_pairs(const uint16_t *p) { return (__m512bh)_mm512_loadu_si512(p); }
MGRPO_INLINE __m512bh load_pairs_n(const uint16_t *p, int64_t n) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << n) - 1), p);
}
MGRPO_INLINE Vec fma(__m512bh a, __m512bh b, Vec c) { return (Vec)_mm512_dpbf16_ps((__m512)c, a, b); }
#endif

// Return the numbers of one step of a row of x or w, or only the first n of them.
template <class X, class P>
MGRPO_INLINE auto operand(const P *p) {
  if constexpr (kStep<X> == kLanes)
    return load(p);
  else
    return load_pairs(p);
}
template <class X, class P>
MGRPO_INLINE auto operand_n(const P *p, int64_t n) {
  if constexpr (kStep<X> == kLanes)
    return load_n(p, n);
  else
    return load_pairs_n(p, n);
}

struct DotOutput {
  float *y;          // the output of the first row and first column of the tile
  int64_t y_stride;  // floats from one row to the next
  const float *b;    // the bias of the first column, or null
};

__attribute__((noinline)) void store_part(Vec4 sums, float *y, const float *b, int64_t n) {
  for (int64_t j = 0; j < n; j++) y[j] = b != nullptr ? sums[j] + b[j] : sums[j];
}

template <int N>
MGRPO_INLINE void store_sums(Vec4 sums, float *y, const float *b, int64_t n) {
  if (n < N || (N < 4 && b != nullptr)) return store_part(sums, y, b, n < N ? n : N);
  if constexpr (N == 4) {
    if (b != nullptr) sums += *reinterpret_cast<const Vec4Unaligned *>(b);
    *reinterpret_cast<Vec4Unaligned *>(y) = sums;
  } else {
    y[0] = sums[0], y[1] = sums[1], y[2] = sums[2];
  }
}

// The memory that a tile prefetches while it computes: `pace` bytes from `from` on for each number of a row of w, so that the requests are
// spread evenly.
struct Prefetch {
  const void *from;
  int64_t pace;  // 0: prefetches the same lines again

  template <int Lines>
  MGRPO_INLINE void ask(int64_t i) const {
    const char *p = static_cast<const char *>(from) + i * pace;
    MGRPO_UNROLL for (int line = 0; line < Lines; line++) __builtin_prefetch(p + line * kLineBytes, 0, 2);
  }
};

// Computes M rows x N outputs, and stores the first n outputs. Row j of w belongs to output j. Tail: k is not a multiple of a step. Without
// masked loads the accumulators stay in registers all the time. If `wide` is not null, the rows of w are bfloat16, and their float values
// are written there, [N, k].
template <int M, int N, bool Tail, class Rows, class W>
MGRPO_INLINE void dot_tile(const Rows &rows, int64_t first_row, const W *w, int64_t w_stride, int64_t k, const DotOutput &o, int64_t n,
                           Prefetch ahead, float *wide = nullptr) {
  using X = typename Rows::Number;
  constexpr int64_t kNumbers = kStep<X>;
  const X *x[M];
  for (int m = 0; m < M; m++) x[m] = rows(first_row + m);
  const W *wr[N];
  for (int j = 0; j < N; j++) wr[j] = w + min64(j, n - 1) * w_stride;

  Vec acc[M][N];
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int j = 0; j < N; j++) acc[m][j] = Vec{};
  const auto step = [&](auto load_at, auto keep) MGRPO_LAMBDA_INLINE {
    decltype(load_at(x[0])) xs[M];
    MGRPO_UNROLL for (int m = 0; m < M; m++) xs[m] = load_at(x[m]);
    MGRPO_UNROLL for (int j = 0; j < N; j++) {
      const auto ws = load_at(wr[j]);
      if constexpr (kNumbers == kLanes)
        if (wide != nullptr) keep(wide + j * k, ws);
      MGRPO_UNROLL for (int m = 0; m < M; m++) acc[m][j] = fma(xs[m], ws, acc[m][j]);
    }
  };
  int64_t i = 0;
  for (; i + kNumbers <= k; i += kNumbers) {
    ahead.template ask<2 * kNumbers / kLanes>(i);
    step([i](const auto *p) MGRPO_LAMBDA_INLINE { return operand<X>(p + i); },
         [i](float *p, Vec v) MGRPO_LAMBDA_INLINE { store(p + i, v); });
  }
  if (Tail)
    step([i, k](const auto *p) MGRPO_LAMBDA_INLINE { return operand_n<X>(p + i, k - i); },
         [i, k](float *p, Vec v) MGRPO_LAMBDA_INLINE { store_n(p + i, v, k - i); });

  constexpr int kStored = N < 4 ? N : 4;
  MGRPO_UNROLL for (int j = 0; j < N; j += kStored) MGRPO_UNROLL for (int m = 0; m < M; m++) {
    const Vec4 sums = sum_lanes4(acc[m][j], acc[m][j + 1], acc[m][j + 2], kStored < 4 ? Vec{} : acc[m][(j + 3) % N]);
    store_sums<kStored>(sums, o.y + m * o.y_stride + j, o.b != nullptr ? o.b + j : nullptr, n - j);
  }
}

// The division of rows into tiles: first `higher` tiles of low + 1 rows, then tiles of low rows.
struct TilePlan {
  int64_t tiles, low, higher;
};

MGRPO_INLINE TilePlan plan_tiles(int64_t m) {
  const int64_t tiles = kLanes == 16 ? (m + kDotRows - 1) / kDotRows : max64(m / 3, (m + 3) / 4);
  return {tiles, m / tiles, m % tiles};
}

// Returns the number of rows of w that all tiles multiply before the next rows are read. It is a multiple of the number of outputs of each
// kind of tile.
MGRPO_INLINE int64_t outputs_at_once(const TilePlan &plan) { return kFourRowOutputs == 3 && plan.low + (plan.higher > 0) == 4 ? 12 : 4; }

// The next rows of w, [n, k]. Each tile prefetches `pace` of them.
template <class W>
struct Ahead {
  const W *w;  // null: none
  int64_t n, k, pace, asked = 0;

  MGRPO_INLINE Prefetch some(const void *anything) {
    const int64_t row = asked;
    asked += pace;
    return w != nullptr && row < n ? Prefetch{w + row * k, pace * int64_t{sizeof(W)}} : Prefetch{anything, 0};
  }
};

// Computes M rows x n outputs, N outputs at a time.
template <int M, int N, bool Tail, class Rows, class W, class Next>
MGRPO_INLINE void dot_row_tile(const Rows &rows, int64_t first_row, const W *w, int64_t w_stride, int64_t k, const DotOutput &o, int64_t n,
                               Ahead<Next> &ahead, float *wide) {
  for (int64_t j = 0; j < n; j += N) {
    const DotOutput at{o.y + j, o.y_stride, o.b != nullptr ? o.b + j : nullptr};
    dot_tile<M, N, Tail>(rows, first_row, w + j * w_stride, w_stride, k, at, n - j, ahead.some(w),
                         wide != nullptr ? wide + j * k : nullptr);
  }
}

// Multiplies the rows of tiles [t, end) with the first n rows of w.
template <bool Tail, class Rows, class W, class Next>
MGRPO_INLINE void dot_tiles(const Rows &rows, const TilePlan &plan, int64_t t, int64_t end, const W *w, int64_t w_stride, int64_t k,
                            const DotOutput &o, int64_t n, Ahead<Next> &ahead, float *wide = nullptr) {
  for (int64_t i = t * plan.low + min64(t, plan.higher); t < end; t++) {
    const DotOutput at{o.y + i * o.y_stride, o.y_stride, o.b};
    const int64_t size = plan.low + (t < plan.higher);
    switch (size) {
      case 1:
        dot_row_tile<1, 4, Tail>(rows, i, w, w_stride, k, at, n, ahead, wide);
        break;
      case 2:
        dot_row_tile<2, 4, Tail>(rows, i, w, w_stride, k, at, n, ahead, wide);
        break;
      case 3:
        dot_row_tile<3, 4, Tail>(rows, i, w, w_stride, k, at, n, ahead, wide);
        break;
      case 4:
        dot_row_tile<4, kFourRowOutputs, Tail>(rows, i, w, w_stride, k, at, n, ahead, wide);
        break;
#if defined(__AVX512F__)
      case 5:
        dot_row_tile<5, 4, Tail>(rows, i, w, w_stride, k, at, n, ahead, wide);
        break;
#endif
    }
    i += size;
  }
}

// The size of the buffer in which the first tile stores the float values of bfloat16 rows of w for the other tiles: 96 KiB.
constexpr int64_t kWideFloats = 24 * 1024;

template <bool Tail, class Rows>
void dot_widened(const Rows &rows, const TilePlan &plan, const uint16_t *w, int64_t w_stride, int64_t k, const DotOutput &o, int64_t n,
                 Ahead<uint16_t> ahead) {
  alignas(64) float wide[kWideFloats];
  dot_tiles<Tail>(rows, plan, 0, 1, w, w_stride, k, o, n, ahead, wide);
  dot_tiles<Tail>(rows, plan, 1, plan.tiles, wide, k, k, o, n, ahead);
}

// Multiplies one row with eight rows of w at a time, because four outputs have too few independent sums. Returns the number of outputs that
// it computed. The processor's own prefetching is fast enough for rows of float, but not for rows of bfloat16.
template <bool Tail, class Rows, class W>
__attribute__((noinline)) int64_t dot_one_row(const Rows &rows, const W *w, int64_t w_stride, int64_t n, int64_t k, const float *b,
                                              float *y, const W *ahead) {
  constexpr int kAtOnce = 8;
  constexpr int64_t kPace = sizeof(W) == 2 ? kAtOnce * sizeof(W) : 0;
  const bool dense = ahead != nullptr && w_stride == k;
  int64_t j = 0;
  for (; j + kAtOnce <= n; j += kAtOnce) {
    const Prefetch next = dense && j + 2 * kAtOnce <= n ? Prefetch{ahead + (j + kAtOnce) * k, kPace} : Prefetch{w, 0};
    dot_tile<1, kAtOnce, Tail>(rows, 0, w + j * w_stride, w_stride, k, {y + j, 0, b != nullptr ? b + j : nullptr}, kAtOnce, next);
  }
  return j;
}

template <bool Tail, class Rows, class W>
MGRPO_INLINE void dot_all(const Rows &rows, int64_t m, const W *w, int64_t w_stride, int64_t n, int64_t k, const float *b, float *y,
                          int64_t y_stride, const W *ahead) {
  int64_t j = 0;
  const auto at = [&](int64_t j) { return DotOutput{y + j, y_stride, b != nullptr ? b + j : nullptr}; };
  if (m == 1) j = dot_one_row<Tail>(rows, w, w_stride, n, k, b, y, ahead);
  const TilePlan plan = plan_tiles(m);
  const int64_t outputs = outputs_at_once(plan), pace = plan.tiles >= 4 ? 1 : plan.tiles >= 2 ? 2 : 4;
  for (; j < n; j += outputs) {
    const int64_t size = min64(n - j, outputs);
    const bool more = ahead != nullptr && w_stride == k && j + 2 * outputs <= n;
    Ahead<W> next{more ? ahead + (j + outputs) * k : nullptr, outputs, k, pace};
    if constexpr (sizeof(W) < sizeof(typename Rows::Number))
      if (plan.tiles > 1 && outputs * k <= kWideFloats) {
        dot_widened<Tail>(rows, plan, w + j * w_stride, w_stride, k, at(j), size, next);
        continue;
      }
    dot_tiles<Tail>(rows, plan, 0, plan.tiles, w + j * w_stride, w_stride, k, at(j), size, next);
  }
}

// Computes y[i, j] = rows(i) . w[j] + b[j] for i < m and j < n. It reads a few rows of w at a time, once for all m rows. If w is dense, the
// next rows are prefetched, from `ahead` on. If `ahead` is null, nothing is prefetched.
template <class Rows, class W>
void dot_block(const Rows &rows, int64_t m, const W *w, int64_t w_stride, int64_t n, int64_t k, const float *b, float *y, int64_t y_stride,
               const W *ahead) {
  if (m < 1) return;
  if (k % kStep<typename Rows::Number> == 0) return dot_all<false>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
  dot_all<true>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
}

// The number of floats of those rows of x that stay in the second-level cache while all of w is read.
constexpr int64_t kDotCachedFloats = 48 * 1024;

MGRPO_INLINE int64_t cached_rows(int64_t k) { return max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows; }

template <class W>
void linear(const float *x, int64_t x_stride, const W *w, int64_t w_stride, const float *b, float *y, int64_t y_stride, int64_t rows,
            int64_t k, int64_t n) {
  const int64_t rows_at_once = cached_rows(k);
  const int64_t blocks = (rows + rows_at_once - 1) / rows_at_once;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t r = rows * i / blocks, end = rows * (i + 1) / blocks;
    dot_block(StridedRows{x + r * x_stride, x_stride}, end - r, w, w_stride, n, k, b, y + r * y_stride, y_stride, w);
  }
}

}  // namespace
}  // namespace mgrpo::cpu
