// Products with matrices in GGUF's blocks (common/quant_block.h). A few rows of the matrix are converted to float32 in the first-level
// cache and multiplied there. The loops of linear_dot.h multiply them. For the gradient of the inputs, the tiles below do.
#pragma once
#include <cstring>

#include "linear_dot.h"
#include "mgrpo/quant.h"
#include "quant_block.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

MGRPO_INLINE float half_of(const uint8_t *p) {
#if defined(__F16C__)
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return _cvtsh_ss(h);
#else
  return half_at(p);
#endif
}

// Return kLanes bytes as integers. Compilers do not use these instructions for a conversion of vectors.
#if defined(__AVX512F__)
MGRPO_INLINE __m128i byte_lanes(const uint8_t *p) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)); }
MGRPO_INLINE VecInt bytes_at(const uint8_t *p) { return (VecInt)_mm512_maskz_cvtepu8_epi32(lane_mask(16), byte_lanes(p)); }
MGRPO_INLINE VecInt signed_at(const uint8_t *p) { return (VecInt)_mm512_maskz_cvtepi8_epi32(lane_mask(16), byte_lanes(p)); }
#elif defined(__AVX2__)
MGRPO_INLINE __m128i byte_lanes(const uint8_t *p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)); }
MGRPO_INLINE VecInt bytes_at(const uint8_t *p) { return (VecInt)_mm256_cvtepu8_epi32(byte_lanes(p)); }
MGRPO_INLINE VecInt signed_at(const uint8_t *p) { return (VecInt)_mm256_cvtepi8_epi32(byte_lanes(p)); }
#else
MGRPO_INLINE VecInt bytes_at(const uint8_t *p) { return VecInt{p[0], p[1], p[2], p[3]}; }
MGRPO_INLINE VecInt signed_at(const uint8_t *p) {
  return VecInt{static_cast<int8_t>(p[0]), static_cast<int8_t>(p[1]), static_cast<int8_t>(p[2]), static_cast<int8_t>(p[3])};
}
#endif
MGRPO_INLINE Vec floats_of(VecInt a) { return __builtin_convertvector(a, Vec); }

MGRPO_INLINE VecInt lanes_from(int first) {
  VecInt lane;
  for (int i = 0; i < kLanes; i++) lane[i] = i + first;
  return lane;
}

// Returns the bits [from, from + kLanes) of a word, one in each lane.
MGRPO_INLINE VecInt bits_of(uint32_t word, int from) { return (static_cast<int32_t>(word) - VecInt{}) >> lanes_from(from) & 1; }

MGRPO_INLINE uint32_t word_at(const uint8_t *p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

// Calls f(first weight, first byte, shift) for each vector of the 32 weights in 16 bytes.
template <class F>
MGRPO_INLINE void each_of_32(const F &f) {
  MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) f(i, i % 16, i / 16 * 4);
}

// The types of blocks. decode(b, f) calls f(first weight, vector of weights) for the weights of the block b, from the first to the last.

struct Q4_0 {
  static constexpr int32_t kType = MGRPO_Q4_0;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    const Vec d = splat(half_of(b));
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE { f(i, d * floats_of((bytes_at(b + 2 + byte) >> shift & 15) - 8)); });
  }
};

struct Q4_1 {
  static constexpr int32_t kType = MGRPO_Q4_1;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    const Vec d = splat(half_of(b)), m = splat(half_of(b + 2));
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE { f(i, fma(floats_of(bytes_at(b + 4 + byte) >> shift & 15), d, m)); });
  }
};

struct Q5_0 {
  static constexpr int32_t kType = MGRPO_Q5_0;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    const Vec d = splat(half_of(b));
    const uint32_t high = word_at(b + 2);
    each_of_32([&](int i, int byte, int shift)
                   MGRPO_LAMBDA_INLINE { f(i, d * floats_of((bytes_at(b + 6 + byte) >> shift & 15) + (bits_of(high, i) << 4) - 16)); });
  }
};

struct Q5_1 {
  static constexpr int32_t kType = MGRPO_Q5_1;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    const Vec d = splat(half_of(b)), m = splat(half_of(b + 2));
    const uint32_t high = word_at(b + 4);
    each_of_32([&](int i, int byte, int shift)
                   MGRPO_LAMBDA_INLINE { f(i, fma(floats_of((bytes_at(b + 8 + byte) >> shift & 15) + (bits_of(high, i) << 4)), d, m)); });
  }
};

