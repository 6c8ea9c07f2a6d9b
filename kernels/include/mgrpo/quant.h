// Matrices quantised in GGUF's formats: rows of blocks, little endian, without gaps. A weight is dequantised to float32,
// and products and sums are float32.
//
// Layout, batch invariance, threads, aliasing and statuses are as in mgrpo/layers.h. A matrix w [n, k] has n rows of
// mgrpo_quant_row_bytes(type, k) bytes and need not be aligned; MGRPO_INVALID_ARGUMENT if that number is negative.
// Block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
#pragma once
#include "mgrpo/status.h"

// The numbers are GGUF's.
enum mgrpo_quant {
  MGRPO_Q4_0 = 2,
  MGRPO_Q4_1 = 3,
  MGRPO_Q5_0 = 6,
  MGRPO_Q5_1 = 7,
  MGRPO_Q8_0 = 8,
  MGRPO_Q4_K = 12,
  MGRPO_Q5_K = 13,
  MGRPO_Q6_K = 14,
};

// The maximum number of columns of a matrix in mgrpo_linear_quant_cpu.
#define MGRPO_QUANT_COLUMNS (1 << 16)

// Returns the bytes of a row of k weights, or -1 if the type is unknown or k is not a multiple of its block (256 for types
// with K, else 32).
MGRPO_API int64_t mgrpo_quant_row_bytes(int32_t type, int64_t k);

// y[i] = w[rows[i]], or w[i] if rows is null.  rows [count] in [0, n), else MGRPO_INVALID_ARGUMENT; y [count, k].
MGRPO_API int32_t mgrpo_dequantise_cpu(const void *w, int32_t type, const int32_t *rows_or_null, float *y, int64_t count, int64_t n,
                                       int64_t k);

// y[r, j] = b[j] + sum_k x[r, k] w[j, k].  x [rows, k], b [n] or null, y [rows, n] with y_stride >= n floats from one row to
// the next. k is at most MGRPO_QUANT_COLUMNS. mgrpo_linear_cpu with w in float32 gives the same bits.
MGRPO_API int32_t mgrpo_linear_quant_cpu(const float *x, const void *w, int32_t type, const float *b_or_null, float *y, int64_t y_stride,
                                         int64_t rows, int64_t k, int64_t n);

// The gradient of x: dx[r, k] = sum_j dy[r, j] w[j, k], added to dx if add is not 0.  dy [rows, n] with
// dy_stride >= n, dx [rows, k].
MGRPO_API int32_t mgrpo_linear_quant_bwd_input_cpu(const float *dy, int64_t dy_stride, const void *w, int32_t type, float *dx, int64_t rows,
                                                   int64_t k, int64_t n, int32_t add);

// Does what mgrpo_dequantise_cpu does, on a GPU. Arrays are in device memory. y is float32 or bfloat16, rounded once. A row outside of w
// gives NaN. On a GPU LibTorch computes products, with some rows of w at a time.
MGRPO_API int32_t mgrpo_dequantise_cuda(const void *w, int32_t type, const int32_t *rows_or_null, int32_t dtype, void *y, int64_t count,
                                        int64_t n, int64_t k, void *stream);
