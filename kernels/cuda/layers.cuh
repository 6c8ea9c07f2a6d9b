// Shared by the kernels of a model's layers: element types and loops over rows.
#pragma once
#include <initializer_list>

#include "check.h"
#include "device.h"
#include "pack.cuh"

namespace mgrpo::cuda {

// Calls f(T{}) with the element type of dtype.
template <class F>
int32_t for_dtype(int32_t dtype, const F &f) {
  switch (dtype) {
    case MGRPO_FLOAT32:
      return f(float{});
    case MGRPO_BFLOAT16:
      return f(__nv_bfloat16{});
  }
  return MGRPO_INVALID_ARGUMENT;
}

// Returns the number of packs that n elements need.
template <class T>
__host__ __device__ constexpr int64_t packs_of(int64_t n) {
  return (n + Pack<T>::kWidth - 1) / Pack<T>::kWidth;
}

// Reports whether rows of d elements consist of whole packs, and whether all the addresses are aligned.
template <class T>
bool whole_packs(int64_t d, std::initializer_list<const void *> addresses) {
  for (const void *p : addresses)
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) return false;
  return d % Pack<T>::kWidth == 0;
}

}  // namespace mgrpo::cuda