struct Q8_0 {
  static constexpr int32_t kType = MGRPO_Q8_0;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    const Vec d = splat(half_of(b));
    MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) f(i, d * floats_of(signed_at(b + 2 + i)));
  }
};

// Writes the scales of the 8 groups of a Q4_K or Q5_K block times d, and then their minima times -dmin.
MGRPO_INLINE void group_scales(const uint8_t *b, float *scales) {
  const uint32_t p0 = word_at(b + 4), p1 = word_at(b + 8), p2 = word_at(b + 12);
  const uint32_t words[4] = {p0 & 0x3F3F3F3F, (p2 & 0x0F0F0F0F) | (p0 >> 6 & 0x03030303) << 4, p1 & 0x3F3F3F3F,
                             (p2 >> 4 & 0x0F0F0F0F) | (p1 >> 6 & 0x03030303) << 4};
  uint8_t packed[16];
  memcpy(packed, words, sizeof packed);
  const Vec d = splat(half_of(b)), minus = splat(-half_of(b + 2));
  MGRPO_UNROLL for (int i = 0; i < 16; i += kLanes) store(scales + i, floats_of(bytes_at(packed + i)) * (lanes_from(i) < 8 ? d : minus));
}

struct Q4_K {
  static constexpr int32_t kType = MGRPO_Q4_K;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    alignas(64) float scales[16];
    group_scales(b, scales);
    MGRPO_UNROLL for (int g = 0; g < 8; g++) {
      const Vec scale = splat(scales[g]), minimum = splat(scales[8 + g]);
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt q = bytes_at(b + 16 + g / 2 * 32 + i);
        f(32 * g + i, fma(floats_of(g % 2 == 0 ? q & 15 : q >> 4), scale, minimum));
      }
    }
  }
};

struct Q5_K {
  static constexpr int32_t kType = MGRPO_Q5_K;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    alignas(64) float scales[16];
    group_scales(b, scales);
    MGRPO_UNROLL for (int g = 0; g < 8; g++) {
      const Vec scale = splat(scales[g]), minimum = splat(scales[8 + g]);
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt q = bytes_at(b + 48 + g / 2 * 32 + i), fifth = (bytes_at(b + 16 + i) >> g & 1) << 4;
        f(32 * g + i, fma(floats_of((g % 2 == 0 ? q & 15 : q >> 4) + fifth), scale, minimum));
      }
    }
  }
};

struct Q6_K {
  static constexpr int32_t kType = MGRPO_Q6_K;
  template <class F>
  static MGRPO_INLINE void decode(const uint8_t *b, const F &f) {
    alignas(64) float scales[16];
    const Vec d = splat(half_of(b + 208));
    MGRPO_UNROLL for (int i = 0; i < 16; i += kLanes) store(scales + i, floats_of(signed_at(b + 192 + i)) * d);
    MGRPO_UNROLL for (int run = 0; run < 8; run++) {  // a block has two halves of four runs
      const uint8_t *low = b + run / 4 * 64 + run % 2 * 32, *high = b + 128 + run / 4 * 32;
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt nibbles = bytes_at(low + i), pairs = bytes_at(high + i) >> run % 4 * 2 & 3;
        const VecInt q = (run % 4 < 2 ? nibbles & 15 : nibbles >> 4) + (pairs << 4) - 32;
        f(32 * run + i, floats_of(q) * splat(scales[2 * run + i / 16]));
      }
    }
  }
};

// Calls f with the block type for a type of mgrpo_quant.
template <class F>
MGRPO_INLINE void for_blocks(int32_t type, const F &f) {
  switch (type) {
    case MGRPO_Q4_0:
      return f(Q4_0{});
    case MGRPO_Q4_1:
      return f(Q4_1{});
    case MGRPO_Q5_0:
      return f(Q5_0{});
    case MGRPO_Q5_1:
      return f(Q5_1{});
    case MGRPO_Q8_0:
      return f(Q8_0{});
    case MGRPO_Q4_K:
      return f(Q4_K{});
    case MGRPO_Q5_K:
      return f(Q5_K{});
    case MGRPO_Q6_K:
      return f(Q6_K{});
  }
}

