#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "check.h"
#include "layer_loops.h"
#include "mgrpo/attention.h"
#include "parallel.h"
#include "segments.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

// Reports whether cu and follows describe valid segments, and whether the sizes of the heads are valid.
bool valid_layout(const int32_t *cu, const int32_t *follows, int64_t batch, int64_t heads, int64_t kv_heads, int64_t hd, int64_t window) {
  return valid_segments(cu, follows, batch) && window >= 0 && heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && hd > 0 &&
         hd <= kMaxHeadDim && valid_sizes({cu[batch], heads, hd});
}

// The keys of each segment: the rows that its last row attends to, from the beginning of the sequence on.
class Contexts {
 public:
  Contexts(const int32_t *cu, const int32_t *follows, int64_t batch) : first_{0} {
    for (int64_t s = 0; s < batch; s++) {
      int64_t position = 0;
      if (follows != nullptr && follows[s] >= 0) {
        const int64_t p = std::upper_bound(cu, cu + s + 1, follows[s]) - cu - 1;  // the segment that contains the row
        for (size_t i = first_[p]; i < first_[p + 1]; i++) spans_.push_back(KeySpan(spans_[i]));
        spans_.back().rows = follows[s] + 1 - cu[p];
        position = spans_.back().position + spans_.back().rows;
      }
      spans_.push_back({position, cu[s], cu[s + 1] - cu[s]});
      first_.push_back(spans_.size());
    }
  }
  int64_t size() const { return static_cast<int64_t>(first_.size()) - 1; }
  const KeySpan *spans(int64_t s) const { return spans_.data() + first_[s]; }
  int64_t count(int64_t s) const { return static_cast<int64_t>(first_[s + 1] - first_[s]); }
  const KeySpan &own(int64_t s) const { return spans_[first_[s + 1] - 1]; }

  double pair_work(int64_t heads, int64_t hd, int64_t window) const {
    double pairs = 0;
    for (int64_t s = 0; s < size(); s++) {
      const double rows = own(s).rows, all = rows * own(s).position + rows * rows / 2;
      pairs += window > 0 ? std::min(all, rows * static_cast<double>(window)) : all;
    }
    return 2 * pairs * heads * hd;
  }

 private:
  std::vector<KeySpan> spans_;
  std::vector<size_t> first_;  // the first span of each segment in spans_
};

// A copy of keys or values in which the rows of a head are consecutive. In the original, the rows of one head would use only a few sets of
// the cache if kv_heads * hd floats are a multiple of 4 KiB.
class HeadMajor {
 public:
  HeadMajor(const float *x, int64_t rows, int64_t kv_heads, int64_t hd)
      : head_(rows * hd), data_(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(kv_heads * head_))) {
    parallel_ranges(rows, 16, static_cast<double>(kv_heads * head_), [&](int64_t begin, int64_t end) {
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t t = begin; t < end; t++)
          std::memcpy(data_.get() + h * head_ + t * hd, x + (t * kv_heads + h) * hd, hd * sizeof(float));
    });
  }
  const float *operator[](int64_t head) const { return data_.get() + head * head_; }

 private:
  int64_t head_;
  std::unique_ptr<float[]> data_;
};

// Consecutive (row, query head) pairs of one segment and one key/value head.
struct Tile {
  int64_t segment, kv_head;
  int64_t first, end;  // pairs, numbered row * group + query head of the group
};

std::vector<Tile> tiles_of(const Contexts &contexts, int64_t kv_heads, int64_t group) {
  std::vector<Tile> tiles;
  for (int64_t s = 0; s < contexts.size(); s++) {
    const int64_t pairs = contexts.own(s).rows * group;
    for (int64_t h = 0; h < kv_heads; h++)
      for (int64_t first = 0; first < pairs; first += kAttentionTile)
        tiles.push_back({s, h, first, std::min(first + kAttentionTile, pairs)});
  }
  return tiles;
}

// Query rows of a segment. The backward pass has one task for each chunk and key/value head. The chunk attends to the keys at positions
// [key, end). Their gradients begin at `scratch` in the scratch memory of the wave.
struct Chunk {
  int64_t segment, first, rows;
  int64_t key, end;
  int64_t scratch;
};

// The maximum number of rows of a chunk. Long segments are cut, so that many threads have work. The cuts do not depend on the number of
// threads.
constexpr int64_t kChunkRows = 512;
// The scratch memory of a wave is at most this many times as large as k and v, unless a single chunk needs more. A wave is the chunks that
// are computed together.
constexpr int64_t kScratchShare = 4;

std::vector<std::vector<Chunk>> waves_of(const Contexts &contexts, int64_t rows, int64_t window) {
  std::vector<std::vector<Chunk>> waves;
  int64_t used = 0;
  for (int64_t s = 0; s < contexts.size(); s++) {
    const KeySpan &own = contexts.own(s);
    for (int64_t first = 0; first < own.rows; first += kChunkRows) {
      const int64_t n = std::min(kChunkRows, own.rows - first), position = own.position + first;
      const int64_t key = first_seen(position, window), end = position + n;
      if (waves.empty() || used + end - key > kScratchShare * rows) waves.emplace_back(), used = 0;
      waves.back().push_back({s, first, n, key, end, used});
      used += end - key;
    }
  }
  return waves;
}

int64_t scratch_rows(const std::vector<Chunk> &wave) { return wave.back().scratch + wave.back().end - wave.back().key; }

}  // namespace

