// Checks of paged key-value caches.
#pragma once
#include <ATen/core/Tensor.h>

#include "mgrpo/pages.h"

inline mgrpo_pages pages_of(const at::Tensor &cache, const at::Tensor &table) {
  return {table.const_data_ptr<int32_t>(), table.size(0), table.size(1), cache.size(0), cache.size(1), cache.size(2), cache.size(3)};
}

// Throws unless cache is [N, kv, B, hd] and table [S, W], as kernels for tensors such as `like` read them. With `halves` the cache of
// float32 tensors on the CPU may be bfloat16.
inline void check_cache(const at::Tensor &cache, const at::Tensor &table, int64_t kv, int64_t hd, const at::Tensor &like,
                        bool halves = false) {
  const auto type = cache.scalar_type();
  const bool read = type == like.scalar_type() || (halves && like.is_cpu() && like.scalar_type() == at::kFloat && type == at::kBFloat16);
  TORCH_CHECK(
      cache.dim() == 4 && cache.size(1) == kv && cache.size(3) == hd && cache.is_contiguous() && read && cache.device() == like.device(),
      "the cache must be [N, ", kv, ", B, ", hd, "] of ", like.scalar_type(), ", contiguous and on ", like.device());
  TORCH_CHECK(table.dim() == 2 && table.is_contiguous() && table.scalar_type() == at::kInt && table.device() == like.device(),
              "the table must be int32 [S, W], contiguous and on ", like.device());
}
