// Products of float32 matrices for training, on processors where they are faster than LibTorch's. The factors may be rounded to bfloat16,
// which processors with avx512_bf16 multiply twice as fast as float32.
#pragma once
#include "mgrpo/status.h"

// Element [i, j] is at data[i * row + j * column]; one of the two strides is 1.
typedef struct mgrpo_matrix {
  const float *data;
  int64_t row, column;
} mgrpo_matrix;

// y[i, j] = sum_p a[i, p] b[p, j], added to y if `add` is not 0. a [m, k], b [k, n], y [m, n] with rows y_row
// floats apart. If `round` is not 0, every element of a and b is rounded to the nearest bfloat16, ties to even. Numbers above
// 3.39e38 round to infinity. Such products are exact, and subnormal elements and sums become 0. Sums are float32: products
// are summed in blocks of up to 384 of k, and the blocks' sums are added. The bits of an element depend on its row of a and
// its column of b, not on other rows, columns or the number of threads. NaN and infinities propagate. Threads, aliasing and
// results are as in layers.h. MGRPO_OUT_OF_MEMORY if a thread cannot allocate its tile; y is then unspecified.
// MGRPO_UNSUPPORTED if the processor, limited by MGRPO_CPU_ISA, does not have avx512_bf16; call it without rows to test that.
MGRPO_API int32_t mgrpo_matmul_cpu(mgrpo_matrix a, mgrpo_matrix b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, int32_t add,
                                   int32_t round);
