// Wrong kernels. Each has an error that the emulator must report, and a variant without the error.
#include <cooperative_groups.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "block.cuh"
#include "copy_ahead.cuh"
#include "device.h"
#include "mgrpo/adamw.h"
#include "mgrpo/cuda_error.h"
#include "mgrpo/memory.h"
#include "mma.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 96;

template <class... Parameters, class... Arguments>
std::vector<int> run(void (*kernel)(Parameters...), const Shape &shape, Arguments... arguments) {
  std::vector<int> out(static_cast<size_t>(shape.blocks) * shape.threads);
  Scratch<int> memory(nullptr);
  EXPECT_EQ(memory.allocate(static_cast<int64_t>(out.size())), MGRPO_OK);
  EXPECT_EQ(launch(kernel, shape, nullptr, memory.get(), arguments...), MGRPO_OK);
  EXPECT_EQ(memory.download(out.data(), static_cast<int64_t>(out.size())), MGRPO_OK);
  return out;
}

__global__ void reverse_kernel(int *out, bool waits) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (waits) __syncthreads();
  out[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
}

TEST(Emulator, AMissingBarrierGivesAnotherResult) {
  std::vector<int> want(kThreads);
  std::iota(want.rbegin(), want.rend(), 0);
  EXPECT_EQ(run(reverse_kernel, {1, kThreads}, true), want);
  EXPECT_NE(run(reverse_kernel, {1, kThreads}, false), want);
}

__global__ void parting_kernel(int *, int mistake) {
  if (mistake == 1 && threadIdx.x == 5) return;
  if (mistake == 2 && threadIdx.x >= 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(EmulatorDeathTest, ThreadsThatPartAtABarrier) {
  run(parting_kernel, {1, kThreads}, 0);
  EXPECT_DEATH(run(parting_kernel, {1, kThreads}, 1), "threads of a block part at a barrier.*has ended");
  EXPECT_DEATH(run(parting_kernel, {1, kThreads}, 2), "threads of a block part at a barrier");
}

__global__ void sum_of_lanes_kernel(int *out, int mistake) {
  int value = static_cast<int>(threadIdx.x);
  if (mistake == 1 && threadIdx.x == 40) return;
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, step);
  out[threadIdx.x] = value;
}

TEST(EmulatorDeathTest, WarpsExchange) {
  const auto got = run(sum_of_lanes_kernel, {1, kThreads}, 0);
  for (int i = 0; i < kThreads; i++) EXPECT_EQ(got[i], 31 * 16 + i / 32 * 1024);
  EXPECT_DEATH(run(sum_of_lanes_kernel, {1, kThreads}, 1), "part at a barrier.*has ended");
}

// A lane's elements of a product's matrices, as figures 80 to 82 of PTX ISA 9.0 show them; a is [16, 16], b [16, 8], c [16, 8].
__global__ void product_kernel(int *, const float *a, const float *b, float *c) {
  const auto g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const unsigned from_a[4] = {
      bf16_pair(a[g * 16 + 2 * t], a[g * 16 + 2 * t + 1]), bf16_pair(a[(g + 8) * 16 + 2 * t], a[(g + 8) * 16 + 2 * t + 1]),
      bf16_pair(a[g * 16 + 2 * t + 8], a[g * 16 + 2 * t + 9]), bf16_pair(a[(g + 8) * 16 + 2 * t + 8], a[(g + 8) * 16 + 2 * t + 9])};
  const unsigned from_b[2] = {bf16_pair(b[2 * t * 8 + g], b[(2 * t + 1) * 8 + g]),
                              bf16_pair(b[(2 * t + 8) * 8 + g], b[(2 * t + 9) * 8 + g])};
  float sum[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1]};
  mma(sum, from_a, from_b);
  c[g * 8 + 2 * t] = sum[0], c[g * 8 + 2 * t + 1] = sum[1], c[(g + 8) * 8 + 2 * t] = sum[2], c[(g + 8) * 8 + 2 * t + 1] = sum[3];
}

