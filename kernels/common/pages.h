// The argument check of a paged key-value cache.
#pragma once
#include "check.h"
#include "mgrpo/pages.h"

namespace mgrpo {

inline bool valid_pages(const mgrpo_pages &p) {
  return p.block > 0 && (p.block & (p.block - 1)) == 0 && valid_sizes({p.blocks, p.kv_heads, p.block, p.hd}) &&
         valid_sizes({p.sequences, p.width}) && valid_sizes({p.width, p.block}) && p.width * p.block <= INT32_MAX;
}

}  // namespace mgrpo
