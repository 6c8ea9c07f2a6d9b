// The product with B of low-rank adapters.
#pragma once
#include "simd.h"

namespace mgrpo::cpu {
namespace {

// Transposes a square of numbers: v[i][l] becomes v[l][i]. Each step exchanges one bit of the indices i and l.
template <int Bit = 1>
MGRPO_INLINE void transpose(Vec (&v)[kLanes]) {
  VecInt low, high;
  for (int l = 0; l < kLanes; l++) {
    low[l] = (l & Bit) != 0 ? kLanes + (l ^ Bit) : l;
    high[l] = (l & Bit) != 0 ? kLanes + l : l ^ Bit;
  }
  MGRPO_UNROLL for (int i = 0; i < kLanes; i++) {
    if ((i & Bit) != 0) continue;
    const Vec a = v[i], b = v[i | Bit];
    v[i] = __builtin_shuffle(a, b, low);
    v[i | Bit] = __builtin_shuffle(a, b, high);
  }
  if constexpr (2 * Bit < kLanes) transpose<2 * Bit>(v);
}

// Computes y += scale * sum_c u[c] columns[c] over c < r, for the first `width` columns of M rows.
template <int M>
MGRPO_INLINE void lora_rows(const float *u, int64_t u_stride, const Vec *columns, int64_t r, float scale, float *y, int64_t y_stride,
                            int64_t width) {
  Vec sums[M];
  MGRPO_UNROLL for (int m = 0; m < M; m++) sums[m] = Vec{};
  for (int64_t c = 0; c < r; c++) {
    const Vec column = columns[c];
    MGRPO_UNROLL for (int m = 0; m < M; m++) sums[m] = fma(splat(u[m * u_stride + c]), column, sums[m]);
  }
  MGRPO_UNROLL for (int m = 0; m < M; m++) {
    float *to = y + m * y_stride;
    if (width == kLanes)
      store(to, fma(splat(scale), sums[m], load(to)));
    else
      store_n(to, fma(splat(scale), sums[m], load_n(to, width)), width);
  }
}

// Transposes square blocks of B, so that vectors run along the columns of y. A dot product of only r numbers would spend most of its time
// adding the lanes of a vector.
void lora_expand(const float *u, int64_t u_stride, const float *b, float scale, float *y, int64_t y_stride, int64_t rows, int64_t r,
                 int64_t n) {
  for (int64_t c = 0; c < r; c += kLanes)
    for (int64_t j = 0; j < n; j += kLanes) {
      const int64_t depth = min64(r - c, kLanes), width = min64(n - j, kLanes);
      Vec block[kLanes];
      for (int64_t l = 0; l < kLanes; l++) block[l] = l < width ? load_n(b + (j + l) * r + c, depth) : Vec{};
      transpose(block);
      const float *x = u + c;
      float *to = y + j;
      int64_t left = rows;
      for (; left >= 8; left -= 8, x += 8 * u_stride, to += 8 * y_stride)
        lora_rows<8>(x, u_stride, block, depth, scale, to, y_stride, width);
      for (; left >= 4; left -= 4, x += 4 * u_stride, to += 4 * y_stride)
        lora_rows<4>(x, u_stride, block, depth, scale, to, y_stride, width);
      for (; left >= 1; left -= 1, x += u_stride, to += y_stride) lora_rows<1>(x, u_stride, block, depth, scale, to, y_stride, width);
    }
}

}  // namespace
}  // namespace mgrpo::cpu
