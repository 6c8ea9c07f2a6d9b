// Passes over one row of logits by one block: loading, and the sums of its softmax.
#pragma once
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "block.cuh"
#include "nonfinite.h"

namespace mgrpo::cuda {

constexpr int kRowThreads = 512;

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

constexpr double kLn2 = 0.693147180559945309417, kLog2E = 1.44269504088896340736;

// Powers of 2 and the lower bound of their exponents: below it the power is 0, and 0 * -Inf must not arise. A GPU has
// an instruction for floats; exp2f has three more around it, for results below 2^-126.
__device__ inline float exp2_of(float d) {
#ifdef __CUDACC__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(d));
  return power;
#else
  return exp2f(d);
#endif
}
__device__ inline double exp2_of(double d) { return exp2(d); }
__device__ inline float floored(float d) { return fmaxf(d, -150.0f); }
__device__ inline double floored(double d) { return fmax(d, -1076.0); }

// The larger one, or b where a is NaN.
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return a > b ? a : b; }

// a b + c, rounded once.
__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }

// The factor that turns a difference of logits into an exponent of 2 at a temperature.
template <class A>
__device__ inline A exponent_scale(double tau) {
  return static_cast<A>(kLog2E / tau);
}

// 16 bytes of a row: the unit in which elements go to threads, whether or not the row is
// aligned. So a row's result does not depend on its address.
template <class T>
struct Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T at[kWidth];
};

template <class T>
__device__ inline bool aligned(const T *row) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

// Aligned packs. A pack is one load and one store of 16 bytes, without access to its elements.
template <class T>
__device__ inline uint4 load_bytes(const T *at) {
  return *reinterpret_cast<const uint4 *>(at);
}
template <class T>
__device__ inline void store_bytes(T *at, uint4 raw) {
  unsigned __int128 word;  // as a struct it may become four stores
  __builtin_memcpy(&word, &raw, sizeof raw);
  *reinterpret_cast<unsigned __int128 *>(at) = word;
}
template <class T>
__device__ inline Pack<T> pack_of(uint4 raw) {
  Pack<T> p;
  __builtin_memcpy(p.at, &raw, sizeof raw);
  return p;
}
template <class T>
__device__ inline uint4 bytes_of(const Pack<T> &p) {
  uint4 raw;
  __builtin_memcpy(&raw, p.at, sizeof raw);
  return raw;
}
template <class T>
__device__ inline Pack<T> whole_pack(const T *at) {
  return pack_of<T>(load_bytes(at));
}
template <class T>
__device__ inline void store_whole(T *at, const Pack<T> &p) {
  store_bytes(at, bytes_of(p));
}

template <class T>
__device__ inline Pack<T> load_pack(const T *row, int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + Pack<T>::kWidth <= n) return whole_pack(row + begin);
  Pack<T> p;
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (begin + i < n) p.at[i] = row[begin + i];
  return p;
}

template <class T>
__device__ inline void store_pack(T *row, const Pack<T> &p, int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + Pack<T>::kWidth <= n) {
    store_whole(row + begin, p);
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

// max z, S = sum 2^d and sum d 2^d with d = (z - max) scale, gathered in one pass: a new maximum rescales.
template <class A>
struct OnlineSums {
  A max = -kInf, sum = 0, weighted = 0;
  bool unreadable = false;

  // The first `count` > 0 elements of a pack; a NaN passes the maximum by and spoils the sum, as +Inf does.
  template <class T>
  __device__ void add(const Pack<T> &p, int count, A scale) {
    constexpr int kWidth = Pack<T>::kWidth;
    A z[kWidth], most = -kInf;
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      z[i] = i < count ? static_cast<A>(widen(p.at[i])) : static_cast<A>(-kInf);
      most = larger(z[i], most);
    }
    if (most > max) rescale(most, scale);
    if (max == -kInf) {  // nothing but -Inf so far, and NaN
#pragma unroll
      for (int i = 0; i < kWidth; i++) unreadable |= z[i] != z[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      const A d = (z[i] - max) * scale, e = exp2_of(d);
      sum += e;
      weighted = fused(e, floored(d), weighted);
    }
  }
  __device__ void rescale(A to, A scale) {
    if (sum > 0) {
      const A d = floored((max - to) * scale), e = exp2_of(d);
      weighted = (weighted + sum * d) * e;
      sum *= e;
    }
    max = to;
  }
};

// The sums of a whole row, in float64: of exp d and of d exp d with d = (z - max) / tau.
struct RowSums {
  double max = -kInf, sum = 0, weighted = 0;
  int32_t unreadable = 0;

  __device__ double mean_exponent() const { return weighted / sum; }
  __device__ bool all_impossible() const { return max == -kInf; }

  // The same in terms of a maximum that is at least as large.
  __device__ void raise(double to, double inv_tau) {
    if (sum != 0) {  // NaN, too
      const double d = fmax((max - to) * inv_tau, -746.0), e = exp(d);
      weighted = (weighted + sum * d) * e;
      sum *= e;
    }
    max = to;
  }
  __device__ void add(const RowSums &o) {
    sum += o.sum;
    weighted += o.weighted;
    unreadable |= o.unreadable;
  }
};

// The thread's own sums. A sum of NaN may also stand for +Inf: Inf - Inf.
template <class A>
__device__ inline RowSums row_part(const OnlineSums<A> &mine) {
  RowSums s;
  s.max = mine.max;
  s.sum = mine.sum;
  s.weighted = mine.weighted * kLn2;
  s.unreadable = mine.unreadable || mine.sum != mine.sum;
  return s;
}

constexpr int kRowWarps = kRowThreads / kWarp;

// Shared memory of a block that merges its threads' sums.
struct RowRoom {
  float max[kRowWarps];
  double max64[kRowWarps];
  RowSums sums[kRowWarps];
};

__device__ inline float &max_of_warp(RowRoom &room, int warp, float) { return room.max[warp]; }
__device__ inline double &max_of_warp(RowRoom &room, int warp, double) { return room.max64[warp]; }

// Returns the sums of the block's threads to the threads of its first warp. Lanes of a warp are added by shuffles, and then the warps in
// their order. All threads first agree on the maximum, so that each takes one exponential. The next call may follow at once.
template <class A>
__device__ RowSums merge_block(const OnlineSums<A> &mine, double inv_tau, RowRoom &room) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  A max = mine.max;
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const A other = __shfl_xor_sync(kAllLanes, max, by);
    max = other > max ? other : max;
  }
  if (lane == 0) max_of_warp(room, warp, A{}) = max;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kRowWarps; w++) {
    const A other = max_of_warp(room, w, A{});
    max = other > max ? other : max;
  }
  RowSums s = row_part(mine);
  s.raise(max, inv_tau);
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    RowSums o;
    o.sum = __shfl_down_sync(kAllLanes, s.sum, by);
    o.weighted = __shfl_down_sync(kAllLanes, s.weighted, by);
    o.unreadable = __shfl_down_sync(kAllLanes, s.unreadable, by);
    if (lane < by) s.add(o);
  }
  if (lane == 0) room.sums[warp] = s;
  __syncthreads();
  if (warp > 0) return s;
  s = room.sums[0];
