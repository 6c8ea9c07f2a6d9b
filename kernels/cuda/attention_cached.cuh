// The rows of decode attention, and the division of their keys among blocks. The keys of a row are cut into parts. Each part has its own
// result, and the results are merged in the order of the parts. The cuts depend only on the number of keys of the row, so neither other
// rows nor the GPU change its bits. The number of blocks that share the parts of a row depends on both.
#pragma once
#include <cfloat>

#include "pages.cuh"
#include "softmax_row.cuh"

namespace mgrpo::cuda {

constexpr int kAttentionThreads = 128;
constexpr int64_t kMaxHeadDim = 256;
// Keys of a tile, which begins at a multiple of this number; a tile is in one block of the cache unless the block is smaller.
constexpr unsigned kKeyTile = 16;
constexpr int kMaxParts = 64;
constexpr float kFloor = -FLT_MAX;  // below every score except -Inf; relative to it the exponential of -Inf is 0

// Returns the number of parts for a number of keys:
// - Up to 512 keys are one part, which is not merged.
// - Up to 4,096 keys are parts of at most 256 keys, so that a few rows fill a GPU.
// - Up to 8,192 keys are 16 parts. The result of a part is written and read again, so more parts would cost time.
// - Up to 32,768 keys are parts of at most 512 keys.
// - More keys are 64 parts.
// Attention::cut rounds the size of the parts up, so a row can have fewer parts.
__host__ __device__ inline int parts_of(int64_t keys) {
  constexpr int64_t kShort = 256, kLong = 512, kFew = 16;
  const int64_t parts = keys <= kLong           ? 1
                        : keys <= kFew * kShort ? (keys + kShort - 1) / kShort
                        : keys <= kFew * kLong  ? kFew
                                                : (keys + kLong - 1) / kLong;
  return parts < 1 ? 1 : parts < kMaxParts ? static_cast<int>(parts) : kMaxParts;
}

// Returns the maximum number of parts of a row.
inline int max_parts(const Pages &pages, int64_t window) {
  const int64_t longest = pages.longest();
  return parts_of(window > 0 && window < longest - kKeyTile ? window + kKeyTile : longest);
}

// The positions [first, end) that a row attends to. They are cut into parts of `share` positions from `origin` on.
struct Cut {
  unsigned first, end, origin, share;
  int parts;
};

// A part of a row for some of its query heads. It has the keys [begin, end) of one key/value head.
struct Part {
  int64_t first_head, kv_head;  // first_head: the index of the first of these heads among the heads of all rows
  const int32_t *table;         // the row of the block table for the sequence
  int heads, number, of;        // the number of these heads; the index of the part, and the number of parts of the row
  unsigned begin, end;
};

template <class T>
struct Attention {
  const T *q, *k, *v;
  Pages pages;
  const int32_t *sequence, *length;
  const float *sinks;  // [heads], or null
  T *out;
  // [rows, heads, parts, hd + 2]: the weighted values, maximum and sum of each part of the rows that are merged.
  float *partial;
  int64_t rows, heads, kv_heads, hd;
  int parts;   // the maximum number of parts of a row
  int splits;  // blocks that share the parts of a row
  // attend_merge_kernel merges rows with more parts than this. It is 1, or 0 if there are sinks, because attend_merge_kernel adds their
  // terms.
  int alone;
  float scale;     // the factor of scores, times log2 e
  int64_t window;  // 0: all keys

  __device__ bool known(int64_t row) const {
    return sequence[row] >= 0 && sequence[row] < pages.sequences && length[row] >= 0 && length[row] <= pages.longest();
  }
  // Cuts the keys of a row. known(row) must be true.
  __device__ Cut cut(int64_t row) const {
    constexpr unsigned kStep = 4 * kKeyTile;  // so that four warps have the same number of tiles
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
  // Returns the index of the first element of a key or value in the cache, or -1 if the table has no block for it.
  __device__ int64_t row_at(const Part &p, unsigned key) const {
    const int64_t row = pages.row(p.table, key, p.kv_head);
    return row < 0 ? -1 : row * hd;
  }
  __device__ float *partial_of(int64_t head, int part) const { return partial + (head * parts + part) * (hd + 2); }
  // Stores element c of a part's weighted values. `sum` is the sum of the part's weights.
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

// Calls f(part) for this block's parts of rows. They are every splits-th part of a row, for up to kHeads query heads of one key/value head.
// It also writes the results of rows without keys.
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
