// The check of adapters that the LoRA kernels of all backends share.
#pragma once
#include "check.h"
#include "mgrpo/lora.h"

namespace mgrpo {

// Returns the sum of the ranks r of an adapter's parts.
inline int64_t rank_of(const mgrpo_lora &a) {
  int64_t rank = 0;
  for (int64_t p = 0; p < a.count; p++) rank += a.parts[p].r;
  return rank;
}

// Reports whether two parts have a column in common.
inline bool overlap(const mgrpo_lora_part &a, const mgrpo_lora_part &b) { return a.from < b.from + b.n && b.from < a.from + a.n; }

// Reports whether an adapter fits a linear map to n columns. Parts must not have columns in common, because threads divide the columns of
// each part among them.
inline bool valid_lora(const mgrpo_lora &a, int64_t n) {
  if (a.count < 0 || a.count > MGRPO_LORA_PARTS || (a.count > 0 && any_null({a.values, a.parts}))) return false;
  for (int64_t p = 0; p < a.count; p++) {
    const mgrpo_lora_part &part = a.parts[p];
    if (part.r < 1 || part.r > MGRPO_LORA_RANK || part.n < 0 || part.from < 0 || part.n > n || part.from > n - part.n) return false;
    for (int64_t q = 0; q < p; q++)
      if (overlap(a.parts[q], part)) return false;
  }
  return rank_of(a) <= MGRPO_LORA_RANK;
}

inline bool valid_loras(const mgrpo_lora *adapters, int64_t count, int64_t rows, int64_t k, int64_t n) {
  if (count < 0 || !valid_sizes({rows, k}) || !valid_sizes({rows, n}) || (count > 0 && any_null({adapters}))) return false;
  for (int64_t i = 0; i < count; i++)
    if (!valid_lora(adapters[i], n) || !valid_sizes({rank_of(adapters[i]), k})) return false;
  return true;
}

}  // namespace mgrpo
