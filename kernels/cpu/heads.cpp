#include "mgrpo/heads.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <unordered_set>
#include <vector>

#include "bfloat16.h"
#include "heads.h"
#include "layer_loops.h"
#include "mgrpo/dtype.h"
#include "pages.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

// Rotates the queries or keys x [heads, hd] of a row. sign is -1 in the backward pass.
void rotate(const mgrpo_heads &layout, int64_t row, const float *x, int64_t heads, float *y, float sign) {
  const int64_t angle = layout.rotary > 0 ? layout.pos[row] * (layout.rotary / 2) : 0;
  layer_loops().rope(x, layout.cos + angle, layout.sin + angle, y, heads, layout.hd, layout.rotary, sign);
}

// Normalises and rotates the queries or keys x [heads, hd] of a row.
void prepare(const mgrpo_heads &layout, int64_t row, const float *x, const void *norm, int64_t heads, float *y, float *inv_rms_or_null) {
  if (norm != nullptr) {
    const int64_t groups = groups_of(layout, heads);
    layer_loops().rms_norm(x, nullptr, static_cast<const float *>(norm), layout.offset, layout.eps, nullptr, y,
                           inv_rms_or_null != nullptr ? inv_rms_or_null + row * groups : nullptr, groups, group_of(layout, heads));
    x = y;
  }
  rotate(layout, row, x, heads, y, 1);
}

void copy(const float *from, int64_t n, float *to) { std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }
void copy(const float *from, int64_t n, uint16_t *to) { std::transform(from, from + n, to, to_bfloat16); }

bool known_positions(const mgrpo_heads &layout, int64_t rows) {
  return has_angles(layout) && (layout.rotary == 0 || all_in_range(layout.pos, rows, 0, layout.max_pos));
}

// Sets *first to the place of each row's first head, in rows of hd floats of the cache. It is -1 if a later row has the same place. Returns
// false if a place is not in the cache.
bool places(const mgrpo_pages &pages, const int32_t *sequence, const int32_t *pos, int64_t rows, std::vector<int64_t> *first) {
  std::unordered_set<int64_t> taken;
  first->resize(static_cast<size_t>(rows));
  for (int64_t r = rows - 1; r >= 0; r--) {
    const int64_t block = pages.table[sequence[r] * pages.width + pos[r] / pages.block];
    if (block < 0 || block >= pages.blocks) return false;
    const int64_t place = block * pages.kv_heads * pages.block + pos[r] % pages.block;
    (*first)[static_cast<size_t>(r)] = taken.insert(place).second ? place : -1;
  }
  return true;
}

// Writes the queries, keys and values of rows [begin, end). W: the type of the caches, float or uint16_t for bfloat16. first is the
// result of places().
template <class W>
void cache_rows(const float *qkv, const mgrpo_heads &layout, float *q, W *k_cache, W *v_cache, int64_t block,
                const std::vector<int64_t> &first, int64_t begin, int64_t end) {
  const int64_t hd = layout.hd, queries = layout.heads * hd, keys = layout.kv_heads * hd;
  for (int64_t r = begin; r < end; r++) {
    const float *row = qkv + r * width_of(layout);
    float *to = q + r * queries;
    const int64_t place = first[static_cast<size_t>(r)];
    if (place >= 0) {
      prepare(layout, r, row + queries, layout.k_norm, layout.kv_heads, to,
              nullptr);  // the memory of the queries is free until they are written
      for (int64_t h = 0; h < layout.kv_heads; h++) {
        copy(to + h * hd, hd, k_cache + (place + h * block) * hd);
        copy(row + queries + keys + h * hd, hd, v_cache + (place + h * block) * hd);
      }
    }
    prepare(layout, r, row, layout.q_norm, layout.heads, to, nullptr);
  }
}

// Adds the gradient of the weights of the queries' or the keys' norm to dw. The queries or keys of a row begin at column `from`. One thread
// computes a column and adds its rows in order.
void add_dw(const mgrpo_heads &layout, int64_t heads, int64_t from, const float *dy, const float *qkv, const float *inv_rms, float *dw,
            int64_t rows) {
  const int64_t groups = groups_of(layout, heads), d = group_of(layout, heads);
  parallel_ranges(d, 16, static_cast<double>(rows) * heads * layout.hd, [=](int64_t begin, int64_t end) {
    layer_loops().rms_norm_dw(dy + from + begin, qkv + from + begin, inv_rms, dw + begin, rows * groups, d, end - begin, groups,
                              width_of(layout));
  });
}

}  // namespace