// The distance in bytes of prefetches: a few microseconds of decoding.
constexpr int64_t kQuantAhead = 4096;

// Decodes consecutive blocks into y.
template <class Block>
__attribute__((noinline)) void decode_blocks(const uint8_t *w, int64_t blocks, float *y) {
  constexpr QuantSize kSize = quant_size(Block::kType);
  for (int64_t i = 0; i < blocks; i++) {
    const uint8_t *b = w + i * kSize.bytes;
    for (int64_t line = 0; line < kSize.bytes; line += kLineBytes) __builtin_prefetch(b + kQuantAhead + line, 0, 2);
    float *to = y + i * kSize.length;
    Block::decode(b, [to](int at, Vec v) MGRPO_LAMBDA_INLINE { store(to + at, v); });
  }
}

// Computes M rows x N outputs, with the order of sums of dot_tile, and stores the first n outputs. The weights stay in registers.
template <class Block, int M, int N>
MGRPO_INLINE void quant_tile(const StridedRows &rows, const uint8_t *w, int64_t row_bytes, int64_t k, const DotOutput &o, int64_t n) {
  constexpr QuantSize kSize = quant_size(Block::kType);
  Vec acc[M][N];
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int j = 0; j < N; j++) acc[m][j] = Vec{};
  for (int64_t i = 0, at = 0; i < k; i += kSize.length, at += kSize.bytes) MGRPO_UNROLL for (int j = 0; j < N; j++) {
      const uint8_t *b = w + min64(j, n - 1) * row_bytes + at;
      MGRPO_UNROLL for (int64_t line = 0; line < kSize.bytes; line += kLineBytes) __builtin_prefetch(b + N * row_bytes + line, 0, 2);
      Block::decode(b, [&](int c, Vec v) MGRPO_LAMBDA_INLINE {
        MGRPO_UNROLL for (int m = 0; m < M; m++) acc[m][j] = fma(load(rows(m) + i + c), v, acc[m][j]);
      });
    }
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int j = 0; j < N; j += 4) {
    const Vec4 sums = sum_lanes4(acc[m][j], acc[m][j + 1], N > 2 ? acc[m][(j + 2) % N] : Vec{}, N > 2 ? acc[m][(j + 3) % N] : Vec{});
    store_part(sums, o.y + m * o.y_stride + j, o.b != nullptr ? o.b + j : nullptr, min64(n - j, N));
  }
}

template <class Block, int M>
__attribute__((noinline)) void quant_few_rows(const StridedRows &rows, const uint8_t *w, int64_t row_bytes, int64_t n, int64_t k,
                                              const float *b, float *y, int64_t y_stride) {
  constexpr int kOutputs = kLanes == 16 || M < 3 ? 4 : 2;
  for (int64_t j = 0; j < n; j += kOutputs)
    quant_tile<Block, M, kOutputs>(rows, w + j * row_bytes, row_bytes, k, {y + j, y_stride, b != nullptr ? b + j : nullptr}, n - j);
}

void dequantise(int32_t type, const uint8_t *w, float *y, int64_t k) {
  for_blocks(type, [=](auto block) { decode_blocks<decltype(block)>(w, k / quant_size(block.kType).length, y); });
}

// Up to this number of rows of x, weights are multiplied in registers, without a decoded copy in memory.
constexpr int64_t kQuantFewRows = 4;

