// Operations of a whole block of threads, or of a warp. All threads of the block or warp call each function. The numbers of the threads
// determine the order of additions, and there are no atomics on floating-point numbers. So the bits of a result are the same each time.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mgrpo::cuda {

constexpr int kWarp = 32;                    // threads of a warp
constexpr unsigned kAllLanes = 0xFFFFFFFFu;  // the mask of all lanes of a warp

// Return the thread's lane in its warp, and its warp in the block. Blocks have one dimension. Some kernels divide the unsigned threadIdx.x
// instead. That takes fewer instructions, and they use all their registers.
__device__ inline int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / kWarp; }

// Shared memory for kThreads objects of type T. A shared variable cannot have a type with a constructor.
template <class T, int kThreads>
struct Storage {
  alignas(T) unsigned char bytes[sizeof(T) * kThreads];
  __device__ T *get() { return reinterpret_cast<T *>(bytes); }
};

// Returns the launch's dynamic shared memory, which is aligned to 16 bytes.
__device__ inline void *dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ uint4 memory[];
  return memory;
#else
  return emulator::dynamic_shared();  // kernels/test/emulator
#endif
}

// Returns the sum of one number of each of kLanes neighbouring lanes to each of these lanes.
template <int kLanes, class T>
__device__ T lanes_sum(T value) {
#pragma unroll
  for (int by = kLanes / 2; by > 0; by /= 2) value += __shfl_xor_sync(kAllLanes, value, by);
  return value;
}

// Adds up kCount numbers of each lane over the lanes of a warp. The i-th sum is returned to the lanes from kWarp / kCount * i on. In each
// step a lane gives half of its numbers to another lane and keeps the other half, until it has one number. All sums have the same order of
// additions.
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

// Merges one value of each thread in a binary tree, and returns the result to every thread. `shared` has kThreads elements.
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

// Computes inclusive prefix sums over the threads: sums[i] is the sum of the values of threads 0 to i. `sums` has 2 * kThreads elements.
// Returns the half of it that contains the result.
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

// Lowers *smallest to value if value is smaller, or if *smallest is -1, which means that there is no number yet. value is not negative.
__device__ inline void report_min(int64_t *smallest, int64_t value) {
  atomicMin(reinterpret_cast<unsigned long long *>(smallest), static_cast<unsigned long long>(value));
}

}  // namespace mgrpo::cuda