#pragma unroll 3
  for (int w = 1; w < kRowWarps; w++) s.add(room.sums[w]);
  return s;
}

// f(begin, pack, count) as for_each_pack has it, for one of the threads that share a row or a part of it, with several packs on
// their way at once.
template <class T, class F>
__device__ inline void for_each_pack_ahead(const T *row, int64_t n, unsigned thread, unsigned threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth, kAhead = 4;
  const bool is_aligned = aligned(row);
  const int64_t stride = static_cast<int64_t>(threads) * kWidth;
  int64_t begin = static_cast<int64_t>(thread) * kWidth;
  for (; is_aligned && begin + (kAhead - 1) * stride + kWidth <= n; begin += kAhead * stride) {
    uint4 raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++) raw[i] = *reinterpret_cast<const uint4 *>(row + begin + i * stride);
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      Pack<T> p;
      __builtin_memcpy(p.at, &raw[i], sizeof raw[i]);
      f(begin + i * stride, p, kWidth);
    }
  }
  for (; begin < n; begin += stride)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// The same for long rows, with the next packs on their way while f has one: more code and registers.
template <class T, class F>
__device__ inline void for_each_pack_of_many(const T *row, int64_t n, unsigned thread, unsigned threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth, kAhead = sizeof(T) > 4 ? 2 : 4;
  const bool is_aligned = aligned(row);
  const int64_t stride = static_cast<int64_t>(threads) * kWidth, first = static_cast<int64_t>(thread) * kWidth, whole = n / kWidth;
  const int mine = is_aligned && thread < whole ? static_cast<int>((whole - 1 - thread) / threads) + 1 : 0;  // whole packs
  const T *at = row + first;
  uint4 raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; i++)
    if (i < mine) raw[i] = load_bytes(at + i * stride);
  int k = 0;
#pragma unroll 1
  for (; k + 2 * kAhead <= mine; k += kAhead, at += kAhead * stride) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const Pack<T> p = pack_of<T>(raw[i]);
      raw[i] = load_bytes(at + (i + kAhead) * stride);
      f(first + (k + i) * stride, p, kWidth);
    }
  }
#pragma unroll 1
  for (; k < mine; k += kAhead, at += kAhead * stride) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      if (k + i >= mine) continue;
      const Pack<T> p = pack_of<T>(raw[i]);
      if (k + i + kAhead < mine) raw[i] = load_bytes(at + (i + kAhead) * stride);
      f(first + (k + i) * stride, p, kWidth);
    }
  }
#pragma unroll 1
  for (int64_t begin = first + mine * stride; begin < n; begin += stride)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// The sums of row [n] for the threads of the first warp.
template <class T>
__device__ RowSums row_sums(const T *row, int64_t n, double tau, RowRoom &room) {
  using A = typename Compute<T>::type;
  OnlineSums<A> mine;
  const A scale = exponent_scale<A>(tau);
  for_each_pack_of_many(row, n, threadIdx.x, kRowThreads, [&](int64_t, const Pack<T> &p, int count) { mine.add(p, count, scale); });
  return merge_block(mine, 1 / tau, room);
}

}  // namespace mgrpo::cuda
