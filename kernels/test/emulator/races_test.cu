// Kernels with a race that races.cpp must report. Each has a variant without the race, which must pass without a report.
#include <cooperative_groups.h>
#include <gtest/gtest.h>

#include "block.cuh"
#include "device.h"
#include "softmax_row.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 96, kBlocks = 6;

template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), const Shape &shape, Arguments... arguments) {
  Scratch<int> memory(nullptr);
  ASSERT_EQ(memory.allocate_ones(static_cast<int64_t>(shape.blocks) * shape.threads), MGRPO_OK);
  ASSERT_EQ(launch(kernel, shape, nullptr, memory.get(), arguments...), MGRPO_OK);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

// Threads run to their barriers one after another, so the report may name either access first.
#define EXPECT_RACE(...) \
  EXPECT_DEATH(run(__VA_ARGS__), "race: it .* races_test.cu:[0-9]+.*, which block .* races_test.cu:[0-9]+.*, and nothing orders")

__device__ int number() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

__global__ void reverse_kernel(int *out, bool waits) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = number();
  if (waits) __syncthreads();
  out[number()] = shared[kThreads - 1 - threadIdx.x];
}

TEST(Races, AMissingBarrier) {
  run(reverse_kernel, {kBlocks, kThreads}, true);
  EXPECT_RACE(reverse_kernel, {kBlocks, kThreads}, false);
}

// The first barrier is present, and the results are correct in every order of threads.
__global__ void reuse_kernel(int *out, bool waits) {
  __shared__ int shared;
  for (int i = 0; i < 3; i++) {
    if (threadIdx.x == 0) shared = i;
    __syncthreads();
    out[number()] = shared;
    if (waits || i == 2) __syncthreads();
  }
}

TEST(Races, SharedMemoryThatIsReusedTooEarly) {
  run(reuse_kernel, {kBlocks, kThreads}, true);
  EXPECT_RACE(reuse_kernel, {kBlocks, kThreads}, false);
}

__global__ void dynamic_kernel(int *out, bool waits) {
  auto *shared = static_cast<char *>(dynamic_shared());
  shared[threadIdx.x] = 1;
  if (waits) __syncthreads();
  out[number()] = shared[threadIdx.x ^ 1];
}

TEST(Races, BytesOfDynamicSharedMemory) {
  run(dynamic_kernel, {kBlocks, kThreads, kThreads}, true);
  EXPECT_RACE(dynamic_kernel, {kBlocks, kThreads, kThreads}, false);
}

enum Meeting { kNot, kOthers, kHalves, kWhole, kShuffle };

// A lane reads the value of its neighbour in the same half of the warp, and finally a value of the other half.
__global__ void warp_kernel(int *out, Meeting halves, Meeting whole) {
  __shared__ int shared[kThreads];
  const unsigned lane = threadIdx.x % 32, half = lane < 16 ? 0xFFFF : 0xFFFF0000;
  shared[threadIdx.x] = 1;
  if (halves == kHalves) __syncwarp(half);
  if (halves == kOthers) __syncwarp(lane % 2 ? 0xAAAAAAAA : 0x55555555);
  out[number()] = shared[threadIdx.x ^ 1];
  if (whole == kHalves) __syncwarp(half);
  if (whole == kWhole) __syncwarp();
  if (whole == kShuffle) __shfl_sync(0xFFFFFFFF, 0, 0);  // this does not order memory
  out[number()] = shared[threadIdx.x ^ 16];
}

TEST(Races, AMissingMeetingOfLanes) {
  run(warp_kernel, {kBlocks, kThreads}, kHalves, kWhole);
  EXPECT_RACE(warp_kernel, {kBlocks, kThreads}, kNot, kWhole);
  EXPECT_RACE(warp_kernel, {kBlocks, kThreads}, kOthers, kWhole);
  EXPECT_RACE(warp_kernel, {kBlocks, kThreads}, kHalves, kNot);
  EXPECT_RACE(warp_kernel, {kBlocks, kThreads}, kHalves, kHalves);
  EXPECT_RACE(warp_kernel, {kBlocks, kThreads}, kHalves, kShuffle);
}

// Warp barriers do not order different warps.
__global__ void other_warp_kernel(int *out, bool waits) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = 1;
  __syncwarp();
  if (waits) __syncthreads();
  out[number()] = shared[(threadIdx.x + 32) % kThreads];
}

TEST(Races, WarpsThatMeetOnTheirOwn) {
  run(other_warp_kernel, {kBlocks, kThreads}, true);
  EXPECT_RACE(other_warp_kernel, {kBlocks, kThreads}, false);
}

enum What { kOwn, kSum, kEqualValues, kReadsTheLast, kReadsASum };

__global__ void blocks_kernel(int *out, What what) {
  if (threadIdx.x > 0) return;
  const unsigned own = blockIdx.x * blockDim.x;
  out[own] = 1;
  if (what == kSum || what == kReadsASum) atomicAdd(out + 1, 1);
  if (what == kEqualValues) out[1] = 1;
  if (what == kReadsTheLast && blockIdx.x > 0) out[own + 1] = out[own - blockDim.x];
  if (what == kReadsASum) out[own + 2] = out[1];
}

TEST(Races, BlocksOfALaunch) {
  run(blocks_kernel, {kBlocks, kThreads}, kOwn);
  run(blocks_kernel, {kBlocks, kThreads}, kSum);
  EXPECT_RACE(blocks_kernel, {kBlocks, kThreads}, kEqualValues);
  EXPECT_RACE(blocks_kernel, {2, kThreads}, kEqualValues);
  EXPECT_RACE(blocks_kernel, {kBlocks, kThreads}, kReadsTheLast);
  EXPECT_RACE(blocks_kernel, {kBlocks, kThreads}, kReadsASum);
}

