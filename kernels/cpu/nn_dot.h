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

MGRPO_INLINE void store_quad(Vec4 sums, const DotOutput &o, int row, int64_t n) {
  float *y = o.y + row * o.y_stride;
  if (n >= 4) {
    if (o.b != nullptr) sums += *reinterpret_cast<const Vec4Unaligned *>(o.b);
    *reinterpret_cast<Vec4Unaligned *>(y) = sums;
    return;
  }
  for (int64_t j = 0; j < n; j++) y[j] = o.b != nullptr ? sums[j] + o.b[j] : sums[j];
}

// M rows x 4 Q outputs, of which n <= 4 Q are stored; the others repeat the last row of w.
template <int M, int Q, class Rows>
MGRPO_INLINE void dot_tile(const Rows &rows, int64_t first_row, const float *w, int64_t w_stride, int64_t k,
                           const DotOutput &o, int64_t n) {
  const float *x[M], *wr[4 * Q];
  for (int m = 0; m < M; m++) x[m] = rows(first_row + m);
  for (int j = 0; j < 4 * Q; j++) wr[j] = w + min64(j, n - 1) * w_stride;

  Vec acc[M][4 * Q] = {};
  const auto step = [&](auto load_at) MGRPO_LAMBDA_INLINE {
    Vec xs[M];
    for (int m = 0; m < M; m++) xs[m] = load_at(x[m]);
    for (int j = 0; j < 4 * Q; j++) {
      const Vec ws = load_at(wr[j]);
      for (int m = 0; m < M; m++) acc[m][j] = fma(xs[m], ws, acc[m][j]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) step([i](const float *p) MGRPO_LAMBDA_INLINE { return load(p + i); });
  if (i < k) step([i, k](const float *p) MGRPO_LAMBDA_INLINE { return load_n(p + i, k - i); });

  for (int q = 0; q < Q; q++)
    for (int m = 0; m < M; m++) {
      const Vec4 sums = sum_lanes4(acc[m][4 * q], acc[m][4 * q + 1], acc[m][4 * q + 2], acc[m][4 * q + 3]);
      if (n > 4 * q) store_quad(sums, {o.y + 4 * q, o.y_stride, o.b ? o.b + 4 * q : nullptr}, m, n - 4 * q);
    }
}

template <class Rows>
MGRPO_INLINE void dot_row_tile(int m, const Rows &rows, int64_t first_row, const float *w, int64_t w_stride,
                               int64_t k, const DotOutput &o, int64_t n) {
  switch (m) {
    case 2: return dot_tile<2, 1>(rows, first_row, w, w_stride, k, o, n);
    case 3: return dot_tile<3, 1>(rows, first_row, w, w_stride, k, o, n);
#if defined(__AVX512F__)
    case 4: return dot_tile<4, 1>(rows, first_row, w, w_stride, k, o, n);
    case 5: return dot_tile<5, 1>(rows, first_row, w, w_stride, k, o, n);
#endif
    default: return dot_tile<1, 1>(rows, first_row, w, w_stride, k, o, n);
  }
}

// y[i, j] = rows(i) . w[j] + b[j] for i < m, j < n: four rows of w at a time, read once for all m.
template <class Rows>
void dot_block(const Rows &rows, int64_t m, const float *w, int64_t w_stride, int64_t n, int64_t k, const float *b,
               float *y, int64_t y_stride) {
  const int outputs = m == 1 ? 8 : 4;
  const int64_t tiles = (m + kDotRows - 1) / kDotRows;
  for (int64_t j = 0; j < n; j += outputs) {
    const float *wj = w + j * w_stride;
    const float *bj = b != nullptr ? b + j : nullptr;
    if (m == 1) {
      dot_tile<1, 2>(rows, 0, wj, w_stride, k, {y + j, y_stride, bj}, n - j < 8 ? n - j : 8);
      continue;
    }
    int64_t i = 0;
    for (int64_t left = tiles; left > 0; left--) {  // equal tiles: 3 + 3 + 2 + 2 rather than 3 + 3 + 3 + 1
      const int size = static_cast<int>((m - i + left - 1) / left);
      dot_row_tile(size, rows, i, wj, w_stride, k, {y + i * y_stride + j, y_stride, bj}, min64(n - j, 4));
      i += size;
    }
  }
}

// x rows that stay in the second-level cache while all of w passes by.
constexpr int64_t kDotCachedFloats = 48 * 1024;

void linear(const float *x, int64_t x_stride, const float *w, int64_t w_stride, const float *b, float *y,
            int64_t y_stride, int64_t rows, int64_t k, int64_t n) {
  const int64_t block = max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows;
  for (int64_t r = 0; r < rows; r += block)
    dot_block(StridedRows{x + r * x_stride, x_stride}, min64(block, rows - r), w, w_stride, n, k, b,
              y + r * y_stride, y_stride);
}

}  // namespace
}  // namespace mgrpo::cpu
