// Dot products of rows with rows: the inner loop of linear layers and of attention scores.
//
// Vectors run along k. A (row, output) pair has one vector accumulator, filled from k = 0 upwards, and
// its lanes are added in one fixed tree; a tile only decides which pairs share loads. So the result of
// a pair does not depend on its tile. The rows of w are float or, in uint16_t, bfloat16.
#pragma once
#include "simd.h"

namespace mgrpo::cpu {
namespace {

// Rows of x in a tile with 4 outputs: their accumulators and one row of operands fill the registers. A tile of 2 rows
// has too few independent sums, so where the registers are 16 there are tiles of 4 rows and 3 outputs, too.
constexpr int kDotRows = kLanes == 16 ? 5 : 3;
constexpr int kFourRowOutputs = kLanes == 16 ? 4 : 3;

constexpr int64_t kLineBytes = 64;  // of a cache

struct StridedRows {
  const float *first;
  int64_t stride;
  const float *operator()(int64_t i) const { return first + i * stride; }
};

struct PointerRows {
  const float *const *pointers;
  const float *operator()(int64_t i) const { return pointers[i]; }
};

struct DotOutput {
  float *y;          // output of the tile's first row and first column
  int64_t y_stride;  // floats from one row to the next
  const float *b;    // bias of the first column, or null
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

// Memory that a tile asks for while it computes: `pace` bytes from `from` on for each byte of a row of w, so
// that the requests are spread evenly.
struct Prefetch {
  const void *from;
  int64_t pace;  // 0: nothing of use

