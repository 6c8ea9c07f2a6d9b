// Argument checks of the gated delta rule.
#pragma once
#include <cmath>

#include "check.h"
#include "mgrpo/delta_rule.h"

namespace mgrpo {

constexpr int64_t kDeltaDimLimit = 256;

// Returns the number of columns of x.
inline int64_t delta_width(const mgrpo_delta_rule &rule) { return 2 * rule.key_heads * rule.key_dim + rule.value_heads * rule.value_dim; }

inline bool valid_rule(const mgrpo_delta_rule &rule, int64_t rows, int64_t states) {
  const auto dim = [](int64_t d) { return d >= 1 && d <= kDeltaDimLimit; };
  return rule.key_heads >= 1 && rule.value_heads >= 1 && rule.value_heads % rule.key_heads == 0 && dim(rule.key_dim) &&
         dim(rule.value_dim) && valid_sizes({rows, rule.value_heads, 2 * kDeltaDimLimit, 3}) &&
         valid_sizes({states, rule.value_heads, rule.key_dim, rule.value_dim, sizeof(float)});
}

}  // namespace mgrpo