// Does what linear() of linear_dot.h does, with w in blocks. If there are more than kQuantFewRows rows of x, it decodes as many rows of w
// as a pass of the tiles needs to the cache, and then multiplies them.
void linear_quant(const float *x, int64_t x_stride, int32_t type, const uint8_t *w, const float *b, float *y, int64_t y_stride,
                  int64_t rows, int64_t k, int64_t n) {
  alignas(64) float wide[MGRPO_QUANT_COLUMNS];
  const int64_t row_bytes = quant_row_bytes(type, k);
  const int64_t rows_at_once = max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows;
  const int64_t blocks = (rows + rows_at_once - 1) / rows_at_once;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t r = rows * i / blocks, m = rows * (i + 1) / blocks - r;
    const StridedRows some{x + r * x_stride, x_stride};
    if (m <= kQuantFewRows) {
      for_blocks(type, [=](auto block) {
        using Block = decltype(block);
        float *to = y + r * y_stride;
        switch (m) {
          case 1:
            return quant_few_rows<Block, 1>(some, w, row_bytes, n, k, b, to, y_stride);
          case 2:
            return quant_few_rows<Block, 2>(some, w, row_bytes, n, k, b, to, y_stride);
          case 3:
            return quant_few_rows<Block, 3>(some, w, row_bytes, n, k, b, to, y_stride);
          case 4:
            return quant_few_rows<Block, 4>(some, w, row_bytes, n, k, b, to, y_stride);
        }
      });
      continue;
    }
    const int64_t at_once = outputs_at_once(plan_tiles(m));
    const int64_t outputs = k > 0 ? max64(min64(at_once, MGRPO_QUANT_COLUMNS / k), 1) : n;
    for (int64_t j = 0; j < n; j += outputs) {
      const int64_t size = min64(outputs, n - j);
      dequantise(type, w + j * row_bytes, wide, size * k);
      dot_all<false>(some, m, wide, k, size, k, b != nullptr ? b + j : nullptr, y + r * y_stride + j, y_stride,
                     static_cast<const float *>(nullptr));
    }
  }
}

// Computes a tile of dx with M rows and C vectors of columns. The n rows of the panel w [n, kQuantStrip] are added one after another. So an
// element is one chain of multiply-adds in a tile of any size.
template <int M, int C>
MGRPO_INLINE void outer_tile(const float *dy, int64_t dy_stride, const float *w, int64_t w_stride, int64_t n, float *dx, int64_t dx_stride,
                             bool add) {
  Vec acc[M][C];
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int c = 0; c < C; c++) acc[m][c] =
      add ? load(dx + m * dx_stride + c * kLanes) : Vec{};
  for (int64_t j = 0; j < n; j++) {
    Vec ws[C];
    MGRPO_UNROLL for (int c = 0; c < C; c++) ws[c] = load(w + j * w_stride + c * kLanes);
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec d = splat(dy[m * dy_stride + j]);
      MGRPO_UNROLL for (int c = 0; c < C; c++) acc[m][c] = fma(d, ws[c], acc[m][c]);
    }
  }
  MGRPO_UNROLL for (int m = 0; m < M; m++) MGRPO_UNROLL for (int c = 0; c < C; c++) store(dx + m * dx_stride + c * kLanes, acc[m][c]);
}

template <int C>
void outer_rows(const float *dy, int64_t dy_stride, const float *w, int64_t w_stride, int64_t n, float *dx, int64_t dx_stride, int64_t rows,
                bool add) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) outer_tile<6, C>(dy + r * dy_stride, dy_stride, w, w_stride, n, dx + r * dx_stride, dx_stride, add);
  for (; r < rows; r++) outer_tile<1, C>(dy + r * dy_stride, dy_stride, w, w_stride, n, dx + r * dx_stride, dx_stride, add);
}

// The number of rows of w that are decoded at a time. With kQuantStrip columns they have 32 KiB.
constexpr int64_t kPanelRows = 32;

// Computes dx[r, c] for c in [0, width). w points to the block of the first of these columns. width <= kQuantStrip is a multiple of the
// block size.
void linear_quant_bwd(const float *dy, int64_t dy_stride, int32_t type, const uint8_t *w, int64_t row_bytes, float *dx, int64_t dx_stride,
                      int64_t rows, int64_t width, int64_t n, bool add) {
  alignas(64) float panel[kPanelRows * kQuantStrip];
  constexpr int kColumns = kLanes == 16 ? 4 : 2;
  int64_t j = 0;
  do {  // runs once even if n is 0, so that dx is written
    const int64_t size = min64(kPanelRows, n - j);
    for (int64_t i = 0; i < size; i++) dequantise(type, w + (j + i) * row_bytes, panel + i * width, width);
    int64_t c = 0;
    for (; c + kColumns * kLanes <= width; c += kColumns * kLanes)
      outer_rows<kColumns>(dy + j, dy_stride, panel + c, width, size, dx + c, dx_stride, rows, add);
    for (; c < width; c += kLanes) outer_rows<1>(dy + j, dy_stride, panel + c, width, size, dx + c, dx_stride, rows, add);
    add = true;
    j += kPanelRows;
  } while (j < n);
}

}  // namespace
}  // namespace mgrpo::cpu
