// Kernels for heads that consist of whole aligned packs, with a norm for each head or without norms. A team of lanes, one for each pack of
// a head, computes several heads one after another, most of them in the same row. The angles of the row and the weights of the norm stay in
// registers. A head is read once and written once.
#pragma once
#include <type_traits>

#include "heads.cuh"

namespace mgrpo::cuda {
namespace {

// The division of the heads of all rows among blocks, for the queries, or for the keys together with the values.
struct HeadWork {
  Runs runs;
  float *parts;  // partial sums of dw, [runs.parts, hd]; null if dw is not needed
};

template <class T>
struct WholeHeads {
  Layout<T> in;
  HeadWork of[2];  // queries, and keys with their values

  Shape shape() const { return {block_count(of[0].runs.parts + of[1].runs.parts), kHeadThreads}; }
};

// Calls f with the number of lanes that share a head, as an integral constant.
template <class T, class F>
int32_t for_lanes(int64_t hd, const F &f) {
  switch (lanes_of(packs_of<T>(hd))) {
    case 8:
      return f(std::integral_constant<int, 8>{});
    case 16:
      return f(std::integral_constant<int, 16>{});
  }
  return f(std::integral_constant<int, kWarp>{});
}

// The elements of a head that a lane has, and the angles of their rotation.
template <class T, int kLanes>
struct Lane {
  static constexpr int kWidth = Pack<T>::kWidth;
  const int thread = threadIdx.x % kLanes, begin = thread * kWidth;
  const bool has;  // whether the lane has a pack of the head
  // half: the number of rotated planes; partner: the lane with the other coordinates of this lane's planes.
  const int half, partner;
  const bool first;                          // whether the lane has the first coordinates of planes
  float cos[kWidth] = {}, sin[kWidth] = {};  // zeros while a team has no head but other teams of the warp have one

  __device__ Lane(int hd, int half)
      : has(begin < hd),
        half(half),
        partner(lane() + (begin < half       ? half / kWidth
                          : begin < 2 * half ? -half / kWidth
                                             : 0)),
        first(begin < half) {}
  __device__ bool turns() const { return begin < 2 * half; }

  // Loads the angles of a row. With sign -1 the rotation is the inverse.
  __device__ void take(const Rotation &in, int64_t row, float sign) {
    if (!turns()) return;
    const int64_t at = in.pos[row];
    if (at < 0 || at >= in.max_pos) {
#pragma unroll
      for (int i = 0; i < kWidth; i++) cos[i] = sin[i] = NAN;
      return;
    }
    const int64_t from = at * half + (first ? begin : begin - half);
    const float across = first ? -sign : sign;
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const float4 c = *reinterpret_cast<const float4 *>(in.cos + from + i), s = *reinterpret_cast<const float4 *>(in.sin + from + i);
      cos[i] = c.x, cos[i + 1] = c.y, cos[i + 2] = c.z, cos[i + 3] = c.w;
      sin[i] = across * s.x, sin[i + 1] = across * s.y, sin[i + 2] = across * s.z, sin[i + 3] = across * s.w;
    }
  }
  // Returns the lane's elements after rotation. All lanes of the warp call it.
  __device__ uint4 turned(uint4 raw) const {
    const uint4 across{__shfl_sync(kAllLanes, raw.x, partner), __shfl_sync(kAllLanes, raw.y, partner),
                       __shfl_sync(kAllLanes, raw.z, partner), __shfl_sync(kAllLanes, raw.w, partner)};
    if (!turns()) return raw;
    Pack<T> own = pack_of<T>(raw);
    const Pack<T> other = pack_of<T>(across);
#pragma unroll
    for (int i = 0; i < kWidth; i++) narrow(fmaf(widen(own.at[i]), cos[i], widen(other.at[i]) * sin[i]), &own.at[i]);
    return bytes_of(own);
  }
};

// Iterates over the heads of a team's run. All teams of a warp take the same number of steps, so a team may have no head in the last step.
struct Walk {
  int64_t number, row;
  int head, heads, left, steps;
  bool is_new = true;  // whether `row` has just begun

