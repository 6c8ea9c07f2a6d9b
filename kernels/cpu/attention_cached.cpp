#include <cstring>
#include <new>
#include <vector>

#include "check.h"
#include "mgrpo/nn.h"
#include "nn_ops.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

// Consecutive (row, query head) pairs that read the same slot and key/value head.
struct Tile {
  int64_t kv_head;
  int64_t row;        // first row of the run of rows with one slot
  int64_t first, end; // pairs, numbered (row - run's first row) * group + query head of the group
};

std::vector<Tile> tiles_of(const int32_t *slot, int64_t rows, int64_t kv_heads, int64_t group) {
  std::vector<Tile> tiles;
  for (int64_t row = 0, next; row < rows; row = next) {
    for (next = row + 1; next < rows && slot[next] == slot[row];) next++;
    const int64_t pairs = (next - row) * group;
    for (int64_t h = 0; h < kv_heads; h++)
      for (int64_t first = 0; first < pairs; first += kAttentionTile)
        tiles.push_back({h, row, first, first + kAttentionTile < pairs ? first + kAttentionTile : pairs});
  }
  return tiles;
}

}  // namespace

int32_t mgrpo_cache_write_cpu(float *cache, const float *x, const int32_t *slot, const int32_t *pos, int64_t rows,
                              int64_t slots, int64_t kv_heads, int64_t max_len, int64_t hd) {
  if (!valid_sizes({slots, kv_heads, max_len, hd}) || !valid_sizes({rows, kv_heads, hd}))
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({slot, pos}) || !all_in_range(slot, rows, 0, slots) || !all_in_range(pos, rows, 0, max_len))
    return MGRPO_INVALID_ARGUMENT;
  if (kv_heads == 0 || hd == 0) return MGRPO_OK;
  if (any_null({cache, x})) return MGRPO_INVALID_ARGUMENT;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t h = 0; h < kv_heads; h++)
      std::memcpy(cache + ((slot[r] * kv_heads + h) * max_len + pos[r]) * hd, x + (r * kv_heads + h) * hd,
                  static_cast<size_t>(hd) * sizeof(float));
  return MGRPO_OK;
}

int32_t mgrpo_attention_cached_cpu(const float *q, const float *k_cache, const float *v_cache, const int32_t *slot,
                                   const int32_t *length, float *out, int64_t rows, int64_t slots, int64_t heads,
                                   int64_t kv_heads, int64_t max_len, int64_t hd, float scale, int64_t window) try {
  if (!valid_sizes({slots, kv_heads, max_len, hd}) || !valid_sizes({rows, heads, hd}) || kv_heads == 0 ||
      heads == 0 || heads % kv_heads != 0 || hd == 0 || hd > kMaxHeadDim || window < 0)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({q, slot, length, out}) || !all_in_range(slot, rows, 0, slots) ||
      !all_in_range(length, rows, 0, max_len + 1) || (max_len > 0 && any_null({k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  const int64_t group = heads / kv_heads;
  const std::vector<Tile> tiles = tiles_of(slot, rows, kv_heads, group);
  double keys = 0;
  for (int64_t r = 0; r < rows; r++) keys += static_cast<double>(length[r] - first_seen(length[r] - 1, window));
  parallel_for(static_cast<int64_t>(tiles.size()), 2 * keys * heads * hd, [&](int64_t t) {
    const Tile &tile = tiles[static_cast<size_t>(t)];
    const float *queries[kAttentionTile];
    float *outputs[kAttentionTile];
    int64_t lengths[kAttentionTile], longest = 0;
    int n = 0;
    for (int64_t pair = tile.first; pair < tile.end; pair++, n++) {
      const int64_t row = tile.row + pair / group, at = (row * heads + tile.kv_head * group + pair % group) * hd;
      queries[n] = q + at;
      outputs[n] = out + at;
      lengths[n] = length[row];
      if (longest < lengths[n]) longest = lengths[n];
    }
    const int64_t at = (slot[tile.row] * kv_heads + tile.kv_head) * max_len * hd;
    const KeySpan all{0, 0, longest};
    nn_ops().attend(queries, lengths, n, {&all, 1, k_cache + at, v_cache + at, hd}, hd, scale, window, outputs, nullptr);
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
