#include <cstddef>
#include <new>
#include <vector>

#include "check.h"
#include "mgrpo/nn.h"
#include "nn_ops.h"
#include "parallel.h"

using namespace mgrpo::cpu;

namespace {

// Whether cu names `batch` sequences end to end and the head sizes fit together.
bool valid_layout(const int32_t *cu, int64_t batch, int64_t heads, int64_t kv_heads, int64_t hd) {
  if (batch < 0 || cu == nullptr || cu[0] != 0) return false;
  for (int64_t s = 0; s < batch; s++)
    if (cu[s + 1] < cu[s]) return false;
  return heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && hd > 0 && hd <= kMaxHeadDim &&
         valid_sizes({cu[batch], heads, hd});
}

double pair_work(const int32_t *cu, int64_t batch, int64_t heads, int64_t hd) {
  double pairs = 0;
  for (int64_t s = 0; s < batch; s++) {
    const double length = cu[s + 1] - cu[s];
    pairs += length * length / 2;
  }
  return 2 * pairs * heads * hd;
}

// Consecutive (row, query head) pairs of one sequence and one key/value head.
struct Tile {
  int32_t start;      // the sequence's first row
  int64_t kv_head;
  int64_t first, end; // pairs, numbered row * group + query head of the group
};

std::vector<Tile> tiles_of(const int32_t *cu, int64_t batch, int64_t kv_heads, int64_t group) {
  std::vector<Tile> tiles;
  for (int64_t s = 0; s < batch; s++) {
    const int64_t pairs = (cu[s + 1] - cu[s]) * group;
    for (int64_t h = 0; h < kv_heads; h++)
      for (int64_t first = 0; first < pairs; first += kAttentionTile)
        tiles.push_back({cu[s], h, first, first + kAttentionTile < pairs ? first + kAttentionTile : pairs});
  }
  return tiles;
}

}  // namespace

int32_t mgrpo_attention_packed_cpu(const float *q, const float *k, const float *v, const int32_t *cu, int64_t batch,
                                   float *out, float *lse, int64_t heads, int64_t kv_heads, int64_t hd,
                                   float scale) try {
  if (!valid_layout(cu, batch, heads, kv_heads, hd)) return MGRPO_INVALID_ARGUMENT;
  if (cu[batch] == 0) return MGRPO_OK;
  if (any_null({q, k, v, out, lse})) return MGRPO_INVALID_ARGUMENT;
  const int64_t group = heads / kv_heads, q_stride = heads * hd, kv_stride = kv_heads * hd;
  const std::vector<Tile> tiles = tiles_of(cu, batch, kv_heads, group);
  const auto attend_tile = [&](int64_t t) {
    const Tile &tile = tiles[static_cast<size_t>(t)];
    const float *queries[kAttentionTile];
    float *outputs[kAttentionTile], *sums[kAttentionTile];
    int64_t length[kAttentionTile];
    int rows = 0;
    for (int64_t pair = tile.first; pair < tile.end; pair++, rows++) {
      const int64_t row = tile.start + pair / group, head = tile.kv_head * group + pair % group;
      queries[rows] = q + row * q_stride + head * hd;
      outputs[rows] = out + row * q_stride + head * hd;
      sums[rows] = lse + row * heads + head;
      length[rows] = pair / group + 1;
    }
    const int64_t at = tile.start * kv_stride + tile.kv_head * hd;
    nn_ops().attend(queries, length, rows, k + at, v + at, kv_stride, hd, scale, outputs, sums);
  };
  parallel_for(static_cast<int64_t>(tiles.size()), pair_work(cu, batch, heads, hd), attend_tile);
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_attention_packed_bwd_cpu(const float *dout, const float *q, const float *k, const float *v,
                                       const float *out, const float *lse, const int32_t *cu, int64_t batch,
                                       float *dq, float *dk, float *dv, int64_t heads, int64_t kv_heads, int64_t hd,
                                       float scale) {
  if (!valid_layout(cu, batch, heads, kv_heads, hd)) return MGRPO_INVALID_ARGUMENT;
  if (cu[batch] == 0) return MGRPO_OK;
  if (any_null({dout, q, k, v, out, lse, dq, dk, dv})) return MGRPO_INVALID_ARGUMENT;
  const int64_t group = heads / kv_heads, q_stride = heads * hd, kv_stride = kv_heads * hd;
  // One task a (sequence, key/value head): all sums into its dk and dv happen in one order.
  parallel_for(batch * kv_heads, 2.5 * pair_work(cu, batch, heads, hd), [=](int64_t task) {
    const int64_t start = cu[task / kv_heads], length = cu[task / kv_heads + 1] - start, h = task % kv_heads;
    const int64_t q_at = start * q_stride + h * group * hd, kv_at = start * kv_stride + h * hd;
    nn_ops().attend_bwd({q + q_at, k + kv_at, v + kv_at, length, group, hd, q_stride, kv_stride, scale},
                        {dout + q_at, out + q_at, lse + start * heads + h * group, dq + q_at, dk + kv_at, dv + kv_at});
  });
  return MGRPO_OK;
}
