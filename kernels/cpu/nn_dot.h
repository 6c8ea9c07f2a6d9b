// Dot products of rows with rows: the inner loop of linear layers and of attention scores.
//
// Vectors run along k. A (row, output) pair has one vector accumulator, filled from k = 0 upwards, and
// its lanes are added in one fixed tree; a tile only decides which pairs share loads. So the result of
// a pair does not depend on its tile.
#pragma once
#include "simd.h"

namespace mgrpo::cpu {
namespace {

// Rows of x in a tile: with 4 outputs their accumulators and one row of operands fill the registers.
constexpr int kDotRows = kLanes == 16 ? 5 : 3;

constexpr int64_t kLineFloats = 16;  // of a cache line

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

MGRPO_INLINE void store_quad(Vec4 sums, float *y, const float *b, int64_t n) {
  if (n < 4) return store_part(sums, y, b, n);
  if (b != nullptr) sums += *reinterpret_cast<const Vec4Unaligned *>(b);
  *reinterpret_cast<Vec4Unaligned *>(y) = sums;
}

// Memory that a tile asks for while it computes: `pace` floats from `from` on for each step of one float
// along k, so that the requests are spread evenly.
struct Prefetch {
  const float *from;
  int64_t pace;  // 0: nothing of use
};

// M rows x 4 Q outputs, of which n are stored; w[j] is the row of output j. Tail says whether k has a
// remainder: code without masked loads keeps the accumulators in registers throughout.
template <int M, int Q, bool Tail, class Rows>
MGRPO_INLINE void dot_tile(const Rows &rows, int64_t first_row, const float *const *w, int64_t k,
                           const DotOutput &o, int64_t n, Prefetch ahead) {
  const float *x[M];
  for (int m = 0; m < M; m++) x[m] = rows(first_row + m);

  Vec acc[M][4 * Q];
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int j = 0; j < 4 * Q; j++) acc[m][j] = Vec{};
  const auto step = [&](auto load_at) MGRPO_LAMBDA_INLINE {
    Vec xs[M];
    MGRPO_UNROLL for (int m = 0; m < M; m++) xs[m] = load_at(x[m]);
    MGRPO_UNROLL for (int j = 0; j < 4 * Q; j++) {
      const Vec ws = load_at(w[j]);
      MGRPO_UNROLL for (int m = 0; m < M; m++) acc[m][j] = fma(xs[m], ws, acc[m][j]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    __builtin_prefetch(ahead.from + i * ahead.pace, 0, 2);
    __builtin_prefetch(ahead.from + i * ahead.pace + kLineFloats, 0, 2);
    step([i](const float *p) MGRPO_LAMBDA_INLINE { return load(p + i); });
  }
  if (Tail) step([i, k](const float *p) MGRPO_LAMBDA_INLINE { return load_n(p + i, k - i); });

  MGRPO_UNROLL for (int q = 0; q < Q; q++)
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec4 sums = sum_lanes4(acc[m][4 * q], acc[m][4 * q + 1], acc[m][4 * q + 2], acc[m][4 * q + 3]);
      store_quad(sums, o.y + m * o.y_stride + 4 * q, o.b != nullptr ? o.b + 4 * q : nullptr, n - 4 * q);
    }
}

// How m rows are cut into tiles: `higher` tiles of low + 1 rows, then tiles of low rows.
struct TilePlan {
  int64_t tiles, low, higher;
};

MGRPO_INLINE TilePlan plan_tiles(int64_t m) {
  const int64_t tiles = (m + kDotRows - 1) / kDotRows;  // of nearly equal height: 3 + 3 + 2 + 2, not 3 + 3 + 3 + 1
  return {tiles, m / tiles, m % tiles};
}

// All rows against the n <= 4 rows of w from w[0] on. The first tiles ask for the 4 k floats at
// `next`, which may be null.
template <bool Tail, class Rows>
MGRPO_INLINE void dot_quad(const Rows &rows, const TilePlan &plan, const float *w, int64_t w_stride,
                           const float *next, int64_t k, const DotOutput &o, int64_t n) {
  const float *wr[4];
  for (int j = 0; j < 4; j++) wr[j] = w + min64(j, n - 1) * w_stride;
  const int64_t pace = next == nullptr ? 0 : plan.tiles >= 4 ? 1 : plan.tiles >= 2 ? 2 : 4;
  int64_t i = 0;
  for (int64_t t = 0; t < plan.tiles; t++) {
    const DotOutput at{o.y + i * o.y_stride, o.y_stride, o.b};
    const Prefetch ahead = t * pace < 4 && pace > 0 ? Prefetch{next + t * pace * k, pace} : Prefetch{wr[0], 0};
    const int64_t size = plan.low + (t < plan.higher);
    switch (size) {
      case 1: dot_tile<1, 1, Tail>(rows, i, wr, k, at, n, ahead); break;
      case 2: dot_tile<2, 1, Tail>(rows, i, wr, k, at, n, ahead); break;
      case 3: dot_tile<3, 1, Tail>(rows, i, wr, k, at, n, ahead); break;
#if defined(__AVX512F__)
      case 4: dot_tile<4, 1, Tail>(rows, i, wr, k, at, n, ahead); break;
      case 5: dot_tile<5, 1, Tail>(rows, i, wr, k, at, n, ahead); break;
#endif
    }
    i += size;
  }
}

template <bool Tail, class Rows>
MGRPO_INLINE void dot_all(const Rows &rows, int64_t m, const float *w, int64_t w_stride, int64_t n, int64_t k,
                          const float *b, float *y, int64_t y_stride, const float *ahead) {
  int64_t j = 0;
  if (m == 1)  // eight outputs at once: one row with four has too few independent sums
    for (; j + 8 <= n; j += 8) {
      const float *wr[8];
      for (int i = 0; i < 8; i++) wr[i] = w + (j + i) * w_stride;
      dot_tile<1, 2, Tail>(rows, 0, wr, k, {y + j, y_stride, b != nullptr ? b + j : nullptr}, 8, {wr[0], 0});
    }
  const TilePlan plan = plan_tiles(m);
  for (; j < n; j += 4) {
    const float *wj = w + j * w_stride;
    const float *next = ahead != nullptr && w_stride == k && j + 8 <= n ? ahead + j * k : nullptr;
    dot_quad<Tail>(rows, plan, wj, w_stride, next, k, {y + j, y_stride, b != nullptr ? b + j : nullptr},
                   min64(n - j, 4));
  }
}

// y[i, j] = rows(i) . w[j] + b[j] for i < m, j < n: four rows of w at a time, read once for all m. Where w is
// dense, as many floats from `ahead` on are fetched into the cache on the way, unless it is null.
template <class Rows>
void dot_block(const Rows &rows, int64_t m, const float *w, int64_t w_stride, int64_t n, int64_t k, const float *b,
               float *y, int64_t y_stride, const float *ahead) {
  if (m < 1) return;
  if (k % kLanes == 0) return dot_all<false>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
  dot_all<true>(rows, m, w, w_stride, n, k, b, y, y_stride, ahead);
}

// x rows that stay in the second-level cache while all of w passes by.
constexpr int64_t kDotCachedFloats = 48 * 1024;

void linear(const float *x, int64_t x_stride, const float *w, int64_t w_stride, const float *b, float *y,
            int64_t y_stride, int64_t rows, int64_t k, int64_t n) {
  const int64_t block = max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows;
  for (int64_t r = 0; r < rows; r += block)
    dot_block(StridedRows{x + r * x_stride, x_stride}, min64(block, rows - r), w, w_stride, n, k, b,
              y + r * y_stride, y_stride, w + 4 * k);
}

}  // namespace
}  // namespace mgrpo::cpu
