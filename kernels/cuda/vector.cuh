// Vectors of a row's elements, as products of matrices take them.
#pragma once
#include "row.cuh"

namespace mgrpo::cuda {

constexpr int kVector = 8;  // elements that a thread loads at a time

// kVector elements of row [n] from `begin` on, 0 beyond it. kWhole: there are none beyond it, and all are aligned.
template <bool kWhole, class T>
__device__ inline void load_vector(const T *row, int64_t begin, int64_t n, float (&to)[kVector]) {
  constexpr int kWidth = Pack<T>::kWidth;
#pragma unroll
  for (int at = 0; at < kVector; at += kWidth) {
    const Pack<T> p = kWhole ? whole_pack(row + begin + at) : load_pack(row, begin + at, n, false);
#pragma unroll
    for (int i = 0; i < kWidth; i++) to[at + i] = kWhole || begin + at + i < n ? widen(p.at[i]) : 0;
  }
}

}  // namespace mgrpo::cuda
