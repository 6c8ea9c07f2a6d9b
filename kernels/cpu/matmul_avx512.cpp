// A tile of a product of matrices, for x86-64 with AVX-512 and avx512_bf16. kernels/CMakeLists.txt sets the compiler flags of this file.
//
// Matrices are packed in panels of up to 16 rows of a, or of 16 columns of b. For each unit of k a panel has a vector with the units of all
// 16 rows or columns. A unit is a float, or a pair of bfloat16: one instruction multiplies 16 pairs with 16 other pairs, and adds both
// products of a pair to a float.
#if defined(__x86_64__)
#include "matmul_tile.h"
#include "simd.h"
#include "transpose.h"

namespace mgrpo::cpu {
namespace {

// The units of a product of float32.
struct Singles {
  static constexpr int64_t numbers = 1;  // of k in a unit
  // Returns the units of 16 lines, whose numbers are consecutive in memory. `second` has the numbers that follow `first`.
  MGRPO_INLINE static __m512i along(__m512 first, __m512) { return (__m512i)first; }
  // Returns units from 16 first and 16 second numbers.
  MGRPO_INLINE static __m512i paired(__m512 first, __m512) { return (__m512i)first; }
  MGRPO_INLINE static __m512 multiply(__m512 sum, __m512i a, __m512i b) { return _mm512_fmadd_ps((__m512)a, (__m512)b, sum); }
};

// The units of a product of factors rounded to bfloat16.
struct Pairs {
  static constexpr int64_t numbers = 2;
  MGRPO_INLINE static __m512i along(__m512 first, __m512 second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }
  MGRPO_INLINE static __m512i paired(__m512 first, __m512 second);
  MGRPO_INLINE static __m512 multiply(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
};

MGRPO_INLINE __m512i Pairs::paired(__m512 first, __m512 second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                         18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// Packs one panel of `width` <= 16 lines (rows of a or columns of b) whose numbers of k are consecutive in memory.
template <class Units>
void pack_along(const float *x, int64_t stride, int64_t width, int64_t depth, __m512i *to) {
  for (int64_t p = 0; p < depth; p += 16 * Units::numbers) {
    const int64_t left = min64(depth - p, 16 * Units::numbers);
    const __mmask16 low = lane_mask(min64(left, 16)), high = left > 16 ? lane_mask(left - 16) : 0;
    __m512i lines[16];
    MGRPO_UNROLL for (int i = 0; i < 16; i++) {
      lines[i] = _mm512_setzero_si512();
      if (i >= width) continue;
      const float *line = x + i * stride + p;
      lines[i] = Units::along(_mm512_maskz_loadu_ps(low, line), high != 0 ? _mm512_maskz_loadu_ps(high, line + 16) : _mm512_setzero_ps());
    }
    transpose(lines);
    MGRPO_UNROLL for (int i = 0; i < 16; i++) if (Units::numbers * i < left) *to++ = lines[i];
  }
}

// Packs all panels of `lines` lines if the numbers of different lines are consecutive in memory. It reads the memory in order.
template <class Units>
void pack_across(const float *x, int64_t stride, int64_t lines, int64_t panel, int64_t depth, char *to) {
  for (int64_t p = 0; p < depth; p += Units::numbers, x += Units::numbers * stride, to += 64) {
    char *vector = to;
    for (int64_t i = 0; i < lines; i += panel, vector += kPanelBytes) {
      const __mmask16 kept = lane_mask(min64(lines - i, panel));
      const __mmask16 second = Units::numbers == 2 && p + 1 < depth ? kept : __mmask16{0};
      _mm512_store_si512(vector, Units::paired(_mm512_maskz_loadu_ps(kept, x + i), _mm512_maskz_loadu_ps(second, x + stride + i)));
    }
  }
}

// Packs lines in panels, which are kPanelBytes apart. Consecutive lines are `across` floats apart, and consecutive numbers of k are `along`
// floats apart.
template <class Units>
void pack(const float *x, int64_t across, int64_t along, int64_t lines, int64_t panel, int64_t depth, char *to) {
  if (along != 1) return pack_across<Units>(x, along, lines, panel, depth, to);
  for (int64_t i = 0; i < lines; i += panel, to += kPanelBytes)
    pack_along<Units>(x + i * across, across, min64(lines - i, panel), depth, reinterpret_cast<__m512i *>(to));
}

// Computes kTileRows rows and 2 * kTileColumns columns of the product. It writes only the first `rows` rows and the columns in the masks.
template <class Units>
void block(const char *a, const char *b, int64_t units, float *y, int64_t y_row, int64_t rows, const __mmask16 kept[2], bool add) {
  __m512 sums[kTileRows][2];
  MGRPO_UNROLL for (int r = 0; r < kTileRows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < units; p++, a += 64, b += 64) {
    const __m512i b0 = _mm512_load_si512(b), b1 = _mm512_load_si512(b + kPanelBytes);
    MGRPO_UNROLL for (int r = 0; r < kTileRows; r++) {
      const __m512i unit = _mm512_set1_epi32(reinterpret_cast<const int32_t *>(a)[r]);
      sums[r][0] = Units::multiply(sums[r][0], unit, b0);
      sums[r][1] = Units::multiply(sums[r][1], unit, b1);
    }
  }
  MGRPO_UNROLL for (int r = 0; r < kTileRows; r++) if (r < rows) {
    MGRPO_UNROLL for (int c = 0; c < 2; c++) {
      float *const to = y + r * y_row + c * kTileColumns;
      if (add) sums[r][c] = _mm512_add_ps(_mm512_maskz_loadu_ps(kept[c], to), sums[r][c]);
      _mm512_mask_storeu_ps(to, kept[c], sums[r][c]);
    }
  }
}

template <class Units>
void tile(const mgrpo_matrix &a, const mgrpo_matrix &b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, bool add, char *scratch) {
  char *const of_a = scratch, *const of_b = scratch + kTilePanels * kPanelBytes;
  constexpr int64_t most = kTileUnits * Units::numbers;
  for (int64_t p = 0; p < k; p += most, add = true) {
    const int64_t depth = min64(k - p, most), units = (depth + Units::numbers - 1) / Units::numbers;
    pack<Units>(a.data + p * a.column, a.row, a.column, m, kTileRows, depth, of_a);
    pack<Units>(b.data + p * b.row, b.column, b.row, n, kTileColumns, depth, of_b);
    for (int64_t j = 0; j < n; j += 2 * kTileColumns) {
      const int64_t columns = n - j;
      const __mmask16 kept[2] = {lane_mask(min64(columns, 16)), columns > 16 ? lane_mask(min64(columns - 16, 16)) : __mmask16{0}};
      for (int64_t i = 0; i < m; i += kTileRows)
        block<Units>(of_a + i / kTileRows * kPanelBytes, of_b + j / kTileColumns * kPanelBytes, units, y + i * y_row + j, y_row,
                     min64(m - i, kTileRows), kept, add);
    }
  }
}

}  // namespace

void matmul_tile(const mgrpo_matrix &a, const mgrpo_matrix &b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, bool add,
                 bool round, char *scratch) {
  (round ? tile<Pairs> : tile<Singles>)(a, b, y, y_row, m, k, n, add, scratch);
}

}  // namespace mgrpo::cpu
#endif
