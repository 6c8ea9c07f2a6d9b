// One block a row.
#include "mgrpo/nn.h"
#include "pages.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ __launch_bounds__(kThreads) void cache_write_kernel(T *cache, const T *x, Pages in, const int32_t *sequence, const int32_t *pos,
                                                               int64_t rows) {
  __shared__ int superseded;
  const int64_t packs = packs_of<T>(in.hd);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const int64_t place = in.place(sequence[r], pos[r]);
    if (place < 0) continue;
    if (threadIdx.x == 0) superseded = 0;
    __syncthreads();
    // A later row that names the same place is the one that stays; blocks run in any order.
    for (int64_t later = r + 1 + threadIdx.x; later < rows; later += kThreads)
      if (in.place(sequence[later], pos[later]) == place) superseded = 1;
    __syncthreads();
    if (!superseded) {
      for (int64_t item = threadIdx.x; item < in.kv_heads * packs; item += kThreads) {
        const int64_t head = item / packs, begin = item % packs * Pack<T>::kWidth;
        const T *from = x + (r * in.kv_heads + head) * in.hd;
        T *to = cache + in.row(place, head) * in.hd;
        store_pack(to, load_pack(from, begin, in.hd, aligned(from)), begin, in.hd, aligned(to));
      }
    }
    __syncthreads();  // every thread has read superseded
  }
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_cache_write_cuda(void *cache, const void *x, mgrpo_pages pages, const int32_t *sequence, const int32_t *pos, int32_t dtype,
                               int64_t rows, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_pages(pages) || !valid_sizes({rows, pages.kv_heads, pages.hd})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || pages.kv_heads == 0 || pages.hd == 0) return MGRPO_OK;
  if (any_null({sequence, pos, x}) || (pages.sequences * pages.width > 0 && pages.table == nullptr) || (pages.blocks > 0 && cache == nullptr))
    return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(cache_write_kernel<T>, {block_count(rows), kThreads}, stream_of(stream), static_cast<T *>(cache),
                  static_cast<const T *>(x), Pages(pages), sequence, pos, rows);
  });
}
