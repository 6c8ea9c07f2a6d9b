// Products with a weight matrix on a CPU.
#pragma once
#include "mgrpo/layers.h"

// y[r, j] = b[j] + sum_k x[r, k] w[j, k].  x [rows, k], w [n, k], b [n] or null, y [rows, n].
// w is read in place, without a packed copy.
MGRPO_API int32_t mgrpo_linear_cpu(const float *x, const float *w, const float *b_or_null, float *y, int64_t rows, int64_t k, int64_t n);

// The same with w in bfloat16. Each weight is converted to float32, and products and sums are float32. With "amx" x is the sum of two
// bfloat16, which differs from it by at most 2^-17 of each number. x is rounded to the nearest bfloat16, ties to even,
// if three conditions hold: `round` is not 0, the set in use is "avx512", and the CPU has avx512_bf16. Subnormal numbers
// and sums then become 0, and many rows take half the time. MGRPO_OUT_OF_MEMORY if a thread cannot allocate its rounded
// rows or tiles; y is then unspecified.
MGRPO_API int32_t mgrpo_linear_bf16_cpu(const float *x, const uint16_t *w, const float *b_or_null, float *y, int64_t rows, int64_t k,
                                        int64_t n, int32_t round);
