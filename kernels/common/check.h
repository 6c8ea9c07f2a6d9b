// Argument checks of the kernels' C ABI.
#pragma once
#include <cstdint>
#include <initializer_list>

namespace mgrpo {

// Reports whether all sizes are at least 0 and a tensor of these sizes has fewer than 2^60 elements, so that no index or number of bytes
// overflows.
inline bool valid_sizes(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size < 0) return false;
    if (size == 0) continue;
    if (__builtin_mul_overflow(product, size, &product) || product >= int64_t{1} << 60) return false;
  }
  return true;
}

inline bool any_null(std::initializer_list<const void *> pointers) {
  for (const void *p : pointers)
    if (p == nullptr) return true;
  return false;
}

inline bool all_in_range(const int32_t *values, int64_t n, int64_t low, int64_t high) {
  for (int64_t i = 0; i < n; i++)
    if (values[i] < low || values[i] >= high) return false;
  return true;
}

}  // namespace mgrpo
