// Vectors of kVector elements of a row, which the kernels of matrix products load.
#pragma once
#include "pack.cuh"

namespace mgrpo::cuda {

constexpr int kVector = 8;  // elements that a thread loads at a time

// Loads kVector elements of row [n] from `begin` on. Elements after the end of the row are 0. kWhole: the vector is aligned and does not
// pass the end of the row.
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