  __device__ Walk(const Runs &runs, int64_t part, int team, int heads)
      : number(runs.first(part, team)),
        row(number / heads),
        head(static_cast<int>(number % heads)),
        heads(heads),
        left(static_cast<int>(runs.first(part, team + 1) - number)),
        steps(__reduce_max_sync(kAllLanes, left)) {}
  __device__ bool active() const { return left > 0; }
  __device__ void next() {
    number++, left--;
    is_new = ++head == heads;
    if (is_new) head = 0, row++;
  }
};

template <class T, int kLanes, class Places>
__global__ __launch_bounds__(kHeadThreads, Places::kBlocks) void whole_heads_kernel(const T *qkv,
                                                                                    const __grid_constant__ WholeHeads<T> work,
                                                                                    Places places) {
  __shared__ int64_t place_of[Places::kFew];
  places.look_up(place_of);
  const Layout<T> &in = work.in;
  const int64_t of_queries = work.of[0].runs.parts;
  for (int64_t b = blockIdx.x; b < of_queries + work.of[1].runs.parts; b += gridDim.x) {
    const int keys = b >= of_queries;
    const HeadGroup<T> &p = in.part[keys], &values = in.part[2];
    Lane<T, kLanes> lane(in.hd, p.half);
    uint4 w{};
    if (p.norm != nullptr && lane.has) w = load_bytes(p.norm + lane.begin);
    int64_t place = -1;
    Walk at(work.of[keys].runs, b - keys * of_queries, threadIdx.x / kLanes, p.heads);
    for (int step = 0; step < at.steps; step++, at.next()) {
      const bool mine = at.active() && lane.has, row_begins = at.active() && at.is_new;
      const T *x = qkv + at.row * in.width + at.head * in.hd + lane.begin;
      uint4 head{}, value{};
      if (mine) head = load_bytes(x + p.from);
      if (mine && keys) value = load_bytes(x + values.from);
      if (row_begins) lane.take(in.rotation, at.row, 1);
      if (keys && __any_sync(kAllLanes, row_begins)) {
        const int64_t claimed = places.template claim_of_lanes<kLanes>(at.row, row_begins, place_of);
        if (row_begins) place = claimed;
      }
      if (p.norm != nullptr) {
        Pack<T> own = pack_of<T>(head);
        const float inv = inverse_rms(lanes_sum<kLanes>(add_squares(0, own)), in.hd, in.eps);
        normalise(&own, pack_of<T>(w), inv, in.offset);
        head = bytes_of(own);
        if (p.inv_rms != nullptr && at.active() && lane.thread == 0) p.inv_rms[at.number] = inv;
      }
      head = lane.turned(head);
      if (!mine || (keys && place < 0)) continue;
      const int64_t to = (keys ? places.row_of(place, at.head, p.heads) : at.number) * in.hd + lane.begin;
      store_bytes(p.heads_of + to, head);
      if (keys) store_bytes(values.heads_of + to, value);
    }
  }
}

template <class T, int kLanes>
__global__ __launch_bounds__(kHeadThreads, 3) void whole_heads_bwd_kernel(const T *qkv, const __grid_constant__ WholeHeads<T> work,
                                                                          T *dqkv) {
  constexpr int kWidth = Pack<T>::kWidth, kTeams = kHeadThreads / kLanes;
  __shared__ float shared[kHeadThreads * kWidth];
  const Layout<T> &in = work.in;
  const int64_t of_queries = work.of[0].runs.parts;
  const int team = threadIdx.x / kLanes;
  for (int64_t b = blockIdx.x; b < of_queries + work.of[1].runs.parts; b += gridDim.x) {
    const int keys = b >= of_queries;
    const int64_t part = b - keys * of_queries;
    const HeadGroup<T> &p = in.part[keys], &values = in.part[2];
    float *const parts = work.of[keys].parts;
    Lane<T, kLanes> lane(in.hd, p.half);
    uint4 w{};
    if (p.norm != nullptr && lane.has) w = load_bytes(p.norm + lane.begin);
    float dw[kWidth] = {};
    Walk at(work.of[keys].runs, part, team, p.heads);
    for (int step = 0; step < at.steps; step++, at.next()) {
      const bool mine = at.active() && lane.has;
      const int64_t from = at.number * in.hd + lane.begin, to = at.row * in.width + at.head * in.hd + lane.begin;
      uint4 grad{}, x{}, value{};
      float inv = 0;
      if (mine) grad = load_bytes(p.heads_of + from);
      if (mine && keys) value = load_bytes(values.heads_of + from);
      if (mine && p.norm != nullptr) x = load_bytes(qkv + to + p.from), inv = p.inv_rms[at.number];
      if (at.active() && at.is_new) lane.take(in.rotation, at.row, -1);
      if (mine && keys) store_bytes(dqkv + to + values.from, value);
      grad = lane.turned(grad);
      if (p.norm != nullptr) {
        Pack<T> own = pack_of<T>(grad);
        const Pack<T> row = pack_of<T>(x), weight = pack_of<T>(w);
        const float along = along_row(inv, lanes_sum<kLanes>(add_projection(0, own, row, weight, in.offset)), in.hd);
        add_dw(own, row, inv, dw);  // adds 0 if the lane has no pack
        norm_back(&own, row, weight, in.offset, inv, along, false, row);
        grad = bytes_of(own);
      }
      if (mine) store_bytes(dqkv + to + p.from, grad);
    }
    if (parts == nullptr) continue;
    if (lane.has)
#pragma unroll
      for (int i = 0; i < kWidth; i++) shared[team * in.hd + lane.begin + i] = dw[i];
    __syncthreads();
    for (int j = threadIdx.x; j < in.hd; j += kHeadThreads) {
      float total = shared[j];
      for (int t = 1; t < kTeams; t++) total += shared[t * in.hd + j];
      parts[part * in.hd + j] = total;
    }
    __syncthreads();  // the sums of the next part may overwrite these
  }
}

}  // namespace
}  // namespace mgrpo::cuda
