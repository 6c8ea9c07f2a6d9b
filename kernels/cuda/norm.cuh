// The RMS norm of a row by a team: a warp, or all threads of a block. A thread goes through the same packs in both passes, so what it
// wrote or read in the first it finds again in its cache, and works in place. Sums over a row follow the threads' shares and a fixed tree.
#pragma once
#include "nn.cuh"

namespace mgrpo::cuda {

constexpr int kWarp = 32, kNormThreads = 256;

// Rows of few packs, such as the heads of queries and keys, take a warp. It depends on the width alone.
template <class T>
__host__ __device__ bool narrow_row(int64_t d) {
  return packs_of<T>(d) <= 2 * kWarp;
}

// for_each_pack for a thread of a team.
template <int kTeam, class T, class F>
__device__ void for_each_pack_of(const T *row, int64_t n, unsigned thread, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(row);
  for (int64_t begin = static_cast<int64_t>(thread) * kWidth; begin < n; begin += kTeam * kWidth)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// The sum of a number of each thread of the team, for all of them: the same tree whether it is a block or one of its warps.
template <int kTeam>
__device__ float team_sum(float value, float *shared) {
  if constexpr (kTeam == kWarp) {
#pragma unroll
    for (int by = kWarp / 2; by > 0; by /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, by);
    return value;
  } else {
    return block_sum<kTeam>(value, shared);
  }
}

// 1 / rms of a row of d values whose squares the team has summed up.
template <int kTeam>
__device__ float inverse_rms(float squares, int64_t d, double eps, float *shared) {
  const double mean = static_cast<double>(team_sum<kTeam>(squares, shared)) / d;
  return static_cast<float>(1 / sqrt(mean + eps));
}

// The values of a pack times inv and the weights, the first `count` of them.
template <class T>
__device__ void normalise(Pack<T> *p, const Pack<T> &weight, float inv, float offset, int64_t count) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) narrow(widen(p->at[i]) * inv * (widen(weight.at[i]) + offset), &p->at[i]);
}

// One row of the backward pass, for a thread of the team: to = inv (grad w - row inv^2 mean(grad w row)) + more, where w has the offset
// in it. to may be grad or more.
template <class T, int kTeam>
__device__ void norm_back(const T *grad, const T *row, const T *w, float offset, float scale, const T *more, T *to, int64_t d, unsigned thread,
                          float *shared) {
  const bool row_aligned = aligned(row), w_aligned = aligned(w), more_aligned = aligned(more), to_aligned = aligned(to);
  float projection = 0;
  for_each_pack_of<kTeam>(grad, d, thread, [&](int64_t begin, const Pack<T> &g, int count) {
    const Pack<T> v = load_pack(row, begin, d, row_aligned), weight = load_pack(w, begin, d, w_aligned);
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++)
      if (i < count) projection = fmaf(widen(g.at[i]) * (widen(weight.at[i]) + offset), widen(v.at[i]), projection);
  });
  const double inv = scale;
  const float along_x = static_cast<float>(-inv * inv * team_sum<kTeam>(projection, shared) / d);
  for_each_pack_of<kTeam>(grad, d, thread, [&](int64_t begin, Pack<T> g, int count) {
    const Pack<T> v = load_pack(row, begin, d, row_aligned), weight = load_pack(w, begin, d, w_aligned);
    Pack<T> m;
    if (more != nullptr) m = load_pack(more, begin, d, more_aligned);
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      if (i >= count) break;
      const float own = __fmul_rn(scale, fmaf(widen(v.at[i]), along_x, widen(g.at[i]) * (widen(weight.at[i]) + offset)));
      narrow(more != nullptr ? own + widen(m.at[i]) : own, &g.at[i]);
    }
    store_pack(to, g, begin, d, to_aligned);
  });
}

constexpr int kColumnThreads = 64;

// Rows whose share of dw a thread adds up: a function of their number alone, as the order of the sum must be.
inline int64_t rows_of_part(int64_t rows) {
  constexpr int64_t kLeastRows = 64, kMostParts = 256;
  const int64_t even = (rows + kMostParts - 1) / kMostParts;
  return even < kLeastRows ? kLeastRows : even;
}

// dw += the parts [n, d] of column j.
__device__ inline void add_parts(const float *parts, float *dw, int64_t n, int64_t d, int64_t j) {
  float sum = dw[j];
  for (int64_t part = 0; part < n; part++) sum += parts[part * d + j];
  dw[j] = sum;
}

}  // namespace mgrpo::cuda
