// Operations of a whole block of threads, or of a warp. Every function here is called by all threads of the block or warp, and its
// order of operations is fixed by the thread numbers. There are no atomics on floating point, so the bits are the same each time.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mgrpo::cuda {

constexpr int kWarp = 32;                    // threads of a warp
constexpr unsigned kAllLanes = 0xFFFFFFFFu;  // the mask of all of them

// Return the thread's lane in its warp, and its warp in the block. Blocks have one dimension.
__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// Room for one T a thread in shared memory, which can hold no type with a constructor.
template <class T, int kThreads>
struct Storage {
  alignas(T) unsigned char bytes[sizeof(T) * kThreads];
  __device__ T *get() { return reinterpret_cast<T *>(bytes); }
};

// The launch's dynamic shared memory, aligned to 16 bytes.
__device__ inline void *dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ uint4 memory[];
  return memory;
#else
  return emulator::dynamic_shared();  // kernels/test/emulator
#endif
}

// The sum of one number from each of kLanes lanes, returned to every lane.
template <int kLanes, class T>
__device__ T lanes_sum(T value) {
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) value += __shfl_xor_sync(kAllLanes, value, by);
  return value;
}

// Adds up the numbers of a warp's lanes, kCount of each: the i-th sum is returned to the lanes from kWarp / kCount * i on. A lane gives
// half of its numbers away and keeps the other half, until it has one. All sums have the same order.
template <int kCount>
__device__ float lanes_sums(float (&values)[kCount]) {
  static_assert(kCount <= kWarp && (kCount & (kCount - 1)) == 0, "halves need a power of two");
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const int by = half * (kWarp / kCount);
    const bool upper = (lane() & by) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; i++) {
      if (i >= half) break;
      const float given = upper ? values[i] : values[i + half];
      values[i] = (upper ? values[i + half] : values[i]) + __shfl_xor_sync(kAllLanes, given, by);
    }
  }
  return lanes_sum<kWarp / kCount>(values[0]);
}

// Merges one value a thread by a binary tree and gives the result to every thread. shared: [kThreads].
template <int kThreads, class T, class Merge>
__device__ T block_reduce(T value, T *shared, const Merge &merge) {
  static_assert((kThreads & (kThreads - 1)) == 0, "the tree needs a power of two");
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) merge(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const T result = shared[0];
  __syncthreads();  // the next call may overwrite shared
  return result;
}

template <int kThreads, class T>
__device__ T block_sum(T value, T *shared) {
  return block_reduce<kThreads>(value, shared, [](T &a, const T &b) { a += b; });
}

// Inclusive prefix sums over the threads: sums[i] = value of threads 0..i. sums: [2 * kThreads]; the half that
// holds the result is returned.
template <int kThreads>
__device__ const double *block_scan(double value, double *sums) {
  double *from = sums, *to = sums + kThreads;
  from[threadIdx.x] = value;
  __syncthreads();
  for (int offset = 1; offset < kThreads; offset *= 2) {
    to[threadIdx.x] = threadIdx.x >= offset ? from[threadIdx.x - offset] + from[threadIdx.x] : from[threadIdx.x];
    __syncthreads();
    double *const swap = from;
    from = to;
    to = swap;
  }
  return from;
}

// The smallest non-negative number seen; -1 = none.
__device__ inline void report_least(int64_t *least, int64_t value) {
  atomicMin(reinterpret_cast<unsigned long long *>(least), static_cast<unsigned long long>(value));
}

}  // namespace mgrpo::cuda
