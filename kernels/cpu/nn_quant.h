// Matrices in GGUF's blocks (common/quant_block.h): a few rows become float32 in the first-level cache and are multiplied
// there, by the loops of nn_dot.h or, for the gradient of the inputs, by the tiles below.
#pragma once
#include <cstring>

#include "mgrpo/quant.h"
#include "nn_dot.h"
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

// kLanes bytes, widened. Compilers do not find these instructions in a conversion of vectors.
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

// The bits [from, from + kLanes) of a word, one a lane.
MGRPO_INLINE VecInt bits_of(uint32_t word, int from) { return (static_cast<int32_t>(word) - VecInt{}) >> lanes_from(from) & 1; }

MGRPO_INLINE uint32_t word_at(const uint8_t *p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

// f(vector, first weight, first byte, shift) for the vectors of 32 weights in 16 bytes.
template <class F>
MGRPO_INLINE void each_of_32(const F &f) {
  MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) f(i, i % 16, i / 16 * 4);
}

struct Q4_0 {
  static constexpr int32_t kType = MGRPO_Q4_0;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    const Vec d = splat(half_of(b));
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE {
      store(y + i, d * floats_of((bytes_at(b + 2 + byte) >> shift & 15) - 8));
    });
  }
};

struct Q4_1 {
  static constexpr int32_t kType = MGRPO_Q4_1;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    const Vec d = splat(half_of(b)), m = splat(half_of(b + 2));
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE {
      store(y + i, fma(floats_of(bytes_at(b + 4 + byte) >> shift & 15), d, m));
    });
  }
};

struct Q5_0 {
  static constexpr int32_t kType = MGRPO_Q5_0;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    const Vec d = splat(half_of(b));
    const uint32_t high = word_at(b + 2);
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE {
      store(y + i, d * floats_of((bytes_at(b + 6 + byte) >> shift & 15) + (bits_of(high, i) << 4) - 16));
    });
  }
};

struct Q5_1 {
  static constexpr int32_t kType = MGRPO_Q5_1;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    const Vec d = splat(half_of(b)), m = splat(half_of(b + 2));
    const uint32_t high = word_at(b + 4);
    each_of_32([&](int i, int byte, int shift) MGRPO_LAMBDA_INLINE {
      store(y + i, fma(floats_of((bytes_at(b + 8 + byte) >> shift & 15) + (bits_of(high, i) << 4)), d, m));
    });
  }
};

struct Q8_0 {
  static constexpr int32_t kType = MGRPO_Q8_0;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    const Vec d = splat(half_of(b));
    MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes)
      store(y + i, d * floats_of(signed_at(b + 2 + i)));
  }
};

// The scales of the 8 groups of a block of Q4_K or Q5_K times d, then the minima times dmin.
MGRPO_INLINE void group_scales(const uint8_t *b, float *scales) {
  const uint32_t p0 = word_at(b + 4), p1 = word_at(b + 8), p2 = word_at(b + 12);
  const uint32_t words[4] = {p0 & 0x3F3F3F3F, (p2 & 0x0F0F0F0F) | (p0 >> 6 & 0x03030303) << 4, p1 & 0x3F3F3F3F,
                             (p2 >> 4 & 0x0F0F0F0F) | (p1 >> 6 & 0x03030303) << 4};
  uint8_t packed[16];
  memcpy(packed, words, sizeof packed);
  const Vec d = splat(half_of(b)), dmin = splat(half_of(b + 2));
  MGRPO_UNROLL for (int i = 0; i < 16; i += kLanes)
    store(scales + i, floats_of(bytes_at(packed + i)) * (lanes_from(i) < 8 ? d : dmin));
}

