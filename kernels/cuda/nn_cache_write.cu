// One block a row.
#include "mgrpo/nn.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;

struct Places {
  const int32_t *slot, *pos;
  int64_t rows, slots, kv_heads, max_len, hd;
};

template <class T>
__global__ __launch_bounds__(kThreads) void cache_write_kernel(T *cache, const T *x, Places in) {
  __shared__ int superseded;
  const int64_t packs = packs_of<T>(in.hd);
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    const int64_t slot = in.slot[r], pos = in.pos[r];
    if (slot < 0 || slot >= in.slots || pos < 0 || pos >= in.max_len) continue;
    if (threadIdx.x == 0) superseded = 0;
    __syncthreads();
    // A later row that names the same place is the one that stays; blocks run in any order.
    for (int64_t later = r + 1 + threadIdx.x; later < in.rows; later += kThreads)
      if (in.slot[later] == slot && in.pos[later] == pos) superseded = 1;
    __syncthreads();
    if (!superseded) {
      for (int64_t item = threadIdx.x; item < in.kv_heads * packs; item += kThreads) {
        const int64_t head = item / packs, begin = item % packs * Pack<T>::kWidth;
        const T *from = x + (r * in.kv_heads + head) * in.hd;
        T *to = cache + ((slot * in.kv_heads + head) * in.max_len + pos) * in.hd;
        store_pack(to, load_pack(from, begin, in.hd, aligned(from)), begin, in.hd, aligned(to));
      }
    }
    __syncthreads();  // every thread has read superseded
  }
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_cache_write_cuda(void *cache, const void *x, const int32_t *slot, const int32_t *pos, int32_t dtype, int64_t rows,
                               int64_t slots, int64_t kv_heads, int64_t max_len, int64_t hd, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_sizes({slots, kv_heads, max_len, hd}) || !valid_sizes({rows, kv_heads, hd})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || kv_heads == 0 || hd == 0) return MGRPO_OK;
  if (any_null({slot, pos, x}) || (slots > 0 && max_len > 0 && cache == nullptr)) return MGRPO_INVALID_ARGUMENT;
  const Places in{slot, pos, rows, slots, kv_heads, max_len, hd};
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(cache_write_kernel<T>, {block_count(rows), kThreads}, stream_of(stream), static_cast<T *>(cache),
                  static_cast<const T *>(x), in);
  });
}
