// Products of float32 matrices whose factors are rounded to bfloat16, for training on processors that multiply bfloat16
// twice as fast as float32 (avx512_bf16).
#pragma once
#include "mgrpo/status.h"

// Element [i, j] is at data[i * row + j * column]; one of the two strides is 1.
typedef struct mgrpo_matrix {
  const float *data;
  int64_t row, column;
} mgrpo_matrix;

// y[i, j] = sum_p a[i, p] b[p, j], to which what y has is added where `add` is not 0.  a [m, k], b [k, n], y [m, n] with rows
// y_row floats apart.
// Every element of a and b is rounded to the nearest bfloat16, even on ties; subnormal ones, and subnormal sums, count as 0. Products are
// exact, and sums are float32 in an order that k alone decides: the bits of an element depend on its row of a and its column of
// b, not on other rows, columns or the number of threads. NaN and infinities go where they go in float32, and so do numbers
// above 3.39e38, which round to infinity.
// Threads, aliasing and results as in nn.h, but a thread that gets no memory for its tile ends the process. MGRPO_UNSUPPORTED where the processor, or what MGRPO_CPU_ISA leaves of it, has no
// such instructions; a call without rows asks for them.
MGRPO_API int32_t mgrpo_matmul_bf16_cpu(mgrpo_matrix a, mgrpo_matrix b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n,
                                        int32_t add);
