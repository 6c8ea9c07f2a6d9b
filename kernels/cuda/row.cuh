// Passes over one row of logits by one block: loading, and the sums of its softmax.
#pragma once
#include <cuda_bf16.h>
#include <cmath>
#include <cstdint>

#include "block.cuh"

namespace mgrpo::cuda {

constexpr int kRowThreads = 512;
constexpr double kInf = HUGE_VAL;

// The type a logit is computed in.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

__device__ inline float widen(float z) { return z; }
__device__ inline float widen(__nv_bfloat16 z) { return __bfloat162float(z); }
__device__ inline double widen(double z) { return z; }
__device__ inline void narrow(double value, float *out) { *out = static_cast<float>(value); }
__device__ inline void narrow(double value, __nv_bfloat16 *out) { *out = __float2bfloat16_rn(static_cast<float>(value)); }
__device__ inline void narrow(double value, double *out) { *out = value; }

// exp and its argument's floor: below it the exponential is 0, and 0 * -Inf must not arise.
__device__ inline float exp_of(float d) { return expf(d); }
__device__ inline double exp_of(double d) { return exp(d); }
__device__ inline float floored(float d) { return fmaxf(d, -104.0f); }
__device__ inline double floored(double d) { return fmax(d, -746.0); }

// 16 bytes of a row: the unit in which elements go to threads, whether or not the row is aligned, so that
// a row's result does not depend on where it lies.
template <class T>
struct Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T at[kWidth];
};

template <class T>
__device__ inline bool aligned(const T *row) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

template <class T>
__device__ inline Pack<T> load_pack(const T *row, int64_t begin, int64_t n, bool is_aligned) {
  Pack<T> p;
  if (is_aligned && begin + Pack<T>::kWidth <= n) {
    const uint4 raw = *reinterpret_cast<const uint4 *>(row + begin);
    __builtin_memcpy(p.at, &raw, sizeof raw);
    return p;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (begin + i < n) p.at[i] = row[begin + i];
  return p;
}

template <class T>
__device__ inline void store_pack(T *row, const Pack<T> &p, int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + Pack<T>::kWidth <= n) {
    uint4 raw;
    __builtin_memcpy(&raw, p.at, sizeof raw);
    *reinterpret_cast<uint4 *>(row + begin) = raw;
    return;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (begin + i < n) row[begin + i] = p.at[i];
}

// f(begin, pack, count) for the thread's share of a row: the pack's first `count` elements are z[begin]...
template <class T, class F>
__device__ inline void for_each_pack(const T *row, int64_t n, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(row);
  for (int64_t begin = static_cast<int64_t>(threadIdx.x) * kWidth; begin < n; begin += static_cast<int64_t>(blockDim.x) * kWidth)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// f(v, z_v) for the thread's share of a row.
template <class T, class F>
__device__ inline void for_each(const T *row, int64_t n, const F &f) {
  for_each_pack(row, n, [&](int64_t begin, const Pack<T> &p, int count) {
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++)
      if (i < count) f(begin + i, p.at[i]);
  });
}

// z_v = f(z_v) for the thread's share of a row.
template <class T, class F>
__device__ inline void transform(T *row, int64_t n, const F &f) {
  const bool is_aligned = aligned(row);
  for_each_pack(row, n, [&](int64_t begin, Pack<T> p, int count) {
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++)
      if (i < count) narrow(f(widen(p.at[i])), &p.at[i]);
    store_pack(row, p, begin, n, is_aligned);
  });
}

// max z, S = sum exp d and sum d exp d with d = (z - max) / tau, gathered in one pass: a new maximum rescales.
template <class A>
struct OnlineSums {
  A max = -kInf, sum = 0, weighted = 0;
  bool unreadable = false;

  // The first `count` > 0 elements of a pack; a NaN passes the maximum by and spoils the sum, as +Inf does.
  template <class T>
  __device__ void add(const Pack<T> &p, int count, A inv_tau) {
    constexpr int kWidth = Pack<T>::kWidth;
    A z[kWidth], most = -kInf;
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      z[i] = i < count ? static_cast<A>(widen(p.at[i])) : static_cast<A>(-kInf);
      most = z[i] > most ? z[i] : most;
    }
    if (most > max) rescale(most, inv_tau);
    if (max == -kInf) {  // nothing but -Inf so far, and NaN
#pragma unroll
      for (int i = 0; i < kWidth; i++) unreadable |= z[i] != z[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      const A d = (z[i] - max) * inv_tau, e = exp_of(d);
      sum += e;
      weighted += e * floored(d);
    }
  }
  __device__ void rescale(A to, A inv_tau) {
    if (sum > 0) {
      const A d = floored((max - to) * inv_tau), e = exp_of(d);
      weighted = (weighted + sum * d) * e;
      sum *= e;
    }
    max = to;
  }
};

// The sums of a whole row, in float64.
struct RowSums {
  double max = -kInf, sum = 0, weighted = 0;
  int32_t unreadable = 0;

  __device__ double mean_exponent() const { return weighted / sum; }
  __device__ bool all_impossible() const { return max == -kInf; }

  __device__ void merge(RowSums o, double inv_tau) {
    unreadable |= o.unreadable;
    if (o.sum == 0) return;
    if (sum == 0 || o.max > max) {
      const RowSums smaller = *this;
      *this = o;
      unreadable |= smaller.unreadable;
      o = smaller;
    }
    if (o.sum == 0) return;
    const double d = floored((o.max - max) * inv_tau), e = exp(d);
    weighted += (o.weighted + o.sum * d) * e;
    sum += o.sum * e;
  }
};

// The thread's own sums, for merging. NaN for a sum also tells of +Inf: Inf - Inf.
template <class A>
__device__ inline RowSums row_part(const OnlineSums<A> &mine) {
  RowSums s;
  s.max = mine.max;
  s.sum = mine.sum;
  s.weighted = mine.weighted;
  s.unreadable = mine.unreadable || mine.sum != mine.sum;
  return s;
}

// The sums of row [n] for every thread. shared: [kRowThreads].
template <class T>
__device__ RowSums row_sums(const T *row, int64_t n, double inv_tau, RowSums *shared) {
  using A = typename Compute<T>::type;
  OnlineSums<A> mine;
  const A scale = static_cast<A>(inv_tau);
  for_each_pack(row, n, [&](int64_t, const Pack<T> &p, int count) { mine.add(p, count, scale); });
  return block_reduce<kRowThreads>(row_part(mine), shared,
                                   [inv_tau](RowSums &a, const RowSums &b) { a.merge(b, inv_tau); });
}

}  // namespace mgrpo::cuda
