// CUDA's language and runtime API, as far as kernels/cuda uses them, for a C++ compiler. The threads of a block are fibers of one CPU
// thread, and device memory is host memory. emulator.cpp contains the implementation and lists its checks.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <vector>

#include "races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __CUDA_ARCH__ 900
#define __shared__ static  // shared.ld gathers these; the emulator fills them before each block and swaps them for the blocks of a cluster
#define __constant__ static const

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

// Constant for a thread; the emulator changes them when it switches threads.
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulator {

using Where = std::source_location;

[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char *format, ...);
void *dynamic_shared();
void block_barrier(Where where);
void warp_barrier(unsigned mask, Where where);
void cluster_barrier(Where where);
unsigned cluster_size();
unsigned cluster_rank();
const void *at_rank(const void *shared, unsigned rank);  // address of the same variable in block `rank` of the cluster
unsigned lane();
// Every lane of the mask provides `size` <= 16 bytes. slots[l] holds the bytes of lane l until that lane's second next exchange.
struct Slot {
  alignas(16) unsigned char bytes[16];
};
const Slot *exchange(unsigned mask, const void *value, size_t size, Where where);

template <class T>
T of_lane(const Slot *slots, unsigned lane) {
  T out;
  std::memcpy(&out, slots[lane].bytes, sizeof out);
  return out;
}

// Reads, modifies and writes without interruption by another thread, because threads switch at barriers only.
template <class T, class F>
[[gnu::noinline]] __attribute__((no_sanitize("thread"))) T atomically(T *at, const F &f) {
  races::atomic_access(at, sizeof *at, __builtin_return_address(0));
  const T old = *at;
  *at = f(old);
  return old;
}

template <class T, class F>
T reduce(unsigned mask, T value, Where where, const F &f) {
  const Slot *slots = exchange(mask, &value, sizeof value, where);
  bool first = true;
  for (unsigned l = 0; l < 32; l++) {
    if (!(mask >> l & 1)) continue;
    value = first ? of_lane<T>(slots, l) : f(value, of_lane<T>(slots, l));
    first = false;
  }
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, unsigned from, unsigned width, bool inside, Where where) {
  const Slot *slots = exchange(mask, &value, sizeof value, where);
  const unsigned group = lane() / width * width;
  if (!inside) return value;
  if (!(mask >> (group + from) & 1)) fail("a shuffle reads lane %u, which is not in its mask %#x", group + from, mask);
  return of_lane<T>(slots, group + from);
}

}  // namespace emulator

#define MGRPO_WHERE emulator::Where where = emulator::Where::current()

inline void __syncthreads(MGRPO_WHERE) { emulator::block_barrier(where); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, MGRPO_WHERE) { emulator::warp_barrier(mask, where); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32, MGRPO_WHERE) {
  return emulator::shuffle(mask, value, static_cast<unsigned>(from) % width, width, true, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, MGRPO_WHERE) {
  const unsigned from = (emulator::lane() % width) ^ static_cast<unsigned>(bits);
  return emulator::shuffle(mask, value, from, width, from < static_cast<unsigned>(width), where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, MGRPO_WHERE) {
  const unsigned from = emulator::lane() % width + by;
  return emulator::shuffle(mask, value, from, width, from < static_cast<unsigned>(width), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, MGRPO_WHERE) {
  const unsigned at = emulator::lane() % width;
  return emulator::shuffle(mask, value, at - by, width, at >= by, where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, MGRPO_WHERE) {
  const unsigned mine = predicate ? 1u << emulator::lane() : 0;
  return emulator::reduce(mask, mine, where, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate, MGRPO_WHERE) { return __ballot_sync(mask, predicate, where) != 0; }
inline int __all_sync(unsigned mask, int predicate, MGRPO_WHERE) { return __ballot_sync(mask, !predicate, where) == 0; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value, MGRPO_WHERE) {
  const emulator::Slot *slots = emulator::exchange(mask, &value, sizeof value, where);
  unsigned same = 0;
  for (unsigned l = 0; l < 32; l++)
    if (mask >> l & 1 && emulator::of_lane<T>(slots, l) == value) same |= 1u << l;
  return same;
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, MGRPO_WHERE) {
  return emulator::reduce(mask, value, where, [](T a, T b) { return a > b ? a : b; });
}

template <class T>
T atomicAdd(T *at, std::type_identity_t<T> value) {
  return emulator::atomically(at, [=](T old) { return old + value; });
}
template <class T>
T atomicMin(T *at, std::type_identity_t<T> value) {
  return emulator::atomically(at, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T *at, std::type_identity_t<T> value) {
  return emulator::atomically(at, [=](T old) { return value > old ? value : old; });
}
template <class T>
T atomicExch(T *at, std::type_identity_t<T> value) {
  return emulator::atomically(at, [=](T) { return value; });
}
template <class T>
T atomicCAS(T *at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return emulator::atomically(at, [=](T old) { return old == expected ? value : old; });
}

template <class T>
T __ldg(const T *at) {
  return *at;
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}

// The powers of a real GPU can be 2 units in the last place off, in ways that a CPU cannot repeat. With MGRPO_EMULATED_ULPS=2 the
// emulated GPU adds such errors; their size depends on the argument. A test that then fails is too strict for a GPU. 0 and 1 stay exact.
namespace emulator {
inline const int ulps = std::getenv("MGRPO_EMULATED_ULPS") != nullptr ? std::atoi(std::getenv("MGRPO_EMULATED_ULPS")) : 0;
inline float nudged(float power, float x) {
  if (ulps == 0 || x == 0 || !std::isnormal(power)) return power;
  const uint32_t mixed = (std::bit_cast<uint32_t>(x) ^ 0x9e3779b9u) * 0x85ebca6bu;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(power) + (mixed >> 16) % (2 * ulps + 1) - ulps);
}
}  // namespace emulator
#define expf(x) emulator::nudged(::expf(x), x)
#define exp2f(x) emulator::nudged(::exp2f(x), x)
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; i++) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return out;
}

// The runtime API. Device 0 has clusters of blocks, like sm_90; device 1 has no clusters, like sm_80.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInvalidDevice = 101,
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrClusterLaunch = 120,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4 };

struct CUstream_st;
using cudaStream_t = CUstream_st *;
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream);
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);

namespace emulator {
// Largest number of blocks in a launch of kernels/cuda. It is small so that kernels stride over rows in small tests too.
inline int64_t max_blocks = 7;

// Notes launches instead of running them, until plan(nullptr).
struct Planned {
  unsigned blocks, threads, cluster;
};
void plan(std::vector<Planned> *to);

cudaError_t set_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
// Number of blocks that fit the registers (64 per thread) and the dynamic shared memory.
int resident_blocks(const dim3 &size, size_t shared);
cudaError_t resident_clusters(int *count, const cudaLaunchConfig_t &config);
cudaError_t launch(const void *kernel, const cudaLaunchConfig_t &config, std::function<void()> thread);
}  // namespace emulator

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return emulator::set_attribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int *count, Kernel *, const cudaLaunchConfig_t *config) {
  return emulator::resident_clusters(count, *config);
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, Kernel *, int threads, size_t shared) {
  *count = emulator::resident_blocks(static_cast<unsigned>(threads), shared);
  return cudaSuccess;
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...), Arguments &&...arguments) {
  return emulator::launch(reinterpret_cast<const void *>(kernel), *config,
                          [kernel, all = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] { std::apply(kernel, all); });
}