// Every thread reads a value that block 0 writes at the end. The result is correct only because of the order in which they run.
__global__ void read_first_kernel(int *out, bool writes) {
  const int first = out[0];
  __syncthreads();
  if (blockIdx.x == kBlocks - 1 && threadIdx.x == 0 && writes) out[0] = first + 1;
}

TEST(Races, AWriteAfterOthersHaveRead) {
  run(read_first_kernel, {kBlocks, kThreads}, false);
  run(read_first_kernel, {1, kThreads}, true);
  EXPECT_RACE(read_first_kernel, {kBlocks, kThreads}, true);
}

// Launches on the same stream are ordered.
TEST(Races, LaunchesOfAStream) {
  Scratch<int> memory(nullptr);
  ASSERT_EQ(memory.allocate_ones(kBlocks * kThreads), MGRPO_OK);
  for (unsigned blocks : {6u, 2u, 6u}) ASSERT_EQ(launch(blocks_kernel, {blocks, kThreads}, nullptr, memory.get(), kOwn), MGRPO_OK);
  for (int i = 0; i < 2; i++) ASSERT_EQ(launch(read_first_kernel, {1, kThreads}, nullptr, memory.get(), true), MGRPO_OK);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

enum Missing { kNothing, kFirst, kLast, kOfCluster };

__global__ void cluster_kernel(int *out, Missing missing) {
  __shared__ int rank;
  auto *const all = static_cast<int *>(dynamic_shared());
  auto cluster = cooperative_groups::this_cluster();
  const unsigned other = (cluster.block_rank() + 1) % cluster.num_blocks();
  for (int i = 0; i < 2; i++) {
    if (threadIdx.x == 0) rank = static_cast<int>(cluster.block_rank());
    all[threadIdx.x] = number();
    if (missing == kOfCluster)
      __syncthreads();
    else if (missing != kFirst)
      cluster.sync();
    out[number()] = *cluster.map_shared_rank(&rank, other) + *cluster.map_shared_rank(all + threadIdx.x, other);
    if (missing != kLast || i == 1) cluster.sync();
  }
}

TEST(Races, BlocksOfACluster) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Shape shape{8, kThreads, kThreads * sizeof(int), 4};
  run(cluster_kernel, shape, kNothing);
  EXPECT_RACE(cluster_kernel, shape, kFirst);
  EXPECT_RACE(cluster_kernel, shape, kLast);
  EXPECT_RACE(cluster_kernel, shape, kOfCluster);
}

__global__ void flag_kernel(int *out, bool is_atomic) {
  __shared__ int seen;
  if (threadIdx.x == 0) seen = 0;
  __syncthreads();
  if (threadIdx.x > 70) is_atomic ? void(atomicExch(&seen, 1)) : void(seen = 1);
  __syncthreads();
  out[number()] = seen;
}

TEST(Races, ThreadsThatWriteTheSame) {
  run(flag_kernel, {kBlocks, kThreads}, true);
  EXPECT_RACE(flag_kernel, {kBlocks, kThreads}, false);
}

// Accesses sixteen bytes at once, aligned or copied, and reads that bypass the caches.
__global__ void pack_kernel(int *out, bool is_aligned, bool waits) {
  __shared__ uint4 room[kThreads];
  auto *const shared = reinterpret_cast<float *>(room);
  const int own = 4 * static_cast<int>(threadIdx.x), other = own ^ 4;
  const Pack<float> pack{{1, 2, 3, 4}};
  if (is_aligned)
    store_pack(shared, pack, own, 4 * kThreads, true);
  else
    __builtin_memcpy(shared + own, pack.at, sizeof pack.at);
  if (waits) __syncthreads();
  Pack<float> read;
  if (is_aligned)
    read = load_pack(shared, other, 4 * kThreads, true);
  else
    __builtin_memcpy(read.at, shared + other, sizeof read.at);
  out[number()] = static_cast<int>(read.at[3]);
}

__global__ void past_caches_kernel(int *out, bool waits) {
  out[number()] = 1;
  if (waits) __syncthreads();
  if (__ldg(out + (number() ^ 1)) == 7) out[number()] = 2;
}

TEST(Races, OneAccessOfSixteenBytes) {
  for (bool is_aligned : {true, false}) {
    run(pack_kernel, {kBlocks, kThreads}, is_aligned, true);
    EXPECT_RACE(pack_kernel, {kBlocks, kThreads}, is_aligned, false);
  }
  run(past_caches_kernel, {kBlocks, kThreads}, true);
  EXPECT_RACE(past_caches_kernel, {kBlocks, kThreads}, false);
}

struct Wide {
  double at[4];
};

__global__ void wide_kernel(int *out, bool before) {
  if (threadIdx.x >= 8) return;
  auto *own = reinterpret_cast<Wide *>(out + blockIdx.x * blockDim.x) + threadIdx.x;
  *own = Wide{};
  if (before && threadIdx.x == 5) reinterpret_cast<char *>(own)[-1] = 1;
}

TEST(Races, AByteOfAStructure) {
  run(wide_kernel, {kBlocks, kThreads}, false);
  EXPECT_RACE(wide_kernel, {kBlocks, kThreads}, true);
}

}  // namespace
}  // namespace mgrpo::cuda
