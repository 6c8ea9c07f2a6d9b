// The conversion to bfloat16, for the CPU and the GPU.
#pragma once
#include <stdint.h>

#include "mgrpo/status.h"

namespace mgrpo {

// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
MGRPO_HOST_DEVICE inline uint16_t to_bfloat16(float value) {
  union {
    float f;
    uint32_t bits;
  } u = {value};
  if (value != value) return (uint16_t)((u.bits >> 16) | 0x40);
  return (uint16_t)((u.bits + 0x7FFF + ((u.bits >> 16) & 1)) >> 16);
}

}  // namespace mgrpo
