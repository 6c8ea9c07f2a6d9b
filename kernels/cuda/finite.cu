#include "mgrpo/finite.h"

#include "block.cuh"
#include "device.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

struct Found {
  int64_t first;             // as report_least writes it
  unsigned long long count;
};

template <class Bits>
__global__ void first_non_finite_kernel(const Bits *x, int64_t n, Bits exponent, Found *found) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    if ((x[i] & exponent) != exponent) continue;
    report_least(&found->first, i);
    atomicAdd(&found->count, 1ull);
  }
}

template <class Bits>
int32_t first_non_finite(const void *data, int64_t n, Bits exponent, int64_t *index, int64_t *count, cudaStream_t stream) {
  Found found{-1, 0};
  Scratch<Found> scratch(stream);
  MGRPO_TRY(scratch.upload(&found, 1));
  MGRPO_TRY(launch(first_non_finite_kernel<Bits>, {block_count((n + kThreads - 1) / kThreads), kThreads}, stream,
                   static_cast<const Bits *>(data), n, exponent, scratch.get()));
  MGRPO_TRY(scratch.download(&found, 1));
  *index = found.first;
  *count = static_cast<int64_t>(found.count);
  return MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_first_non_finite_cuda(const void *data, int32_t dtype, int64_t n, int64_t *index, int64_t *count,
                                    void *stream) {
  using namespace mgrpo::cuda;
  if (n < 0 || (n > 0 && !data) || !index || !count) return MGRPO_INVALID_ARGUMENT;
  *index = -1;
  *count = 0;
  if (n == 0) return MGRPO_OK;
  switch (dtype) {
    case MGRPO_FLOAT32: return first_non_finite(data, n, uint32_t{0x7F800000}, index, count, stream_of(stream));
    case MGRPO_BFLOAT16: return first_non_finite(data, n, uint16_t{0x7F80}, index, count, stream_of(stream));
    case MGRPO_FLOAT64: return first_non_finite(data, n, uint64_t{0x7FF0000000000000}, index, count, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}
