// Compiled with --fmad=false, so that an update is bit-equal to the CPU's (see adamw_element.h).
#include "mgrpo/adamw.h"

#include "adamw_element.h"
#include "block.cuh"
#include "device.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kNormBlock = 1 << 16;  // elements a block adds up

__global__ __launch_bounds__(kThreads) void squares_kernel(const float *grad, int64_t n, int64_t blocks, double *sums) {
  __shared__ double shared[kThreads];
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t end = n < (b + 1) * kNormBlock ? n : (b + 1) * kNormBlock;
    double mine = 0;
    for (int64_t i = b * kNormBlock + threadIdx.x; i < end; i += kThreads) mine += static_cast<double>(grad[i]) * grad[i];
    const double sum = block_sum<kThreads>(mine, shared);
    if (threadIdx.x == 0) sums[b] = sum;
  }
}

__global__ void adamw_kernel(AdamwFactors f, float *__restrict__ p, float *__restrict__ m, float *__restrict__ v,
                             const float *__restrict__ g, uint16_t *__restrict__ bf16, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    float pi = p[i], mi = m[i], vi = v[i];
    adamw_element(f, g[i], pi, mi, vi);
    p[i] = pi;
    m[i] = mi;
    v[i] = vi;
    if (bf16) bf16[i] = to_bfloat16(pi);
  }
}

int32_t grad_norm(const float *grad, int64_t n, double *norm, cudaStream_t stream) {
  const int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
  Scratch<double> sums(stream);
  MGRPO_TRY(sums.allocate(blocks));
  MGRPO_TRY(launch(squares_kernel, {block_count(blocks), kThreads}, stream, grad, n, blocks, sums.get()));
  std::vector<double> host(static_cast<size_t>(blocks));
  MGRPO_TRY(sums.download(host.data(), blocks));
  double sum = 0;
  for (double s : host) sum += s;
  *norm = sqrt(sum);
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
  return guarded([&] { return grad_norm(grad, n, norm, stream_of(stream)); });
}

int32_t mgrpo_adamw_cuda(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                         const mgrpo_adamw_config *config, void *stream) {
  if (n < 0 || config == nullptr || !valid(*config)) return MGRPO_INVALID_ARGUMENT;
  if (n > 0 && !(param && m && v && grad)) return MGRPO_INVALID_ARGUMENT;
  if (!isfinite(norm)) return MGRPO_NON_FINITE;
  if (n == 0) return MGRPO_OK;
  AdamwFactors factors = adamw_factors(*config);
  factors.scale = clip_scale(norm, config->max_norm);
  return launch(adamw_kernel, {block_count((n + kThreads - 1) / kThreads), kThreads}, stream_of(stream), factors, param, m, v,
                grad, bf16_or_null, n);
}