struct Q4_K {
  static constexpr int32_t kType = MGRPO_Q4_K;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    alignas(64) float scales[16];
    group_scales(b, scales);
    MGRPO_UNROLL for (int g = 0; g < 8; g += 2) {
      const Vec low = splat(scales[g]), low_min = splat(scales[8 + g]);
      const Vec high = splat(scales[g + 1]), high_min = splat(scales[9 + g]);
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt q = bytes_at(b + 16 + 16 * g + i);
        store(y + 32 * g + i, fma(floats_of(q & 15), low, -low_min));
        store(y + 32 * g + 32 + i, fma(floats_of(q >> 4), high, -high_min));
      }
    }
  }
};

struct Q5_K {
  static constexpr int32_t kType = MGRPO_Q5_K;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    alignas(64) float scales[16];
    group_scales(b, scales);
    MGRPO_UNROLL for (int g = 0; g < 8; g += 2) {
      const Vec low = splat(scales[g]), low_min = splat(scales[8 + g]);
      const Vec high = splat(scales[g + 1]), high_min = splat(scales[9 + g]);
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt q = bytes_at(b + 48 + 16 * g + i), fifth = bytes_at(b + 16 + i) >> g;
        store(y + 32 * g + i, fma(floats_of((q & 15) + ((fifth & 1) << 4)), low, -low_min));
        store(y + 32 * g + 32 + i, fma(floats_of((q >> 4) + ((fifth & 2) << 3)), high, -high_min));
      }
    }
  }
};

struct Q6_K {
  static constexpr int32_t kType = MGRPO_Q6_K;
  static MGRPO_INLINE void decode(const uint8_t *b, float *y) {
    alignas(64) float scales[16];
    const Vec d = splat(half_of(b + 208));
    MGRPO_UNROLL for (int i = 0; i < 16; i += kLanes) store(scales + i, floats_of(signed_at(b + 192 + i)) * d);
    MGRPO_UNROLL for (int half = 0; half < 2; half++)
      MGRPO_UNROLL for (int i = 0; i < 32; i += kLanes) {
        const VecInt even = bytes_at(b + 64 * half + i), odd = bytes_at(b + 64 * half + 32 + i);
        const VecInt high = bytes_at(b + 128 + 32 * half + i);
        const float *scale = scales + 8 * half + i / 16;
        float *to = y + 128 * half + i;
        store(to, floats_of((even & 15) + ((high & 3) << 4) - 32) * splat(scale[0]));
        store(to + 32, floats_of((odd & 15) + ((high & 12) << 2) - 32) * splat(scale[2]));
        store(to + 64, floats_of((even >> 4) + (high & 48) - 32) * splat(scale[4]));
        store(to + 96, floats_of((odd >> 4) + (high >> 6 << 4) - 32) * splat(scale[6]));
      }
  }
};

// f(block type) for a type of mgrpo_quant.
template <class F>
MGRPO_INLINE void for_blocks(int32_t type, const F &f) {
  switch (type) {
    case MGRPO_Q4_0: return f(Q4_0{});
    case MGRPO_Q4_1: return f(Q4_1{});
    case MGRPO_Q5_0: return f(Q5_0{});
    case MGRPO_Q5_1: return f(Q5_1{});
    case MGRPO_Q8_0: return f(Q8_0{});
    case MGRPO_Q4_K: return f(Q4_K{});
    case MGRPO_Q5_K: return f(Q5_K{});
    case MGRPO_Q6_K: return f(Q6_K{});
  }
}

// Bytes ahead of those that are read for which memory is asked: some microseconds of a decode.
constexpr int64_t kQuantAhead = 4096;

// Some blocks, which follow each other, into y.
template <class Block>
__attribute__((noinline)) void decode_blocks(const uint8_t *w, int64_t blocks, float *y) {
  constexpr QuantSize kSize = quant_size(Block::kType);
  for (int64_t i = 0; i < blocks; i++) {
    const uint8_t *b = w + i * kSize.bytes;
    for (int64_t line = 0; line < kSize.bytes; line += kLineBytes) __builtin_prefetch(b + kQuantAhead + line, 0, 2);
    Block::decode(b, y + i * kSize.length);
  }
}

void dequantise(int32_t type, const uint8_t *w, float *y, int64_t k) {
  for_blocks(type, [=](auto block) { decode_blocks<decltype(block)>(w, k / quant_size(block.kType).length, y); });
}

