// Products of rows of float with rows of bfloat16 in the tile registers of AMX.
//
// A row of x is replaced by the sum of two rows of bfloat16, which differs from it by at most 2^-17 of each number. A tile of weights is 16
// rows of w, in their layout in memory. It is multiplied with 16 rows of x, which are columns of a packed tile, and the products are added
// in the order of k. The products of the upper parts and of the lower parts have separate sums. So a result depends only on its two rows.
#pragma once
#include "scratch.h"
#include "simd.h"
#include "transpose.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kTile = 16, kTileDepth = 32, kTileBytes = 1024;  // a tile has 16 rows of 32 bfloat16 or of 16 float
constexpr int64_t kPackedRows = 64;                                // rows of x that are packed at a time

// Prevents the compiler from moving stores after a load of a tile. It does not know that the load reads memory.
MGRPO_INLINE void finish_stores() { asm volatile("" ::: "memory"); }

struct TileSettings {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

MGRPO_INLINE __m512 widened(__m256i half) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)); }

// Splits 32 numbers of a row into two rows of bfloat16. Only the first n numbers are in memory. The lower part of an infinite number is 0.
MGRPO_INLINE void split_row(const float *x, int64_t n, __m512i *upper, __m512i *lower) {
  const __mmask16 first = lane_mask(n < 16 ? n : 16), second = n > 16 ? lane_mask(n - 16) : 0;
  const __m512 a = _mm512_maskz_loadu_ps(first, x), b = _mm512_maskz_loadu_ps(second, x + (n > 16 ? 16 : 0));
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const __m512 a_upper = widened(_mm512_castsi512_si256(both)), b_upper = widened(_mm512_extracti64x4_epi64(both, 1));
  const __m512 limit = _mm512_set1_ps(__builtin_inff());
  const __mmask16 a_finite = _mm512_cmp_ps_mask(_mm512_abs_ps(a_upper), limit, _CMP_LT_OQ);
  const __mmask16 b_finite = _mm512_cmp_ps_mask(_mm512_abs_ps(b_upper), limit, _CMP_LT_OQ);
  *upper = both;
  *lower = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_sub_ps(b_finite, b, b_upper), _mm512_maskz_sub_ps(a_finite, a, a_upper));
}

// Packs `rows` <= 16 rows of x. Each 32 numbers become a tile of upper parts and a tile of lower parts. The pairs of numbers of a row
// become a column.
MGRPO_INLINE void pack_rows(const float *x, int64_t x_stride, int64_t rows, int64_t k, char *to) {
  for (int64_t i = 0; i < k; i += kTileDepth, to += 2 * kTileBytes) {
    __m512i upper[16], lower[16];
    MGRPO_UNROLL for (int r = 0; r < 16; r++) {
      upper[r] = lower[r] = _mm512_setzero_si512();
      if (r < rows) split_row(x + r * x_stride + i, min64(k - i, kTileDepth), &upper[r], &lower[r]);
    }
    transpose(upper);
    transpose(lower);
    MGRPO_UNROLL for (int r = 0; r < 16; r++) {
      _mm512_store_si512(to + r * 64, upper[r]);
      _mm512_store_si512(to + kTileBytes + r * 64, lower[r]);
    }
  }
}

// A tile of weights: its address in w or, at the edges of w, the address of a copy that is padded with zeros.
struct WeightTile {
  const void *at;
  int64_t row_bytes;
};

MGRPO_INLINE WeightTile weight_tile(const uint16_t *w, int64_t w_stride, int64_t rows, int64_t depth, char *copy) {
  if (rows >= kTile && depth >= kTileDepth) return {w, w_stride * 2};
  const __mmask32 kept = depth >= kTileDepth ? ~__mmask32{0} : static_cast<__mmask32>((1u << depth) - 1);
  for (int64_t r = 0; r < kTile; r++)
    _mm512_store_si512(copy + r * 64, r < rows ? _mm512_maskz_loadu_epi16(kept, w + r * w_stride) : _mm512_setzero_si512());
  return {copy, 64};
}

