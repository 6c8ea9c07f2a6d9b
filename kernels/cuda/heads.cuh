// The heads of a product's rows, and where they go.
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

  // Cosine and sine of a plane of `half`; NaN at a position outside of the table.
  __device__ float2 angle(int64_t row, int half, int plane) const {
    const int64_t at = pos[row];
    if (at < 0 || at >= max_pos) return {NAN, NAN};
    return {cos[at * half + plane], sin[at * half + plane]};
  }
};

// The heads of a row that are treated alike.
template <class T>
struct Part {
  T *heads_of;    // [rows, heads, hd], or a cache: what is written, in the backward pass the gradient of it
  const T *norm;  // null: not normalised
  float *inv_rms;
  int heads, from;    // number of heads; their first number in a row of the product
  int half;           // number of rotated planes
  int groups, group;  // number of groups in a row that are normalised together; values of a group
};

template <class T>
struct Layout {
  Part<T> part[kParts];
  Rotation rotation;
  int64_t rows, width;  // of the product
  int hd;
  float offset, eps;
};

template <class T>
Layout<T> layout_of(const mgrpo_heads &h, const void *q, const void *k, const void *v, const float *inv_q, const float *inv_k,
                    int64_t rows) {
  const auto part = [&](const void *of, const void *norm, const float *inv, int64_t heads, int64_t from, int64_t rotary) {
    return Part<T>{static_cast<T *>(const_cast<void *>(of)),
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

// Keys and values next to each other, like queries.
struct InRows {
  __device__ int64_t claim(int64_t row, int *) const { return row; }
  template <int kLanes>
  __device__ int64_t claim_of_lanes(int64_t row, bool) const {
    return row;
  }
  __device__ int64_t row_of(int64_t place, int head, int heads) const { return place * heads + head; }
};

// Keys and values in the blocks of a cache.
struct InCache {
  Pages pages;
  const int32_t *sequence, *pos;
  int64_t rows;

  __device__ int64_t place(int64_t row) const { return pages.place(sequence[row], pos[row]); }
  // Whether a row after `row` names its place; most differ by their place in a block already, which costs no look into the table.
  __device__ bool names_it(int64_t later, int64_t mine) const {
    return pages.in_block(pos[later]) == pages.in_block(mine) && place(later) == mine;
  }
  // The place of a row, or -1 where it has none or a later row names it, too: the last one stays, and blocks run in any order. All
  // threads of the block ask.
  __device__ int64_t claim(int64_t row, int *superseded) const {
    const int64_t mine = place(row);
    if (mine < 0) return -1;
    __syncthreads();  // every thread has read the last answer
    if (threadIdx.x == 0) *superseded = 0;
    __syncthreads();
    for (int64_t later = row + 1 + threadIdx.x; later < rows; later += kHeadThreads)
      if (names_it(later, mine)) atomicExch(superseded, 1);
    __syncthreads();
    return *superseded ? -1 : mine;
  }
  // The same for teams of lanes, each with a row of its own. All lanes of the warp ask; the answer is for those that mean it.
  template <int kLanes>
  __device__ int64_t claim_of_lanes(int64_t row, bool means) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int64_t mine = means ? place(row) : -1;
    bool found = false;
    for (int64_t later = row + 1 + lane % kLanes; mine >= 0 && !found && later < rows; later += kLanes) found = names_it(later, mine);
    const unsigned team = (kAllLanes >> (kWarp - kLanes)) << (lane / kLanes * kLanes);
    return (__ballot_sync(kAllLanes, found) & team) != 0 ? -1 : mine;
  }
  __device__ int64_t row_of(int64_t place, int head, int) const { return pages.row(place, head); }
};

}  // namespace mgrpo::cuda