int32_t mgrpo_attention_packed_cpu(const float *q, const float *k, const float *v, const int32_t *cu, const int32_t *follows_or_null,
                                   int64_t batch, const float *sinks_or_null, float *out, float *lse, int64_t heads, int64_t kv_heads,
                                   int64_t hd, float scale, int64_t window) try {
  if (!valid_layout(cu, follows_or_null, batch, heads, kv_heads, hd, window)) return MGRPO_INVALID_ARGUMENT;
  if (cu[batch] == 0) return MGRPO_OK;
  if (any_null({q, k, v, out, lse})) return MGRPO_INVALID_ARGUMENT;
  const int64_t group = heads / kv_heads, q_stride = heads * hd;
  const Contexts contexts(cu, follows_or_null, batch);
  const HeadMajor keys(k, cu[batch], kv_heads, hd), values(v, cu[batch], kv_heads, hd);
  const std::vector<Tile> tiles = tiles_of(contexts, kv_heads, group);
  const auto attend_tile = [&](int64_t t) {
    const Tile &tile = tiles[static_cast<size_t>(t)];
    const KeySpan &own = contexts.own(tile.segment);
    const float *queries[kAttentionTile];
    float *outputs[kAttentionTile], *sums[kAttentionTile], sinks[kAttentionTile];
    int64_t length[kAttentionTile];
    int rows = 0;
    for (int64_t pair = tile.first; pair < tile.end; pair++, rows++) {
      const int64_t row = own.row + pair / group, head = tile.kv_head * group + pair % group;
      queries[rows] = q + row * q_stride + head * hd;
      outputs[rows] = out + row * q_stride + head * hd;
      sums[rows] = lse + row * heads + head;
      if (sinks_or_null != nullptr) sinks[rows] = sinks_or_null[head];
      length[rows] = own.position + pair / group + 1;
    }
    const AttentionKeys<float> seen{contexts.spans(tile.segment), contexts.count(tile.segment), keys[tile.kv_head], values[tile.kv_head],
                                    hd};
    layer_loops().attend(queries, length, rows, seen, hd, scale, window, sinks_or_null != nullptr ? sinks : nullptr, outputs, sums);
  };
  parallel_for(static_cast<int64_t>(tiles.size()), contexts.pair_work(heads, hd, window), attend_tile);
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_attention_packed_bwd_cpu(const float *dout, const float *q, const float *k, const float *v, const float *out,
                                       const float *lse, const int32_t *cu, const int32_t *follows_or_null, int64_t batch, float *dq,
                                       float *dk, float *dv, int64_t heads, int64_t kv_heads, int64_t hd, float scale, int64_t window) try {
  if (!valid_layout(cu, follows_or_null, batch, heads, kv_heads, hd, window)) return MGRPO_INVALID_ARGUMENT;
  if (cu[batch] == 0) return MGRPO_OK;
  if (any_null({dout, q, k, v, out, lse, dq, dk, dv})) return MGRPO_INVALID_ARGUMENT;
  const int64_t group = heads / kv_heads, q_stride = heads * hd, kv_stride = kv_heads * hd, rows = cu[batch];
  const Contexts contexts(cu, follows_or_null, batch);
  const HeadMajor keys(k, rows, kv_heads, hd), values(v, rows, kv_heads, hd);
  const std::vector<std::vector<Chunk>> waves = waves_of(contexts, rows, window);
  int64_t scratch = 0;  // rows
  for (const auto &wave : waves) scratch = std::max(scratch, scratch_rows(wave));
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(2 * kv_heads * scratch * hd));
  const auto dk_of = [&](const Chunk &c, int64_t head) { return sums.get() + (head * scratch + c.scratch) * hd; };
  const auto dv_of = [&](const Chunk &c, int64_t head) { return dk_of(c, head + kv_heads); };

  std::memset(dk, 0, static_cast<size_t>(rows * kv_stride) * sizeof(float));
  std::memset(dv, 0, static_cast<size_t>(rows * kv_stride) * sizeof(float));
  const double work = 2.5 * contexts.pair_work(heads, hd, window) / static_cast<double>(waves.size());
  for (const auto &wave : waves) {
    // Each task adds its gradients in its own part of the scratch memory.
    parallel_for(static_cast<int64_t>(wave.size()) * kv_heads, work, [&](int64_t task) {
      const Chunk &c = wave[static_cast<size_t>(task / kv_heads)];
      const int64_t h = task % kv_heads, row = contexts.own(c.segment).row + c.first;
      const int64_t at = row * q_stride + h * group * hd;
      layer_loops().attend_bwd({q + at, dout + at, out + at, lse + row * heads + h * group, dq + at, c.rows,
                                contexts.own(c.segment).position + c.first, group, hd, q_stride, scale, window},
                               {contexts.spans(c.segment), contexts.count(c.segment), keys[h], values[h], hd}, dk_of(c, h), dv_of(c, h));
    });
    // Then each row of dk and dv is the sum of its gradients in these parts, in the order of the chunks.
    parallel_ranges(rows, 16, 2.0 * static_cast<double>(kv_stride * scratch), [&](int64_t begin, int64_t end) {
      for (const Chunk &c : wave) {
        for (int64_t i = 0; i < contexts.count(c.segment); i++) {
          const KeySpan &span = contexts.spans(c.segment)[i];
          const int64_t first = std::max(begin, span.row + std::max<int64_t>(0, c.key - span.position));
          const int64_t to = std::min(end, span.row + std::min(span.rows, c.end - span.position));
          for (int64_t row = first; row < to; row++)
            for (int64_t h = 0; h < kv_heads; h++) {
              const int64_t from = (span.position + row - span.row - c.key) * hd;
              const float *dk_part = dk_of(c, h) + from, *dv_part = dv_of(c, h) + from;
              float *dk_row = dk + row * kv_stride + h * hd, *dv_row = dv + row * kv_stride + h * hd;
              for (int64_t j = 0; j < hd; j++) dk_row[j] += dk_part[j];
              for (int64_t j = 0; j < hd; j++) dv_row[j] += dv_part[j];
            }
        }
      }
    });
  }
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
