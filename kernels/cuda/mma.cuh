// Products of small bf16 matrices on tensor cores (sm_80 and later).
#pragma once
#include <cuda_bf16.h>
#ifndef __CUDACC__
#include "mma.h"  // kernels/test/emulator
#endif

namespace mgrpo::cuda {

// Computes c += a b for a [16, 16], b [16, 8] and c [16, 8]. The 32 lanes of a warp hold the matrices together, and every lane calls it.
// Lane 4 g + t holds the following numbers (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"). A register contains two
// bf16 numbers, the first in the lower half.
//   a  rows g and g + 8 of columns 2 t, 2 t + 1 in a[0] and a[1], rows g and g + 8 of columns 2 t + 8, 2 t + 9 in a[2] and a[3];
//   b  rows 2 t, 2 t + 1 of column g in b[0], rows 2 t + 8, 2 t + 9 of it in b[1];
//   c  row g of columns 2 t, 2 t + 1 in c[0] and c[1], row g + 8 of them in c[2] and c[3].
// Products are exact. Sums are float32, and they are truncated instead of rounded.
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDACC__
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::mma(c, a, b);
#endif
}

// Returns two numbers as bf16, the first in the lower half.
__device__ inline unsigned bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  unsigned bits;
  __builtin_memcpy(&bits, &pair, sizeof bits);
  return bits;
}
__device__ inline float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

}  // namespace mgrpo::cuda
