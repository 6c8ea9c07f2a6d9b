// One block a row.
#include "mgrpo/nn.h"
#include "norm.cuh"

namespace mgrpo::cuda {
namespace {

template <class T, int kBlock>
__global__ __launch_bounds__(kBlock) void rms_norm_kernel(const T *x, const T *residual, const T *w, float offset, double eps, T *sum,
                                                          T *y, float *inv_rms, int64_t rows, int64_t d) {
  __shared__ float shared[kBlock];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T *row = x + r * d;
    float squares = 0;
    if (residual == nullptr) {
      for_each(row, d, [&](int64_t, T v) { squares = fmaf(widen(v), widen(v), squares); });
    } else {
      const T *more = residual + r * d;
      T *to = sum + r * d;
      const bool more_aligned = aligned(more), to_aligned = aligned(to);
      for_each_pack(row, d, [&](int64_t begin, Pack<T> p, int count) {
        const Pack<T> added = load_pack(more, begin, d, more_aligned);
#pragma unroll
        for (int i = 0; i < Pack<T>::kWidth; i++) {
          if (i >= count) break;
          narrow(widen(p.at[i]) + widen(added.at[i]), &p.at[i]);
          squares = fmaf(widen(p.at[i]), widen(p.at[i]), squares);
        }
        store_pack(to, p, begin, d, to_aligned);
      });
      row = to;
    }
    const float inv = inverse_rms<kBlock>(squares, d, eps, shared);
    T *to = y + r * d;
    const bool w_aligned = aligned(w), to_aligned = aligned(to);
    for_each_pack(row, d, [&](int64_t begin, Pack<T> p, int count) {
      normalise(&p, load_pack(w, begin, d, w_aligned), inv, offset, count);
      store_pack(to, p, begin, d, to_aligned);
    });
    if (inv_rms != nullptr && threadIdx.x == 0) inv_rms[r] = inv;
  }
}

template <class T, int kBlock>
__global__ __launch_bounds__(kBlock) void dx_kernel(const T *dy, const T *x, const T *w, float offset, const float *inv_rms,
                                                    const T *dx_more, T *dx, int64_t rows, int64_t d) {
  __shared__ float shared[kBlock];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x)
    norm_back<T, kBlock>(dy + r * d, x + r * d, w, offset, inv_rms[r], dx_more != nullptr ? dx_more + r * d : nullptr, dx + r * d, d,
                         threadIdx.x, shared);
}

// parts [ceil(rows / part_rows), d]: what each part of the rows adds to dw. A thread has a pack of columns.
template <class T>
__global__ __launch_bounds__(kColumnThreads) void dw_parts_kernel(const T *dy, const T *x, const float *inv_rms, float *parts,
                                                                  int64_t rows, int64_t d, int64_t part_rows, int64_t tiles,
                                                                  int64_t blocks) {
  constexpr int kWidth = Pack<T>::kWidth;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t part = b / tiles, begin = (b % tiles * kColumnThreads + threadIdx.x) * kWidth;
    if (begin >= d) continue;
    const int64_t first = part * part_rows, last = min(rows, first + part_rows);
    float sum[kWidth] = {};
    for (int64_t r = first; r < last; r++) {
      const T *grad = dy + r * d, *row = x + r * d;
      const Pack<T> g = load_pack(grad, begin, d, aligned(grad)), v = load_pack(row, begin, d, aligned(row));
#pragma unroll
      for (int i = 0; i < kWidth; i++)
        if (begin + i < d) sum[i] = fmaf(widen(g.at[i]) * inv_rms[r], widen(v.at[i]), sum[i]);
    }
#pragma unroll
    for (int i = 0; i < kWidth; i++)
      if (begin + i < d) parts[part * d + begin + i] = sum[i];
  }
}

__global__ __launch_bounds__(kNormThreads) void dw_sum_kernel(const float *parts, float *dw, int64_t n, int64_t d) {
  for (int64_t j = static_cast<int64_t>(blockIdx.x) * kNormThreads + threadIdx.x; j < d; j += static_cast<int64_t>(gridDim.x) * kNormThreads)
    add_parts(parts, dw, n, d, j);
}

template <class T>
int32_t rms_norm(const void *x, const void *residual, const void *w, float offset, double eps, void *sum, void *y, float *inv_rms,
                 int64_t rows, int64_t d, cudaStream_t stream) {
  const bool narrow = narrow_row<T>(d);
  return launch(narrow ? rms_norm_kernel<T, kWarp> : rms_norm_kernel<T, kNormThreads>, {block_count(rows), narrow ? kWarp : kNormThreads}, stream,
                static_cast<const T *>(x), static_cast<const T *>(residual), static_cast<const T *>(w), offset, eps,
                static_cast<T *>(sum), static_cast<T *>(y), inv_rms, rows, d);
}

template <class T>
int32_t add_dw(const T *dy, const T *x, const float *inv_rms, float *dw, int64_t rows, int64_t d, cudaStream_t stream) {
  const int64_t part_rows = rows_of_part(rows), n = (rows + part_rows - 1) / part_rows;
  const int64_t tiles = (packs_of<T>(d) + kColumnThreads - 1) / kColumnThreads, blocks = n * tiles;
  Scratch<float> parts(stream);
  MGRPO_TRY(parts.allocate(n * d));
  MGRPO_TRY(launch(dw_parts_kernel<T>, {block_count(blocks), kColumnThreads}, stream, dy, x, inv_rms, parts.get(), rows, d, part_rows,
                   tiles, blocks));
  return launch(dw_sum_kernel, {block_count((d + kNormThreads - 1) / kNormThreads), kNormThreads}, stream, parts.get(), dw, n, d);
}

template <class T>
int32_t rms_norm_bwd(const T *dy, const T *x, const T *w, float offset, const float *inv_rms, const T *dx_more, T *dx, float *dw_or_null,
                     int64_t rows, int64_t d, cudaStream_t stream) {
  // dw first: dx may be dy.
  if (dw_or_null != nullptr) MGRPO_TRY(add_dw(dy, x, inv_rms, dw_or_null, rows, d, stream));
  const bool narrow = narrow_row<T>(d);
  return launch(narrow ? dx_kernel<T, kWarp> : dx_kernel<T, kNormThreads>, {block_count(rows), narrow ? kWarp : kNormThreads}, stream, dy, x, w,
                offset, inv_rms, dx_more, dx, rows, d);
}

bool valid(int64_t rows, int64_t d, double eps) { return valid_sizes({rows, d}) && d > 0 && eps >= 0; }

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_rms_norm_cuda(const void *x, const void *w, int32_t dtype, float offset, double eps, void *y, float *inv_rms_or_null,
                            int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, w, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    return rms_norm<decltype(zero)>(x, nullptr, w, offset, eps, nullptr, y, inv_rms_or_null, rows, d, stream_of(stream));
  });
}

int32_t mgrpo_add_rms_norm_cuda(const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps, void *sum,
                                void *y, float *inv_rms_or_null, int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, residual, w, sum, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    return rms_norm<decltype(zero)>(x, residual, w, offset, eps, sum, y, inv_rms_or_null, rows, d, stream_of(stream));
  });
}

int32_t mgrpo_rms_norm_bwd_cuda(const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more_or_null,
                                int32_t dtype, float offset, void *dx, float *dw_or_null, int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, 0)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, w, inv_rms, dx})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return rms_norm_bwd(static_cast<const T *>(dy), static_cast<const T *>(x), static_cast<const T *>(w), offset,
                        inv_rms, static_cast<const T *>(dx_more_or_null), static_cast<T *>(dx), dw_or_null, rows, d, stream_of(stream));
  });
}
