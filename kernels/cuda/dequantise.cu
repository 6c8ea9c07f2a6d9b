// Dequantises matrices. Each thread computes one weight. The weights of a warp share the scales of their block.
#include "layers.cuh"
#include "mgrpo/quant.h"
#include "quant_block.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

struct Matrix {
  const uint8_t *w;
  int32_t type;
  const int32_t *rows;  // the rows to dequantise; null: all rows in their order
  int64_t count, n, k;
};

template <class T>
__global__ __launch_bounds__(kThreads) void dequantise_kernel(Matrix in, T *y) {
  const QuantSize size = quant_size(in.type);
  const int64_t row_bytes = quant_row_bytes(in.type, in.k), total = in.count * in.k;
  for (int64_t at = blockIdx.x * int64_t{kThreads} + threadIdx.x; at < total; at += gridDim.x * int64_t{kThreads}) {
    const int64_t i = at / in.k, column = at % in.k, row = in.rows != nullptr ? in.rows[i] : i;
    float value = NAN;
    if (row >= 0 && row < in.n)
      value = quant_weight(in.type, in.w + row * row_bytes + column / size.length * size.bytes, static_cast<int>(column % size.length));
    narrow(value, &y[at]);
  }
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_dequantise_cuda(const void *w, int32_t type, const int32_t *rows_or_null, int32_t dtype, void *y, int64_t count, int64_t n,
                              int64_t k, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_sizes({count, k}) || !valid_sizes({n, k}) || quant_row_bytes(type, k) < 0) return MGRPO_INVALID_ARGUMENT;
  if (rows_or_null == nullptr && count > n) return MGRPO_INVALID_ARGUMENT;
  if (count == 0 || k == 0) return MGRPO_OK;
  if (any_null({w, y})) return MGRPO_INVALID_ARGUMENT;
  const Matrix in{static_cast<const uint8_t *>(w), type, rows_or_null, count, n, k};
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(dequantise_kernel<T>, {block_count((count * k + kThreads - 1) / kThreads), kThreads}, stream_of(stream), in,
                  static_cast<T *>(y));
  });
}
