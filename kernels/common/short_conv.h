// Argument checks of the short convolution.
#pragma once
#include "check.h"
#include "mgrpo/short_conv.h"
#include "pages.h"

namespace mgrpo {

constexpr int kMaxTaps = 8;

inline bool valid_conv(const mgrpo_short_conv &conv, int64_t rows) {
  return conv.d > 0 && conv.width >= 1 && conv.width <= kMaxTaps && valid_sizes({rows, conv.d, 3}) &&
         valid_sizes({conv.d, kMaxTaps + 1, sizeof(float)});
}

inline bool valid_conv_cache(const mgrpo_short_conv &conv, const mgrpo_pages &pages) {
  return valid_pages(pages) && pages.kv_heads == 1 && pages.hd == conv.d;
}

}  // namespace mgrpo