  MGRPO_INLINE void ask(int64_t bytes) const {
    const char *p = static_cast<const char *>(from) + bytes * pace;
    __builtin_prefetch(p, 0, 2);
    __builtin_prefetch(p + kLineBytes, 0, 2);
  }
};

// M rows x N outputs, of which n are stored; w[j] is the row of output j. Tail says whether k has a
// remainder: code without masked loads keeps the accumulators in registers throughout.
template <int M, int N, bool Tail, class Rows, class W>
MGRPO_INLINE void dot_tile(const Rows &rows, int64_t first_row, const W *w, int64_t w_stride, int64_t k,
                           const DotOutput &o, int64_t n, Prefetch ahead) {
  const float *x[M];
  for (int m = 0; m < M; m++) x[m] = rows(first_row + m);
  const W *wr[N];
  for (int j = 0; j < N; j++) wr[j] = w + min64(j, n - 1) * w_stride;

  Vec acc[M][N];
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int j = 0; j < N; j++) acc[m][j] = Vec{};
  const auto step = [&](auto load_at) MGRPO_LAMBDA_INLINE {
    Vec xs[M];
    MGRPO_UNROLL for (int m = 0; m < M; m++) xs[m] = load_at(x[m]);
    MGRPO_UNROLL for (int j = 0; j < N; j++) {
      const Vec ws = load_at(wr[j]);
      MGRPO_UNROLL for (int m = 0; m < M; m++) acc[m][j] = fma(xs[m], ws, acc[m][j]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    ahead.ask(i * static_cast<int64_t>(sizeof(W)));
    step([i](const auto *p) MGRPO_LAMBDA_INLINE { return load(p + i); });
  }
  if (Tail) step([i, k](const auto *p) MGRPO_LAMBDA_INLINE { return load_n(p + i, k - i); });

  constexpr int kStored = N < 4 ? N : 4;
  MGRPO_UNROLL for (int j = 0; j < N; j += kStored)
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec4 sums = sum_lanes4(acc[m][j], acc[m][j + 1], acc[m][j + 2], kStored < 4 ? Vec{} : acc[m][(j + 3) % N]);
      store_sums<kStored>(sums, o.y + m * o.y_stride + j, o.b != nullptr ? o.b + j : nullptr, n - j);
    }
}

// How m rows are cut into tiles: `higher` tiles of low + 1 rows, then tiles of low rows.
struct TilePlan {
  int64_t tiles, low, higher;
};

MGRPO_INLINE TilePlan plan_tiles(int64_t m) {
  const int64_t tiles = kLanes == 16 ? (m + kDotRows - 1) / kDotRows : max64(m / 3, (m + 3) / 4);
  return {tiles, m / tiles, m % tiles};
}

// Rows of w that all tiles pass before the next are read: whole tiles of each kind that there is.
MGRPO_INLINE int64_t outputs_at_once(const TilePlan &plan) {
  return kFourRowOutputs == 3 && plan.low + (plan.higher > 0) == 4 ? 12 : 4;
}

// M rows against n outputs, N at a time. Each time `pace` rows of w are asked for, from next + row * k on; null: none.
template <int M, int N, bool Tail, class Rows, class W>
MGRPO_INLINE void dot_row_tile(const Rows &rows, int64_t first_row, const W *w, int64_t w_stride, int64_t k,
                               const DotOutput &o, int64_t n, const W *next, int64_t pace, int64_t &row) {
  for (int64_t j = 0; j < n; j += N, row += pace) {
    const bool useful = next != nullptr && row < n;
    const Prefetch ahead = useful ? Prefetch{next + row * k, pace} : Prefetch{w, 0};
    const DotOutput at{o.y + j, o.y_stride, o.b != nullptr ? o.b + j : nullptr};
    dot_tile<M, N, Tail>(rows, first_row, w + j * w_stride, w_stride, k, at, n - j, ahead);
  }
}

// All rows against the n rows of w from w[0] on.
template <bool Tail, class Rows, class W>
MGRPO_INLINE void dot_outputs(const Rows &rows, const TilePlan &plan, const W *w, int64_t w_stride, const W *next,
                            int64_t k, const DotOutput &o, int64_t n) {
  const int64_t pace = plan.tiles >= 4 ? 1 : plan.tiles >= 2 ? 2 : 4;
  int64_t i = 0, asked = 0;
  for (int64_t t = 0; t < plan.tiles; t++) {
    const DotOutput at{o.y + i * o.y_stride, o.y_stride, o.b};
    const int64_t size = plan.low + (t < plan.higher);
    switch (size) {
      case 1: dot_row_tile<1, 4, Tail>(rows, i, w, w_stride, k, at, n, next, pace, asked); break;
      case 2: dot_row_tile<2, 4, Tail>(rows, i, w, w_stride, k, at, n, next, pace, asked); break;
      case 3: dot_row_tile<3, 4, Tail>(rows, i, w, w_stride, k, at, n, next, pace, asked); break;
      case 4: dot_row_tile<4, kFourRowOutputs, Tail>(rows, i, w, w_stride, k, at, n, next, pace, asked); break;
#if defined(__AVX512F__)
      case 5: dot_row_tile<5, 4, Tail>(rows, i, w, w_stride, k, at, n, next, pace, asked); break;
#endif
    }
    i += size;
  }
}

// Several tiles read a row of w: bfloat16 is widened once for all of them where it fits here (96 KiB).
constexpr int64_t kWideFloats = 24 * 1024;

MGRPO_INLINE void widen_rows(float *wide, const uint16_t *w, int64_t w_stride, int64_t k, int64_t n) {
  for (int64_t j = 0; j < n; j++, wide += k, w += w_stride) {
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) store(wide + i, load(w + i));
    if (i < k) store_n(wide + i, load_n(w + i, k - i), k - i);
  }
}

template <bool Tail, class Rows>
void dot_widened(const Rows &rows, const TilePlan &plan, const uint16_t *w, int64_t w_stride, int64_t k,
                 const DotOutput &o, int64_t n) {
  alignas(64) float wide[kWideFloats];
  widen_rows(wide, w, w_stride, k, n);
  dot_outputs<Tail>(rows, plan, wide, k, static_cast<const float *>(nullptr), k, o, n);
}

template <bool Tail, class Rows, class W>
MGRPO_INLINE void dot_all(const Rows &rows, int64_t m, const W *w, int64_t w_stride, int64_t n, int64_t k,
                          const float *b, float *y, int64_t y_stride, const W *ahead) {
  int64_t j = 0;
  const auto at = [&](int64_t j) { return DotOutput{y + j, y_stride, b != nullptr ? b + j : nullptr}; };
  if (m == 1)  // eight outputs at once: one row with four has too few independent sums
    for (; j + 8 <= n; j += 8)
      dot_tile<1, 8, Tail>(rows, 0, w + j * w_stride, w_stride, k, at(j), 8, {w + j * w_stride, 0});
  const TilePlan plan = plan_tiles(m);
  const int64_t outputs = outputs_at_once(plan);
  for (; j < n; j += outputs) {
    if constexpr (sizeof(W) == 2)
      if (plan.tiles > 1 && outputs * k <= kWideFloats) {
        dot_widened<Tail>(rows, plan, w + j * w_stride, w_stride, k, at(j), min64(n - j, outputs));
        continue;
      }
    const W *next = ahead != nullptr && w_stride == k && j + 2 * outputs <= n ? ahead + (j + outputs) * k : nullptr;
    dot_outputs<Tail>(rows, plan, w + j * w_stride, w_stride, next, k, at(j), min64(n - j, outputs));
  }
}

// y[i, j] = rows(i) . w[j] + b[j] for i < m, j < n: a few rows of w at a time, read once for all m. Where w is dense,
// what is as far behind `ahead` as the next of them behind w is fetched into the cache on the way; null: nothing is.
template <class Rows, class W>
void dot_block(const Rows &rows, int64_t m, const W *w, int64_t w_stride, int64_t n, int64_t k, const float *b,
               float *y, int64_t y_stride, const W *ahead) {
  if (m < 1) return;
  if (k % kLanes == 0) return dot_all<false>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
  dot_all<true>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
}

// x rows that stay in the second-level cache while all of w passes by.
constexpr int64_t kDotCachedFloats = 48 * 1024;

template <class W>
void linear(const float *x, int64_t x_stride, const W *w, int64_t w_stride, const float *b, float *y,
            int64_t y_stride, int64_t rows, int64_t k, int64_t n) {
  const int64_t most = max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows;
  const int64_t blocks = (rows + most - 1) / most;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t r = rows * i / blocks, end = rows * (i + 1) / blocks;
    dot_block(StridedRows{x + r * x_stride, x_stride}, end - r, w, w_stride, n, k, b, y + r * y_stride, y_stride, w);
  }
}

}  // namespace
}  // namespace mgrpo::cpu
