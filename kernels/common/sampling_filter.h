// The check of sampling settings, and whether they truncate the distribution, for the CPU and the GPU.
#pragma once
#include "mgrpo/sample.h"
#include "temperature.h"

namespace mgrpo {

inline bool valid(const mgrpo_sampling &s) {
  return (s.temperature == 0 || valid_temperature(s.temperature)) && s.top_p >= 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 &&
         s.top_k >= 0;
}

MGRPO_HOST_DEVICE inline bool truncates(const mgrpo_sampling &s) { return s.top_k > 0 || (s.top_p > 0 && s.top_p < 1) || s.min_p > 0; }

}  // namespace mgrpo
