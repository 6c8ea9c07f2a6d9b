// The heads in the rows of a product, and the places that they are written to.
#pragma once
#include "heads.h"
#include "norm.cuh"
#include "pages.cuh"

namespace mgrpo::cuda {

constexpr int kHeadThreads = kNormThreads, kParts = 3;

struct Rotation {
  const float *cos, *sin;  // [max_pos, rotary / 2]
  const int32_t *pos;
  int64_t max_pos;

  // Returns the cosine and sine of a plane of `half` planes, or NaN if the position is outside of the table.
  __device__ float2 angle(int64_t row, int half, int plane) const {
    const int64_t at = pos[row];
    if (at < 0 || at >= max_pos) return {NAN, NAN};
    return {cos[at * half + plane], sin[at * half + plane]};
  }
};

// The queries, the keys or the values of a row.
template <class T>
struct HeadGroup {
  T *heads_of;    // [rows, heads, hd], or a cache: the results, or their gradients in the backward pass
  const T *norm;  // weights of the norm, or null
  float *inv_rms;
  int heads, from;    // the number of heads; the column of the first one in a row of the product
  int half;           // the number of rotated planes
  int groups, group;  // the number of groups of a row; the values of a group, which are normalised together
};

template <class T>
struct Layout {
  HeadGroup<T> part[kParts];
  Rotation rotation;
  int64_t rows, width;  // of the product
  int hd;
  float offset, eps;
};

template <class T>
Layout<T> layout_of(const mgrpo_heads &h, const void *q, const void *k, const void *v, const float *inv_q, const float *inv_k,
                    int64_t rows) {
  const auto part = [&](const void *of, const void *norm, const float *inv, int64_t heads, int64_t from, int64_t rotary) {
    return HeadGroup<T>{static_cast<T *>(const_cast<void *>(of)),
                        static_cast<const T *>(norm),
                        const_cast<float *>(inv),
                        static_cast<int>(heads),
                        static_cast<int>(from * h.hd),
                        static_cast<int>(rotary / 2),
                        static_cast<int>(groups_of(h, heads)),
                        static_cast<int>(group_of(h, heads))};
  };
  return {{part(q, h.q_norm, inv_q, h.heads, 0, h.rotary), part(k, h.k_norm, inv_k, h.kv_heads, h.heads, h.rotary),
           part(v, nullptr, nullptr, h.kv_heads, h.heads + h.kv_heads, 0)},
          {h.cos, h.sin, h.pos, h.max_pos},
          rows,
          width_of(h),
          static_cast<int>(h.hd),
          h.offset,
          static_cast<float>(h.eps)};
}

// Keys and values that are written to dense tensors, as queries are.
struct InRows {
  static constexpr int kBlocks = 4;  // blocks of whole_heads_kernel on a multiprocessor at a time
  static constexpr int64_t kFew = 1;
  __device__ void look_up(int64_t *) const {}
  __device__ int64_t claim(int64_t row, int *) const { return row; }
  template <int kLanes>
  __device__ int64_t claim_of_lanes(int64_t row, bool, const int64_t *) const {
    return row;
  }
  __device__ int64_t row_of(int64_t place, int head, int heads) const { return place * heads + head; }
};

// Keys and values that are written to the blocks of a cache. If several rows have the same place, the last row is written. It does not
// matter in which order the blocks of the kernel run.
struct InCache {
  static constexpr int kBlocks = 3;  // as above; with a fourth block there would be too few registers
  // Up to this number of rows are compared with each other, because filling the hash table would take longer.
  static constexpr int64_t kFew = 512;
  using Row = unsigned long long;
  static constexpr Row kNoRow = ~Row{0};

  Pages pages;
  const int32_t *sequence, *pos;
  int64_t rows;
  Row *last;  // a hash table with the last row of each place, at most half full; null if rows are compared with each other
  int bits;   // the table has 1 << bits entries

  __device__ int64_t place(int64_t row) const { return pages.place(sequence[row], pos[row]); }

