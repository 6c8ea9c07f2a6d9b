// The heads of queries, keys and values in the rows of a product.
#pragma once
#include "check.h"
#include "mgrpo/heads.h"

namespace mgrpo {

// Returns the number of columns of the product.
inline int64_t width_of(const mgrpo_heads &h) { return (h.heads + 2 * h.kv_heads) * h.hd; }

inline bool normalised(const mgrpo_heads &h) { return h.q_norm != nullptr; }

// Return the size of a group, whose values are normalised together, and the number of groups in a row.
inline int64_t group_of(const mgrpo_heads &h, int64_t heads) { return h.whole ? heads * h.hd : h.hd; }
inline int64_t groups_of(const mgrpo_heads &h, int64_t heads) { return h.whole ? 1 : heads; }

inline bool valid_heads(const mgrpo_heads &h, int64_t rows) {
  if (h.heads <= 0 || h.kv_heads <= 0 || h.heads > INT32_MAX || h.kv_heads > h.heads || h.heads % h.kv_heads != 0 || h.hd <= 0 ||
      h.hd > INT32_MAX / (h.heads + 2 * h.kv_heads))
    return false;
  return valid_sizes({rows, width_of(h)}) && valid_sizes({h.max_pos, h.hd}) && h.rotary >= 0 && h.rotary <= h.hd && h.rotary % 2 == 0 &&
         (h.q_norm == nullptr) == (h.k_norm == nullptr) && (!normalised(h) || h.eps >= 0);
}

// Reports whether the tables and positions that the rotation needs are given.
inline bool has_angles(const mgrpo_heads &h) {
  return h.rotary == 0 || (h.pos != nullptr && (h.max_pos == 0 || !any_null({h.cos, h.sin})));
}

}  // namespace mgrpo
