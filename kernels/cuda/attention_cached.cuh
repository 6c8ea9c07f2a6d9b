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

// The number of parts for a number of keys: one up to 512 keys, which needs no merging; then parts of 256 keys, so that a few rows fill a
// GPU; of 512 from 16 parts on, since a part's result is written and read once more; and larger ones from 64 parts on.
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
  unsigned first_head, kv_head;  // the first one's number among the heads of all rows
  int32_t sequence;
  int heads, number, of;
  unsigned begin, end;
  unsigned block;  // number of the work item: of a set of heads and a split
  Cut cut;         // of the row
};

template <class T>
struct Attention {
  const T *q, *k, *v;
  Pages pages;
  const int32_t *sequence, *length;
  const float *sinks;  // [heads], may be null
  T *out;
  float *partial;                     // [rows, heads, parts, hd + 2]: weighted values, maximum, sum; of the rows that are merged
  int64_t rows, heads, kv_heads, hd;  // rows * heads * splits < 2^31
  int parts;                          // the most that a row can have
  int splits;                         // blocks that share the parts of a row
  int alone;       // rows of more parts than this are left to merge_kernel: 1, or 0 if there are sinks, whose terms are added there
  float scale;     // of a score, times log2 e
  int64_t window;  // 0: all keys
  unsigned per_kv, tiles, sets;  // query heads of a key/value head, blocks that share them, and such sets of heads in all rows

  // Of a row's sequence and length, which are loaded together.
  __device__ bool known(int32_t its_sequence, int32_t keys) const {
    return its_sequence >= 0 && its_sequence < pages.sequences && keys >= 0 && keys <= pages.longest();
  }
  // Of a known row's length.
  __device__ Cut cut(int32_t keys) const {
    constexpr unsigned kStep = 4 * kKeyTile;  // so that four warps have as much to do
    Cut c;
    c.end = static_cast<unsigned>(keys);
    c.first = window > 0 && window < c.end ? c.end - static_cast<unsigned>(window) : 0;
    c.origin = c.first / kKeyTile * kKeyTile;
    const unsigned span = c.end - c.origin;
    const auto parts = static_cast<unsigned>(parts_of(span));
    c.share = ((span + parts - 1) / parts + kStep - 1) / kStep * kStep;
    c.parts = span == 0 ? 1 : static_cast<int>((span + c.share - 1) / c.share);
    return c;
  }
  __device__ int32_t block_of(const Part &p, unsigned key) const { return pages.block_of(pages.table + p.sequence * pages.width, key); }
  // Where a head's row of the cache begins, or -1 if the table names no block for it.
  __device__ int64_t row_at(const Part &p, unsigned key) const {
    const int32_t block = block_of(p, key);
    return block < 0 ? -1 : pages.row_in(block, key, p.kv_head) * hd;
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
// key/value head. Values that are needed after f wait in shared memory, to leave registers to f. Rows without keys are written here.
template <int kHeads, class T, class F>
__device__ void for_each_part(const Attention<T> &in, const F &f) {
  __shared__ Part part;
  const auto rows = static_cast<unsigned>(in.rows), heads = static_cast<unsigned>(in.heads), kv_heads = static_cast<unsigned>(in.kv_heads);
  for (unsigned b = blockIdx.x; b < in.sets * in.splits; b += gridDim.x) {
    const unsigned tile = b % in.tiles, row = b / in.tiles / kv_heads % rows, kv_head = b / in.tiles % kv_heads;
    const unsigned first_head = row * heads + kv_head * in.per_kv + tile * kHeads;
    const int tile_heads = static_cast<int>(min(static_cast<unsigned>(kHeads), in.per_kv - tile * kHeads));
    const int32_t sequence = in.sequence[row], keys = in.length[row];
    int number = static_cast<int>(b / in.sets);
    const bool known = in.known(sequence, keys);
    if (!known || keys == 0) {
      if (number > 0) continue;
      for (int64_t i = threadIdx.x; i < tile_heads * in.hd; i += blockDim.x) narrow(known ? 0.0f : NAN, in.out + first_head * in.hd + i);
      continue;
    }
    Cut cut = in.cut(keys);
    if (number >= cut.parts) continue;
    __syncthreads();  // all have read of the last row
    if (threadIdx.x == 0)
      part.first_head = first_head, part.kv_head = kv_head, part.sequence = sequence, part.heads = tile_heads, part.block = b,
      part.cut = cut;
    while (number < cut.parts) {
      __syncthreads();  // all have read of the last part
      if (threadIdx.x == 0) {
        const unsigned from = cut.origin + static_cast<unsigned>(number) * cut.share;
        part.number = number, part.of = cut.parts;
        part.begin = max(cut.first, from);
        part.end = number + 1 == cut.parts ? cut.end : from + cut.share;
      }
      __syncthreads();
      f(part);
      cut = part.cut, number = part.number + in.splits;
    }
    b = part.block;
  }
}

}  // namespace mgrpo::cuda