// Stores y[r, j] = upper + lower + b[j] for a tile of sums. A row of the tile is an output.
MGRPO_INLINE void store_tile(const char *upper, const char *lower, const float *b, float *y, int64_t y_stride, int64_t rows, int64_t n) {
  const __mmask16 kept = lane_mask(min64(n, kTile));
  const __m512 bias = b != nullptr ? _mm512_maskz_loadu_ps(kept, b) : _mm512_setzero_ps();
  __m512i sums[16];
  MGRPO_UNROLL for (int j = 0; j < 16; j++) sums[j] =
      _mm512_castps_si512(_mm512_add_ps(_mm512_load_ps(upper + j * 64), _mm512_load_ps(lower + j * 64)));
  transpose(sums);
  MGRPO_UNROLL for (int r = 0; r < 16; r++) if (r < rows) {
    const __m512 row = _mm512_castsi512_ps(sums[r]);
    _mm512_mask_storeu_ps(y + r * y_stride, kept, b != nullptr ? _mm512_add_ps(row, bias) : row);
  }
}

// Multiplies up to 16 packed rows with up to 32 rows of w. If `ahead` is not null, 32 rows of w from there on are prefetched.
MGRPO_INLINE void tile_products(const char *x, const uint16_t *w, int64_t w_stride, int64_t n, int64_t k, const uint16_t *ahead,
                                char *scratch) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  char *sums = scratch, *copies = scratch + 4 * kTileBytes;
  for (int64_t i = 0; i < k; i += kTileDepth, x += 2 * kTileBytes) {
    const WeightTile a = weight_tile(w + i, w_stride, n, k - i, copies);
    const WeightTile b = weight_tile(w + min64(kTile, n) * w_stride + i, w_stride, n - kTile, k - i, copies + kTileBytes);
    finish_stores();
    _tile_loadd(4, a.at, a.row_bytes);
    _tile_loadd(5, b.at, b.row_bytes);
    _tile_loadd(6, x, 64);
    _tile_loadd(7, x + kTileBytes, 64);
    if (ahead != nullptr)
      MGRPO_UNROLL for (int r = 0; r < 32; r++) _mm_prefetch(reinterpret_cast<const char *>(ahead + r * w_stride + i), _MM_HINT_T1);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileBytes, 64);
  _tile_stored(2, sums + 2 * kTileBytes, 64);
  _tile_stored(3, sums + 3 * kTileBytes, 64);
  finish_stores();
}

void linear_tiles(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                  int64_t rows, int64_t k, int64_t n) {
  static thread_local Scratch scratch;
  const int64_t row_tile = (k + kTileDepth - 1) / kTileDepth * 2 * kTileBytes;
  char *products = scratch.at_least(6 * kTileBytes + kPackedRows / kTile * row_tile), *packed = products + 6 * kTileBytes;
  const TileSettings settings;
  asm volatile("" ::"m"(settings) : "memory");
  _tile_loadconfig(&settings);
  for (int64_t first = 0; first < rows; first += kPackedRows) {
    const int64_t count = min64(rows - first, kPackedRows);
    for (int64_t r = 0; r < count; r += kTile)
      pack_rows(x + (first + r) * x_stride, x_stride, min64(count - r, kTile), k, packed + r / kTile * row_tile);
    for (int64_t j = 0; j < n; j += 2 * kTile)
      for (int64_t r = 0; r < count; r += kTile) {
        const int64_t outputs = min64(n - j, 2 * kTile), these = min64(count - r, kTile);
        const bool more = r == 0 && n - j >= 4 * kTile;
        tile_products(packed + r / kTile * row_tile, w + j * w_stride, w_stride, outputs, k,
                      more ? w + (j + 2 * kTile) * w_stride : nullptr, products);
        float *to = y + (first + r) * y_stride + j;
        for (int64_t half = 0; half < 2 && half * kTile < outputs; half++)
          store_tile(products + half * kTileBytes, products + (half + 2) * kTileBytes, b != nullptr ? b + j + half * kTile : nullptr,
                     to + half * kTile, y_stride, these, outputs - half * kTile);
      }
  }
  _tile_release();
}

}  // namespace
}  // namespace mgrpo::cpu
