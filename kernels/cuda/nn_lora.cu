// One block a row: its warps share out the products with A, which wait in shared memory for those with B, of which a thread
// has whole ones. Sums have one order, whatever the other rows are.
#include "lora.h"

#include <algorithm>

#include "block.cuh"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kWarp = 32, kThreads = 256;
constexpr int64_t kAdapters = 16;  // of one launch: its arguments are at most 4 KiB

struct Adapter {
  const float *values;
  int64_t rank, count;
  mgrpo_lora_part parts[MGRPO_LORA_PARTS];
};

struct Adapters {
  int64_t first, count;
  Adapter all[kAdapters];
};

template <class T>
__global__ __launch_bounds__(kThreads) void lora_kernel(const __grid_constant__ Adapters adapters, const int32_t *which, const T *x,
                                                        T *y, int64_t rows, int64_t k, int64_t n) {
  auto *u = static_cast<float *>(dynamic_shared());
  const int lane = threadIdx.x % kWarp;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t i = (which != nullptr ? which[r] : 0) - adapters.first;
    if (i < 0 || i >= adapters.count) continue;  // the same for the whole block
    const Adapter &a = adapters.all[i];
    const T *from = x + r * k;
    for (int64_t j = threadIdx.x / kWarp; j < a.rank; j += kThreads / kWarp) {
      const float *row = a.values + j * k;
      float sum = 0;
      for (int64_t c = lane; c < k; c += kWarp) sum = fmaf(row[c], widen(from[c]), sum);
      for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
      if (lane == 0) u[j] = sum;
    }
    __syncthreads();
    const float *b = a.values + a.rank * k, *product = u;
    for (int64_t p = 0; p < a.count; p++) {
      const mgrpo_lora_part &part = a.parts[p];
      T *to = y + r * n + part.from;
      for (int64_t j = threadIdx.x; j < part.n; j += kThreads) {
        float sum = 0;
        for (int64_t c = 0; c < part.r; c++) sum = fmaf(b[j * part.r + c], product[c], sum);
        narrow(fmaf(static_cast<float>(part.scale), sum, widen(to[j])), &to[j]);
      }
      b += part.n * part.r;
      product += part.r;
    }
    __syncthreads();  // before the next row's products
  }
}

Adapter argument(const mgrpo_lora &a) {
  Adapter out{a.values, rank_of(a), a.count, {}};
  for (int64_t p = 0; p < a.count; p++) out.parts[p] = a.parts[p];
  return out;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_lora_add_cuda(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const void *x, int32_t dtype,
                            void *y, int64_t rows, int64_t k, int64_t n, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_loras(adapters, count, rows, k, n)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0 || count == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && x == nullptr)) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) -> int32_t {
    using T = decltype(zero);
    for (int64_t first = 0; first < count; first += kAdapters) {
      Adapters some{first, std::min(kAdapters, count - first), {}};
      int64_t rank = 0;
      for (int64_t i = 0; i < some.count; i++) {
        some.all[i] = argument(adapters[first + i]);
        rank = std::max(rank, some.all[i].rank);
      }
      Shape shape{block_count(rows), kThreads};
      shape.shared = static_cast<size_t>(rank) * sizeof(float);
      const int32_t status = launch(lora_kernel<T>, shape, stream_of(stream), some, which_or_null, static_cast<const T *>(x),
                                    static_cast<T *>(y), rows, k, n);
      if (status != MGRPO_OK) return status;
    }
    return MGRPO_OK;
  });
}