TEST(Emulator, TensorCoresMultiply) {
  std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8), want(16 * 8);
  for (size_t i = 0; i < a.size(); i++) a[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
  for (size_t i = 0; i < b.size(); i++) b[i] = static_cast<float>(static_cast<int>(i * 53 % 97) - 48);
  for (size_t i = 0; i < c.size(); i++) c[i] = static_cast<float>(i) / 4;
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++) {
      want[row * 8 + column] = c[row * 8 + column];
      for (int k = 0; k < 16; k++) want[row * 8 + column] += a[row * 16 + k] * b[k * 8 + column];
    }
  Scratch<float> A(nullptr), B(nullptr), C(nullptr);
  ASSERT_EQ(A.upload(a.data(), 16 * 16) | B.upload(b.data(), 16 * 8) | C.upload(c.data(), 16 * 8), MGRPO_OK);
  run(product_kernel, {1, 32}, A.get(), B.get(), C.get());
  ASSERT_EQ(C.download(c.data(), 16 * 8), MGRPO_OK);
  EXPECT_EQ(c, want);
}

TEST(Emulator, TensorCoresCutSumsOff) {
  EXPECT_EQ(emulator::cut_off(1 + 0x1.8p-24), 1);
  EXPECT_EQ(emulator::cut_off(-1 - 0x1.8p-24), -1);
  EXPECT_EQ(emulator::cut_off(-3.25), -3.25);
  EXPECT_TRUE(std::isnan(emulator::cut_off(NAN)));
  EXPECT_EQ(emulator::cut_off(-HUGE_VAL), -HUGE_VAL);
}

__global__ void ahead_kernel(int *out, const uint4 *in) {
  __shared__ uint4 shared[2];
  if (threadIdx.x > 0) return;
  for (int i = 0; i < 2; i++) {
    copy_ahead(shared + i, in + i);
    end_copies();
  }
  const auto has = [&](int i) { return shared[i].x == in[i].x; };
  wait_for_copies(1);
  out[0] = has(0), out[1] = has(1);
  wait_for_copies(0);
  out[2] = has(0), out[3] = has(1);
}

TEST(Emulator, CopiesAheadAreThereAfterAWait) {
  const std::vector<uint4> host{{1, 2, 3, 4}, {5, 6, 7, 8}};
  Scratch<uint4> in(nullptr);
  ASSERT_EQ(in.upload(host.data(), 2), MGRPO_OK);
  const std::vector<int> out = run(ahead_kernel, {1, 4}, in.get());
  EXPECT_EQ(out, (std::vector<int>{1, 0, 1, 1}));
}

__global__ void leftover_kernel(int *out) {
  __shared__ int shared[kThreads];
  out[blockIdx.x * kThreads + threadIdx.x] = shared[threadIdx.x];
  shared[threadIdx.x] = 7;
}

TEST(Emulator, ABlockFindsNothingOfTheLast) {
  for (int v : run(leftover_kernel, {3, kThreads})) EXPECT_NE(v, 7);
}

__global__ void neighbour_kernel(int *out, bool waits) {
  __shared__ unsigned rank;  // unsigned, because a value that is read too early is arbitrary
  auto *const all = static_cast<unsigned *>(dynamic_shared());
  auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) rank = cluster.block_rank();
  all[threadIdx.x] = 100 * cluster.block_rank() + threadIdx.x;
  if (waits) cluster.sync();
  const unsigned other = (cluster.block_rank() + 1) % cluster.num_blocks();
  const unsigned found = *cluster.map_shared_rank(&rank, other) * 1000 + *cluster.map_shared_rank(all + threadIdx.x, other);
  out[blockIdx.x * kThreads + threadIdx.x] = static_cast<int>(found);
  cluster.sync();
}

TEST(Emulator, BlocksOfAClusterReadEachOther) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Shape shape{8, kThreads, kThreads * sizeof(int), 4};
  std::vector<int> want;
  for (int b = 0; b < 8; b++)
    for (int t = 0; t < kThreads; t++) want.push_back((b + 1) % 4 * 1100 + t);
  EXPECT_EQ(run(neighbour_kernel, shape, true), want);
  EXPECT_NE(run(neighbour_kernel, shape, false), want);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(launch(neighbour_kernel, shape, nullptr, static_cast<int *>(nullptr), true), MGRPO_CUDA_ERROR);
}

