// What sampling shares between CPU and GPU: the order of logits as integers and the settings' checks.
#pragma once
#include <math.h>

#include "mgrpo/sample.h"

namespace mgrpo {

// An integer that orders as the float does (no NaN): lets a cut be found by bisecting 32 bits instead of sorting.
MGRPO_HOST_DEVICE inline uint32_t order_key(float z) {
  union {
    float f;
    uint32_t bits;
  } u = {z + 0.0f};  // -0 becomes +0
  return u.bits & 0x80000000u ? ~u.bits : u.bits | 0x80000000u;
}

// The least t in [0, 2^32) for which holds(t) is true; holds must be monotone and true for 2^32 - 1.
template <class Holds>
MGRPO_HOST_DEVICE inline uint32_t least_key(const Holds &holds) {
  uint32_t low = 0, high = 0xFFFFFFFFu;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

inline bool valid(const mgrpo_sampling &s) {
  return s.temperature >= 0 && isfinite(s.temperature) && s.top_p >= 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 &&
         s.top_k >= 0;
}

MGRPO_HOST_DEVICE inline bool truncates(const mgrpo_sampling &s) {
  return s.top_k > 0 || (s.top_p > 0 && s.top_p < 1) || s.min_p > 0;
}

}  // namespace mgrpo
