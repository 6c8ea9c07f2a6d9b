// The sums of a row's softmax, computed by one block.
#pragma once
#include "nonfinite.h"
#include "pack.cuh"

namespace mgrpo::cuda {

constexpr int kRowThreads = 512;

// The type of the arithmetic on logits of type T.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

constexpr double kLn2 = 0.693147180559945309417, kLog2E = 1.44269504088896340736;

// Returns 2^d. A GPU has an instruction for the power of a float. exp2f needs three more instructions for results below 2^-126.
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
// Returns d, or a lower bound at which the power is 0. An exponent of -Inf times a power of 0 would be NaN.
__device__ inline float clamp_min_exponent(float d) { return fmaxf(d, -150.0f); }
__device__ inline double clamp_min_exponent(double d) { return fmax(d, -1076.0); }

// Returns the larger number, or b if a is NaN.
__device__ inline float max_ignoring_nan(float a, float b) { return fmaxf(a, b); }
__device__ inline double max_ignoring_nan(double a, double b) { return a > b ? a : b; }

// Returns a b + c, rounded once.
__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// Returns the factor that turns a difference of logits into an exponent of 2 at the temperature tau.
template <class A>
__device__ inline A exponent_scale(double tau) {
  return static_cast<A>(kLog2E / tau);
}

// max z, sum 2^d and sum d 2^d with d = (z - max) scale, computed in one pass. If the maximum changes, the sums are rescaled.
template <class A>
struct OnlineSums {
  A max = -kInf, sum = 0, weighted = 0;
  bool unreadable = false;

  // Adds the first `count` > 0 elements of a pack. A NaN does not change the maximum. A NaN or +Inf makes the sum NaN.
  template <class T>
  __device__ void add(const Pack<T> &p, int count, A scale) {
    constexpr int kWidth = Pack<T>::kWidth;
    A z[kWidth], pack_max = -kInf;
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      z[i] = i < count ? static_cast<A>(widen(p.at[i])) : static_cast<A>(-kInf);
      pack_max = max_ignoring_nan(z[i], pack_max);
    }
    if (pack_max > max) rescale(pack_max, scale);
    if (max == -kInf) {  // all elements so far are -Inf or NaN
#pragma unroll
      for (int i = 0; i < kWidth; i++) unreadable |= z[i] != z[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      const A d = (z[i] - max) * scale, e = exp2_of(d);
      sum += e;
      weighted = multiply_add(e, clamp_min_exponent(d), weighted);
    }
  }
  __device__ void rescale(A to, A scale) {
    if (sum > 0) {
      const A d = clamp_min_exponent((max - to) * scale), e = exp2_of(d);
      weighted = (weighted + sum * d) * e;
      sum *= e;
    }
    max = to;
  }
};

// The sums of exp d and of d exp d over a row, in float64, with d = (z - max) / tau.
struct RowSums {
  double max = -kInf, sum = 0, weighted = 0;
  int32_t unreadable = 0;

  __device__ double mean_exponent() const { return weighted / sum; }
  __device__ bool all_impossible() const { return max == -kInf; }

  // Changes the maximum to `to`, which is at least as large, and rescales the sums.
  __device__ void raise(double to, double inv_tau) {
    if (sum != 0) {  // also if it is NaN
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

// Returns the thread's sums. If the sum is NaN, the row has a NaN or +Inf.
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

// The shared memory of merge_block.
struct MergeBuffer {
  float max[kRowWarps];
  double max64[kRowWarps];
  RowSums sums[kRowWarps];
};

__device__ inline float &max_of_warp(MergeBuffer &buffer, int warp, float) { return buffer.max[warp]; }
__device__ inline double &max_of_warp(MergeBuffer &buffer, int warp, double) { return buffer.max64[warp]; }

// Merges the sums of the block's threads, and returns the result to the threads of the first warp. First all threads agree on the maximum,
// so that each computes one exponential. Then the lanes of a warp are added by shuffles, and the warps are added in their order. The shared
// memory may be used for the next call at once.
template <class A>
__device__ RowSums merge_block(const OnlineSums<A> &mine, double inv_tau, MergeBuffer &buffer) {
  A max = mine.max;
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const A other = __shfl_xor_sync(kAllLanes, max, by);
    max = other > max ? other : max;
  }
  if (lane() == 0) max_of_warp(buffer, warp(), A{}) = max;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kRowWarps; w++) {
    const A other = max_of_warp(buffer, w, A{});
    max = other > max ? other : max;
  }
  RowSums s = row_part(mine);
  s.raise(max, inv_tau);
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) {
    RowSums o;
    o.sum = __shfl_down_sync(kAllLanes, s.sum, by);
    o.weighted = __shfl_down_sync(kAllLanes, s.weighted, by);
    o.unreadable = __shfl_down_sync(kAllLanes, s.unreadable, by);
    if (lane() < by) s.add(o);
  }
  if (lane() == 0) buffer.sums[warp()] = s;
  __syncthreads();
  if (warp() > 0) return s;
  s = buffer.sums[0];
#pragma unroll 3
  for (int w = 1; w < kRowWarps; w++) s.add(buffer.sums[w]);
  return s;
}

// Returns the sums of row [n] to the threads of the first warp.
template <class T>
__device__ RowSums row_sums(const T *row, int64_t n, double tau, MergeBuffer &buffer) {
  using A = typename Compute<T>::type;
  OnlineSums<A> mine;
  const A scale = exponent_scale<A>(tau);
  for_each_pack_of_many(row, n, threadIdx.x, kRowThreads, [&](int64_t, const Pack<T> &p, int count) { mine.add(p, count, scale); });
  return merge_block(mine, 1 / tau, buffer);
}

}  // namespace mgrpo::cuda