TEST(EmulatorDeathTest, CopiesStayOnTheirSide) {
  Scratch<int> memory(nullptr);
  int host[4] = {};
  ASSERT_EQ(memory.upload(host, 4), MGRPO_OK);
  EXPECT_DEATH(memory.download(host, 5), "after their allocation");
  EXPECT_DEATH(cudaMemcpyAsync(host, host, 4, cudaMemcpyHostToDevice, nullptr), "is no device memory");
  EXPECT_DEATH(cudaMemcpyAsync(memory.get(), memory.get(), 4, cudaMemcpyDeviceToHost, nullptr), "is device memory");
}

TEST(Emulator, NothingHappensBeforeSomebodyWaits) {
  Scratch<int> memory(nullptr);
  int host = 1;
  ASSERT_EQ(memory.allocate_ones(1), MGRPO_OK);
  ASSERT_EQ(cudaMemcpyAsync(&host, memory.get(), sizeof host, cudaMemcpyDeviceToHost, nullptr), cudaSuccess);
  EXPECT_EQ(host, 1);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(host, -1);
}

std::vector<int64_t> asked;  // in bytes; 0 for a release
bool exhausted = false;

void *ask(int64_t bytes, void *stream) {
  asked.push_back(bytes);
  void *memory = nullptr;
  return !exhausted && cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream_of(stream)) == cudaSuccess ? memory : nullptr;
}

void give_back(void *memory, void *stream) {
  asked.push_back(0);
  cudaFreeAsync(memory, stream_of(stream));
}

TEST(Emulator, PowersAreOffAsOftenAsAsked) {
  int off = 0;
  for (int i = 1; i <= 1000; i++) {
    const float x = -0.013f * static_cast<float>(i), exact = (expf)(x);  // the function, not the macro
    const int64_t ulps = int64_t(std::bit_cast<uint32_t>(expf(x))) - int64_t(std::bit_cast<uint32_t>(exact));
    EXPECT_LE(std::abs(ulps), emulator::ulps) << x;
    off += ulps != 0;
  }
  EXPECT_EQ(off > 600, emulator::ulps > 0) << off;
  EXPECT_EQ(expf(0.0f), 1);
  EXPECT_EQ(exp2f(-200.0f), 0);
}

TEST(Emulator, ScratchComesFromWhereTheCallerSays) {
  const mgrpo_scratch scratch{ask, give_back};
  Scratch<float> gradient(nullptr);
  const std::vector<float> values(100000, 1);  // the sums of seven blocks, and the total
  ASSERT_EQ(gradient.upload(values.data(), 100000), MGRPO_OK);
  mgrpo_set_scratch_cuda(&scratch);
  double norm = 0;
  EXPECT_EQ(mgrpo_grad_norm_cuda(gradient.get(), 100000, &norm, nullptr), MGRPO_OK);
  EXPECT_FLOAT_EQ(norm, std::sqrt(100000.0));
  EXPECT_EQ(asked, (std::vector<int64_t>{8 * sizeof(double), 0}));
  exhausted = true;
  EXPECT_EQ(mgrpo_grad_norm_cuda(gradient.get(), 100000, &norm, nullptr), MGRPO_OUT_OF_MEMORY);
  EXPECT_EQ(std::string(mgrpo_cuda_last_error()).rfind("scratch: ", 0), 0u) << mgrpo_cuda_last_error();
  EXPECT_EQ(asked.size(), 3u);
  exhausted = false;
  {
    Scratch<float> ours(nullptr);
    ASSERT_EQ(ours.allocate(1), MGRPO_OK);
    mgrpo_set_scratch_cuda(nullptr);
  }
  EXPECT_EQ(asked, (std::vector<int64_t>{8 * sizeof(double), 0, 8 * sizeof(double), sizeof(float), 0})) << "returned to its pool";
  EXPECT_EQ(mgrpo_grad_norm_cuda(gradient.get(), 100000, &norm, nullptr), MGRPO_OK);
  EXPECT_EQ(asked.size(), 5u);
}

}  // namespace
}  // namespace mgrpo::cuda
