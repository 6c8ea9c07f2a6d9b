// Argument checks of packed segments.
#pragma once
#include <cstdint>

namespace mgrpo {

// Reports whether cu [batch + 1] rises from 0 and each segment follows an earlier row or no row.
inline bool valid_segments(const int32_t *cu, const int32_t *follows_or_null, int64_t batch) {
  if (batch < 0 || cu == nullptr || cu[0] != 0) return false;
  for (int64_t s = 0; s < batch; s++)
    if (cu[s + 1] < cu[s] || (follows_or_null != nullptr && (follows_or_null[s] < -1 || follows_or_null[s] >= cu[s]))) return false;
  return true;
}

}  // namespace mgrpo