int32_t mgrpo_split_heads_cpu(const float *qkv, mgrpo_heads layout, float *q, float *k, float *v, float *inv_q_or_null,
                              float *inv_k_or_null, int64_t rows) {
  if (!valid_heads(layout, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!known_positions(layout, rows) || any_null({qkv, q, k, v})) return MGRPO_INVALID_ARGUMENT;
  const int64_t width = width_of(layout), queries = layout.heads * layout.hd, keys = layout.kv_heads * layout.hd;
  parallel_ranges(rows, 1, static_cast<double>(rows) * width, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const float *row = qkv + r * width;
      prepare(layout, r, row, layout.q_norm, layout.heads, q + r * queries, inv_q_or_null);
      prepare(layout, r, row + queries, layout.k_norm, layout.kv_heads, k + r * keys, inv_k_or_null);
      copy(row + queries + keys, keys, v + r * keys);
    }
  });
  return MGRPO_OK;
}

int32_t mgrpo_cache_heads_cpu(const float *qkv, mgrpo_heads layout, float *q, void *k_cache, void *v_cache, int32_t cache_dtype,
                              mgrpo_pages pages, const int32_t *sequence, int64_t rows) try {
  if (!valid_heads(layout, rows) || !valid_pages(pages) || pages.kv_heads != layout.kv_heads || pages.hd != layout.hd ||
      (cache_dtype != MGRPO_FLOAT32 && cache_dtype != MGRPO_BFLOAT16))
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({qkv, q, k_cache, v_cache, pages.table, sequence, layout.pos}) || !known_positions(layout, rows) ||
      !all_in_range(sequence, rows, 0, pages.sequences) || !all_in_range(layout.pos, rows, 0, pages.width * pages.block))
    return MGRPO_INVALID_ARGUMENT;
  std::vector<int64_t> first;
  if (!places(pages, sequence, layout.pos, rows, &first)) return MGRPO_INVALID_ARGUMENT;
  const auto write = [&](auto *k, auto *v) {
    parallel_ranges(rows, 1, static_cast<double>(rows) * width_of(layout),
                    [=, &first](int64_t begin, int64_t end) { cache_rows(qkv, layout, q, k, v, pages.block, first, begin, end); });
  };
  if (cache_dtype == MGRPO_BFLOAT16)
    write(static_cast<uint16_t *>(k_cache), static_cast<uint16_t *>(v_cache));
  else
    write(static_cast<float *>(k_cache), static_cast<float *>(v_cache));
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_split_heads_bwd_cpu(const float *dq, const float *dk, const float *dv, const float *qkv_or_null, mgrpo_heads layout,
                                  const float *inv_q_or_null, const float *inv_k_or_null, float *dqkv, float *dw_q_or_null,
                                  float *dw_k_or_null, int64_t rows) {
  if (!valid_heads(layout, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!known_positions(layout, rows) || any_null({dq, dk, dv, dqkv}) ||
      (normalised(layout) && any_null({qkv_or_null, inv_q_or_null, inv_k_or_null})))
    return MGRPO_INVALID_ARGUMENT;
  const int64_t width = width_of(layout), queries = layout.heads * layout.hd, keys = layout.kv_heads * layout.hd;
  const double work = static_cast<double>(rows) * width;
  parallel_ranges(rows, 1, work, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      float *to = dqkv + r * width;
      rotate(layout, r, dq + r * queries, layout.heads, to, -1);
      rotate(layout, r, dk + r * keys, layout.kv_heads, to + queries, -1);
      copy(dv + r * keys, keys, to + queries + keys);
    }
  });
  if (!normalised(layout)) return MGRPO_OK;
  // dw is computed first, because then dx overwrites the gradients of the normalised values.
  if (dw_q_or_null != nullptr) add_dw(layout, layout.heads, 0, dqkv, qkv_or_null, inv_q_or_null, dw_q_or_null, rows);
  if (dw_k_or_null != nullptr) add_dw(layout, layout.kv_heads, queries, dqkv, qkv_or_null, inv_k_or_null, dw_k_or_null, rows);
  parallel_ranges(rows, 1, work, [=](int64_t begin, int64_t end) {
    const auto back = [&](int64_t r, int64_t from, int64_t heads, const void *norm, const float *inv_rms) {
      const int64_t groups = groups_of(layout, heads), at = r * width + from;
      layer_loops().rms_norm_dx(dqkv + at, qkv_or_null + at, static_cast<const float *>(norm), layout.offset, inv_rms + r * groups, nullptr,
                                dqkv + at, groups, group_of(layout, heads));
    };
    for (int64_t r = begin; r < end; r++) {
      back(r, 0, layout.heads, layout.q_norm, inv_q_or_null);
      back(r, queries, layout.kv_heads, layout.k_norm, inv_k_or_null);
    }
  });
  return MGRPO_OK;
}
