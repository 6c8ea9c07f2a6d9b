// Decode attention's rows, and the division of their keys among blocks. The keys of a row are cut into parts with
// separate results, which are merged in the order of the parts. The cuts depend only on the keys of the row, so neither
// other rows nor the GPU change its bits. The number of blocks that share the parts of a row depends on both.
#pragma once
#include <cfloat>

#include "pages.cuh"

namespace mgrpo::cuda {

constexpr int kAttentionThreads = 128;
constexpr int64_t kMaxHeadDim = 256;
constexpr unsigned kKeyTile = 16;  // keys at positions from a multiple of it on: a cache block's keys, unless the block is smaller
constexpr int kMostParts = 64;
constexpr float kFloor = -FLT_MAX;  // below every score but -Inf, whose exponential is 0 then

// The number of parts for a number of keys. Up to 512 keys are one part, which is not merged.
// More keys have parts of 256, so that a few rows fill a GPU. From 16 parts on a part has 512
// keys, since its result is written and read once more. From 64 parts on they are larger.
__host__ __device__ inline int parts_of(int64_t keys) {
  constexpr int64_t kShort = 256, kLong = 512, kFew = 16;
  const int64_t parts = keys <= kLong           ? 1
                        : keys <= kFew * kShort ? (keys + kShort - 1) / kShort
                        : keys <= kFew * kLong  ? kFew
                                                : (keys + kLong - 1) / kLong;
  return parts < 1 ? 1 : parts < kMostParts ? static_cast<int>(parts) : kMostParts;
}

// The most parts that a row can have.
inline int most_parts(const Pages &pages, int64_t window) {
  const int64_t longest = pages.longest();
  return parts_of(window > 0 && window < longest - kKeyTile ? window + kKeyTile : longest);
}

// The positions [first, end) that a row sees, in parts of `share` from `origin` on.
struct Cut {
  unsigned first, end, origin, share;
  int parts;
};

// A part of a row for some of its query heads: the keys [begin, end) of a key/value head.
struct Part {
  int64_t first_head, kv_head;  // the first one's number among the heads of all rows
  const int32_t *table;         // the sequence's row of it
  int heads, number, of;
  unsigned begin, end;
};

template <class T>
struct Attention {
  const T *q, *k, *v;
  Pages pages;
  const int32_t *sequence, *length;
  const float *sinks;  // [heads], may be null
  T *out;
  float *partial;  // [rows, heads, parts, hd + 2]: weighted values, maximum, sum; of the rows that are merged
  int64_t rows, heads, kv_heads, hd;
  int parts;       // the most that a row can have
  int splits;      // blocks that share the parts of a row
  int alone;       // rows of more parts than this are left to merge_kernel: 1, or 0 if there are sinks, whose terms are added there
  float scale;     // of a score, times log2 e
  int64_t window;  // 0: all keys

  __device__ bool known(int64_t row) const {
    return sequence[row] >= 0 && sequence[row] < pages.sequences && length[row] >= 0 && length[row] <= pages.longest();
  }
  // Of a known row.
  __device__ Cut cut(int64_t row) const {
    constexpr unsigned kStep = 4 * kKeyTile;  // so that four warps have as much to do
    Cut c;
    c.end = static_cast<unsigned>(length[row]);
    c.first = window > 0 && window < c.end ? c.end - static_cast<unsigned>(window) : 0;
    c.origin = c.first / kKeyTile * kKeyTile;
    const unsigned span = c.end - c.origin;
    const auto parts = static_cast<unsigned>(parts_of(span));
    c.share = ((span + parts - 1) / parts + kStep - 1) / kStep * kStep;
    c.parts = span == 0 ? 1 : static_cast<int>((span + c.share - 1) / c.share);
    return c;
  }
  // Where a head's row of the cache begins, or -1 if the table names no block for it.
  __device__ int64_t row_at(const Part &p, unsigned key) const {
    const int64_t row = pages.row(p.table, key, p.kv_head);
    return row < 0 ? -1 : row * hd;
  }
  __device__ float *partial_of(int64_t head, int part) const { return partial + (head * parts + part) * (hd + 2); }
  // Takes element c of a part's weighted values; `sum` is the sum of the part's weights.
  __device__ void put(const Part &p, int head, int64_t c, float value, float sum) const {
    if (p.of > alone) {
      partial_of(p.first_head + head, p.number)[c] = value;
    } else {
      narrow(value / sum, out + (p.first_head + head) * hd + c);
    }
  }
  __device__ void put_sums(const Part &p, int head, float max, float sum) const {
    if (p.of <= alone) return;
    float *const to = partial_of(p.first_head + head, p.number) + hd;
    to[0] = max;
    to[1] = sum;
  }
};

// f(part) for this block's parts of the rows: parts split, split + splits... of a row for up to kHeads query heads of a
// key/value head. Rows without keys are written here.
template <int kHeads, class T, class F>
__device__ void for_each_part(const Attention<T> &in, const F &f) {
  const int64_t per_kv = in.heads / in.kv_heads, tiles = (per_kv + kHeads - 1) / kHeads, all = in.rows * in.kv_heads * tiles;
  for (int64_t b = blockIdx.x; b < all * in.splits; b += gridDim.x) {
    const int64_t tile = b % tiles, split = b / all;
    Part p;
    const int64_t row = b / tiles / in.kv_heads % in.rows;
    p.kv_head = b / tiles % in.kv_heads;
    p.first_head = row * in.heads + p.kv_head * per_kv + tile * kHeads;
    p.heads = static_cast<int>(min(static_cast<int64_t>(kHeads), per_kv - tile * kHeads));
    const bool known = in.known(row);
    if (!known || in.length[row] == 0) {
      if (split > 0) continue;
      for (int64_t i = threadIdx.x; i < p.heads * in.hd; i += blockDim.x) narrow(known ? 0.0f : NAN, in.out + p.first_head * in.hd + i);
      continue;
    }
    p.table = in.pages.table + in.sequence[row] * in.pages.width;
    const Cut cut = in.cut(row);
    p.of = cut.parts;
    for (p.number = static_cast<int>(split); p.number < p.of; p.number += in.splits) {
      const unsigned from = cut.origin + static_cast<unsigned>(p.number) * cut.share;
      p.begin = max(cut.first, from);
      p.end = p.number + 1 == p.of ? cut.end : from + cut.share;
      f(p);
    }
  }
}

}  // namespace mgrpo::cuda
