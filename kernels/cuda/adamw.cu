// AdamW and the norm of the gradient. An update has the same bits as on the CPU (adamw_element.h).
#include "adamw_element.h"
#include "bfloat16.h"
#include "block.cuh"
#include "device.h"
#include "mgrpo/adamw.h"
#include "pack.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256, kSumThreads = 1024;
constexpr int64_t kNormBlock = 1 << 14;  // the number of elements that a block adds up

// Returns the sum over the block's threads to thread 0. The lanes of a warp are added by shuffles, and then the warps in their order.
template <int kBlock>
__device__ double warps_sum(double value) {
  __shared__ double of_warp[kBlock / kWarp];
  value = lanes_sum<kWarp>(value);
  if (lane() == 0) of_warp[warp()] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (double s : of_warp) sum += s;
  __syncthreads();  // the next sum may overwrite these
  return sum;
}

__global__ __launch_bounds__(kThreads) void grad_norm_squares_kernel(const float *grad, int64_t n, int64_t blocks, double *sums) {
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t rest = n - b * kNormBlock;
    double mine = 0;
    for_each_pack_of_many(grad + b * kNormBlock, rest < kNormBlock ? rest : kNormBlock, threadIdx.x, kThreads,
                          [&](int64_t, const Pack<float> &p, int count) {
#pragma unroll
                            for (int i = 0; i < Pack<float>::kWidth; i++)
                              if (i < count) mine = fma(static_cast<double>(p.at[i]), static_cast<double>(p.at[i]), mine);
                          });
    const double sum = warps_sum<kThreads>(mine);
    if (threadIdx.x == 0) sums[b] = sum;
  }
}

// Adds up sums [n] with one block. A thread adds its numbers in their order.
__global__ __launch_bounds__(kSumThreads) void grad_norm_sum_kernel(const double *sums, int64_t n, double *total) {
  double mine = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kSumThreads) mine += sums[i];
  const double sum = warps_sum<kSumThreads>(mine);
  if (threadIdx.x == 0) *total = sum;
}

struct Tensors {
  float *__restrict__ p, *__restrict__ m, *__restrict__ v;
  const float *__restrict__ g;
  uint16_t *__restrict__ bf16;  // or null
};

__device__ void update(const AdamwFactors &f, const Tensors &t, int64_t i) {
  float p = t.p[i], m = t.m[i], v = t.v[i];
  adamw_element(f, t.g[i], p, m, v);
  t.p[i] = p;
  t.m[i] = m;
  t.v[i] = v;
  if (t.bf16) t.bf16[i] = to_bfloat16(p);
}

// Updates four elements from i on, with loads and stores of 16 bytes.
__device__ void update_four(const AdamwFactors &f, const Tensors &t, int64_t i) {
  float4 p = *reinterpret_cast<const float4 *>(t.p + i), m = *reinterpret_cast<const float4 *>(t.m + i),
         v = *reinterpret_cast<const float4 *>(t.v + i);
  const float4 g = *reinterpret_cast<const float4 *>(t.g + i);
  adamw_element(f, g.x, p.x, m.x, v.x);
  adamw_element(f, g.y, p.y, m.y, v.y);
  adamw_element(f, g.z, p.z, m.z, v.z);
  adamw_element(f, g.w, p.w, m.w, v.w);
  *reinterpret_cast<float4 *>(t.p + i) = p;
  *reinterpret_cast<float4 *>(t.m + i) = m;
  *reinterpret_cast<float4 *>(t.v + i) = v;
  if (!t.bf16) return;
  const auto pair = [](float low, float high) {
    return static_cast<unsigned>(to_bfloat16(low)) | static_cast<unsigned>(to_bfloat16(high)) << 16;
  };
  *reinterpret_cast<uint2 *>(t.bf16 + i) = {pair(p.x, p.y), pair(p.z, p.w)};
}

// Each thread updates four elements at a time. If the number of elements is not a multiple of four, further threads update the last ones,
// one each.
__global__ __launch_bounds__(kThreads) void adamw_kernel(AdamwFactors f, Tensors t, int64_t n, int64_t fours) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads, first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t i = first; i < fours; i += stride) update_four(f, t, 4 * i);
#pragma unroll 1
  for (int64_t i = 4 * fours + first; i < n; i += stride) update(f, t, i);
}

bool aligned(const Tensors &t) {
  const auto to = [](const void *p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  return to(t.p, 16) && to(t.m, 16) && to(t.v, 16) && to(t.g, 16) && to(t.bf16, 8);
}

int32_t grad_norm(const float *grad, int64_t n, double *norm, cudaStream_t stream) {
  const int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
  Scratch<double> sums(stream);  // the last element is the total
  MGRPO_TRY(sums.allocate(blocks + 1));
  MGRPO_TRY(launch(grad_norm_squares_kernel, {block_count(blocks), kThreads}, stream, grad, n, blocks, sums.get()));
  MGRPO_TRY(launch(grad_norm_sum_kernel, {1, kSumThreads}, stream, sums.get(), blocks, sums.get() + blocks));
  MGRPO_TRY(sums.download(norm, 1, blocks));
  *norm = sqrt(*norm);
  return MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_grad_norm_cuda(const float *grad, int64_t n, double *norm, void *stream) {
  if (n < 0 || norm == nullptr || (n > 0 && grad == nullptr)) return MGRPO_INVALID_ARGUMENT;
  *norm = 0;
  if (n == 0) return MGRPO_OK;
  return grad_norm(grad, n, norm, stream_of(stream));
}

int32_t mgrpo_adamw_cuda(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                         const mgrpo_adamw_config *config, void *stream) {
  if (n < 0 || config == nullptr || !valid(*config)) return MGRPO_INVALID_ARGUMENT;
  if (n > 0 && !(param && m && v && grad)) return MGRPO_INVALID_ARGUMENT;
  if (!isfinite(norm)) return MGRPO_NON_FINITE;
  if (n == 0) return MGRPO_OK;
  AdamwFactors factors = adamw_factors(*config);
  factors.scale = clip_scale(norm, config->max_norm);
  const Tensors tensors{param, m, v, grad, bf16_or_null};
  const int64_t fours = aligned(tensors) ? n / 4 : 0, threads = fours > n - 4 * fours ? fours : n - 4 * fours;
  return launch(adamw_kernel, {block_count((threads + kThreads - 1) / kThreads), kThreads}, stream_of(stream), factors, tensors, n, fours);
}