  // Return the first entry of the search for a place, and the entry after another one.
  __device__ uint64_t first_entry(int64_t place) const { return static_cast<uint64_t>(place) * 0x9E3779B97F4A7C15u >> (64 - bits); }
  __device__ uint64_t next_entry(uint64_t entry) const { return (entry + 1) & ((uint64_t{1} << bits) - 1); }
  // Enters a row into the table. The row of an entry can change, but its place does not.
  __device__ void enter(int64_t row) const {
    const int64_t mine = place(row);
    if (mine < 0) return;
    for (uint64_t entry = first_entry(mine);; entry = next_entry(entry)) {
      const Row there = atomicCAS(last + entry, kNoRow, static_cast<Row>(row));
      if (there == kNoRow) return;
      if (place(static_cast<int64_t>(there)) != mine) continue;
      atomicMax(last + entry, static_cast<Row>(row));
      return;
    }
  }
  // Reports from the table whether a row is the last one with its place. `mine` is that place.
  __device__ bool is_last(int64_t row, int64_t mine) const {
    for (uint64_t entry = first_entry(mine);; entry = next_entry(entry)) {
      const auto there = static_cast<int64_t>(last[entry]);
      if (there == row || place(there) == mine) return there == row;
    }
  }

  // Returns the place of a row, or -1 if it has no place or if a later row has the same place. All threads of the block call it.
  __device__ int64_t claim(int64_t row, int *superseded) const {
    const int64_t mine = place(row);
    if (mine < 0) return -1;
    if (last != nullptr) return is_last(row, mine) ? mine : -1;
    __syncthreads();  // waits until every thread has read the previous result
    if (threadIdx.x == 0) *superseded = 0;
    __syncthreads();
    for (int64_t later = row + 1 + threadIdx.x; later < rows; later += kHeadThreads)
      if (place(later) == mine) atomicExch(superseded, 1);
    __syncthreads();
    return *superseded ? -1 : mine;
  }
  // Writes the places of all rows to place_of [kFew] in shared memory if there is no table. All threads of the block call it.
  __device__ void look_up(int64_t *place_of) const {
    if (last != nullptr) return;
    for (int64_t row = threadIdx.x; row < rows; row += kHeadThreads) place_of[row] = place(row);
    __syncthreads();
  }
  // Does what claim does for teams of kLanes lanes, each with its own row. All lanes of the warp call it. The result is valid for lanes
  // with `asks` true.
  template <int kLanes>
  __device__ int64_t claim_of_lanes(int64_t row, bool asks, const int64_t *place_of) const {
    const int64_t mine = !asks ? -1 : last != nullptr ? place(row) : place_of[row];
    if (last != nullptr) return mine >= 0 && is_last(row, mine) ? mine : -1;
    bool found = false;
    const int end = mine < 0 ? 0 : static_cast<int>(rows);
    for (int later = static_cast<int>(row) + 1 + lane() % kLanes; later < end; later += kLanes) found |= place_of[later] == mine;
    const unsigned team = (kAllLanes >> (kWarp - kLanes)) << (lane() / kLanes * kLanes);
    return (__ballot_sync(kAllLanes, found) & team) != 0 ? -1 : mine;
  }
  __device__ int64_t row_of(int64_t place, int head, int) const { return pages.row(place, head); }
};

namespace {

__global__ __launch_bounds__(kHeadThreads) void cache_enter_kernel(InCache places) {
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadThreads + threadIdx.x; row < places.rows;
       row += static_cast<int64_t>(gridDim.x) * kHeadThreads)
    places.enter(row);
}

// Makes the hash table if there are more than kFew rows.
inline int32_t fill_table(InCache *places, Scratch<InCache::Row> *table, cudaStream_t stream) {
  if (places->rows <= InCache::kFew) return MGRPO_OK;
  while (int64_t{1} << places->bits < 2 * places->rows) places->bits++;
  MGRPO_TRY(table->allocate_ones(int64_t{1} << places->bits));
  places->last = table->get();
  return launch(cache_enter_kernel, {block_count((places->rows + kHeadThreads - 1) / kHeadThreads), kHeadThreads}, stream, *places);
}

}  // namespace

}  // namespace mgrpo::cuda
