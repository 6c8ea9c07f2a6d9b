// The loops that multiply rows of float with rows of bfloat16.
#pragma once
#include "nn_ops.h"

namespace mgrpo::cpu {

// The loop of the set in use or, where `round` is not 0 and pairs of bfloat16 are multiplied without tiles, linear_rounded.
LinearBF16 linear_bf16(int32_t round);

// As NnOps::linear_bf16, but the rows of x are rounded to bfloat16. Needs multiplies_bf16_pairs().
void linear_rounded(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                    int64_t rows, int64_t k, int64_t n);

}  // namespace mgrpo::cpu
