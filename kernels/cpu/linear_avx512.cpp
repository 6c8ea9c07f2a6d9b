// Products of rows that are rounded to bfloat16 with rows of bfloat16, for x86-64 with AVX-512 and avx512_bf16. kernels/CMakeLists.txt sets
// the compiler flags of this file.
#if defined(__x86_64__)
#include "layer_loops.h"
#include "linear_dot.h"
#include "scratch.h"

namespace mgrpo::cpu {
namespace {

// Rounds k numbers to bfloat16.
void round_row(const float *x, int64_t k, uint16_t *to) {
  for (int64_t i = 0; i < k; i += 16) {
    const __mmask16 kept = lane_mask(min64(k - i, 16));
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(kept, x + i));
    _mm256_store_si256(reinterpret_cast<__m256i *>(to + i), (__m256i)rounded);
  }
}

}  // namespace

void linear_rounded(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                    int64_t rows, int64_t k, int64_t n) {
  static thread_local Scratch scratch;
  const int64_t stride = (k + 31) / 32 * 32, rows_at_once = cached_rows(stride / 2), blocks = (rows + rows_at_once - 1) / rows_at_once;
  uint16_t *rounded = reinterpret_cast<uint16_t *>(scratch.at_least(min64(rows, rows_at_once) * stride * 2));
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t first = rows * i / blocks, count = rows * (i + 1) / blocks - first;
    for (int64_t r = 0; r < count; r++) round_row(x + (first + r) * x_stride, k, rounded + r * stride);
    dot_block(RowsOf<uint16_t>{rounded, stride}, count, w, w_stride, n, k, b, y + first * y_stride, y_stride, w);
  }
}

}  // namespace mgrpo::cpu
#endif