// As linear() of nn_dot.h, w in blocks: as many rows of w as a pass of the tiles takes are decoded, then multiplied.
void linear_quant(const float *x, int64_t x_stride, int32_t type, const uint8_t *w, const float *b, float *y, int64_t y_stride,
                  int64_t rows, int64_t k, int64_t n) {
  alignas(64) float wide[MGRPO_QUANT_COLUMNS];
  const int64_t row_bytes = quant_row_bytes(type, k);
  const int64_t most = max64(kDotCachedFloats / max64(k, 1) / kDotRows, 5) * kDotRows;
  const int64_t blocks = (rows + most - 1) / most;
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t r = rows * i / blocks, m = rows * (i + 1) / blocks - r;
    const StridedRows some{x + r * x_stride, x_stride};
    const int64_t at_once = m == 1 ? 8 : outputs_at_once(plan_tiles(m));
    const int64_t outputs = k > 0 ? max64(min64(at_once, MGRPO_QUANT_COLUMNS / k), 1) : n;
    for (int64_t j = 0; j < n; j += outputs) {
      const int64_t size = min64(outputs, n - j);
      dequantise(type, w + j * row_bytes, wide, size * k);
      dot_all<false>(some, m, wide, k, size, k, b != nullptr ? b + j : nullptr, y + r * y_stride + j, y_stride,
                     static_cast<const float *>(nullptr));
    }
  }
}

// A tile of M rows and C vectors of columns of dx, to which n rows of the panel w [n, kQuantStrip] are added one after the
// other: an element is one chain of multiply-adds, whatever its tile.
template <int M, int C>
MGRPO_INLINE void outer_tile(const float *dy, int64_t dy_stride, const float *w, int64_t w_stride, int64_t n, float *dx,
                             int64_t dx_stride, bool add) {
  Vec acc[M][C];
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int c = 0; c < C; c++) acc[m][c] = add ? load(dx + m * dx_stride + c * kLanes) : Vec{};
  for (int64_t j = 0; j < n; j++) {
    Vec ws[C];
    MGRPO_UNROLL for (int c = 0; c < C; c++) ws[c] = load(w + j * w_stride + c * kLanes);
    MGRPO_UNROLL for (int m = 0; m < M; m++) {
      const Vec d = splat(dy[m * dy_stride + j]);
      MGRPO_UNROLL for (int c = 0; c < C; c++) acc[m][c] = fma(d, ws[c], acc[m][c]);
    }
  }
  MGRPO_UNROLL for (int m = 0; m < M; m++)
    MGRPO_UNROLL for (int c = 0; c < C; c++) store(dx + m * dx_stride + c * kLanes, acc[m][c]);
}

template <int C>
void outer_rows(const float *dy, int64_t dy_stride, const float *w, int64_t w_stride, int64_t n, float *dx, int64_t dx_stride,
                int64_t rows, bool add) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6)
    outer_tile<6, C>(dy + r * dy_stride, dy_stride, w, w_stride, n, dx + r * dx_stride, dx_stride, add);
  for (; r < rows; r++) outer_tile<1, C>(dy + r * dy_stride, dy_stride, w, w_stride, n, dx + r * dx_stride, dx_stride, add);
}

// Rows of w that are decoded at once, of kQuantStrip columns: 32 KiB.
constexpr int64_t kPanelRows = 32;

// dx[r, c] for c in [0, width): w is at the first of these columns' blocks; width <= kQuantStrip is whole blocks.
void linear_quant_bwd(const float *dy, int64_t dy_stride, int32_t type, const uint8_t *w, int64_t row_bytes, float *dx,
                      int64_t dx_stride, int64_t rows, int64_t width, int64_t n, bool add) {
  alignas(64) float panel[kPanelRows * kQuantStrip];
  constexpr int kColumns = kLanes == 16 ? 4 : 2;
  int64_t j = 0;
  do {  // also where n is 0: dx is written
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
