// One block a row; a thread has the packs of a head's two halves that turn together.
#include "mgrpo/nn.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;

struct Rotation {
  const float *cos, *sin;  // [max_pos, rotary / 2]
  const int32_t *pos;
  int64_t rows, heads, hd, rotary, max_pos;
  float sign;  // of the angle
};

template <class T>
__global__ __launch_bounds__(kThreads) void rope_kernel(const T *x, Rotation in, T *y) {
  const int64_t half = in.rotary / 2, rest = in.hd - in.rotary, packs = packs_of<T>(half);
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    const int64_t pos = in.pos[r];
    const bool known = pos >= 0 && pos < in.max_pos;
    for (int64_t item = threadIdx.x; item < in.heads * packs; item += kThreads) {
      const int64_t at = (r * in.heads + item / packs) * in.hd, begin = item % packs * Pack<T>::kWidth;
      const T *from = x + at, *from_second = from + half;
      T *to = y + at, *to_second = to + half;
      Pack<T> a = load_pack(from, begin, half, aligned(from)), b = load_pack(from_second, begin, half, aligned(from_second));
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++) {
        if (begin + i >= half) break;
        const int64_t angle = pos * half + begin + i;
        const float c = known ? in.cos[angle] : NAN, s = known ? in.sin[angle] * in.sign : NAN;
        const float first = widen(a.at[i]), second = widen(b.at[i]);
        narrow(fmaf(first, c, -(second * s)), &a.at[i]);
        narrow(fmaf(second, c, first * s), &b.at[i]);
      }
      store_pack(to, a, begin, half, aligned(to));
      store_pack(to_second, b, begin, half, aligned(to_second));
    }
    for (int64_t item = threadIdx.x; item < in.heads * rest; item += kThreads) {  // what does not turn
      const int64_t at = (r * in.heads + item / rest) * in.hd + in.rotary + item % rest;
      y[at] = x[at];
    }
  }
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_rope_cuda(const void *x, const float *cos, const float *sin, const int32_t *pos, int32_t dtype, void *y, int64_t rows,
                        int64_t heads, int64_t hd, int64_t rotary, int64_t max_pos, int32_t inverse, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_sizes({rows, heads, hd}) || !valid_sizes({max_pos, hd}) || rotary < 0 || rotary > hd || rotary % 2 != 0)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || heads == 0 || hd == 0) return MGRPO_OK;
  if (any_null({x, pos, y}) || (max_pos > 0 && any_null({cos, sin}))) return MGRPO_INVALID_ARGUMENT;
  const Rotation in{cos, sin, pos, rows, heads, hd, rotary, max_pos, inverse != 0 ? -1.0f : 1.0f};
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(rope_kernel<T>, {block_count(rows), kThreads}, stream_of(stream), static_cast<const T *>(x), in, static_cast<T *>(y));
  });
}
