// A thread has a pack of a row's gates and the pack of ups that belongs to it.
#include "mgrpo/nn.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float g) { return 1 / (1 + expf(-g)); }

// f(row, begin) for each pack of [rows, n], begin the pack's first column.
template <class T, class F>
__device__ void for_each_pack_of(int64_t rows, int64_t n, const F &f) {
  const int64_t tiles = (packs_of<T>(n) + kThreads - 1) / kThreads;
  for (int64_t b = blockIdx.x; b < rows * tiles; b += gridDim.x) {
    const int64_t begin = (b % tiles * kThreads + threadIdx.x) * Pack<T>::kWidth;
    if (begin < n) f(b / tiles, begin);
  }
}

template <class T>
Shape shape_of(int64_t rows, int64_t n) {
  return {block_count(rows * ((packs_of<T>(n) + kThreads - 1) / kThreads)), kThreads};
}

template <class T>
__global__ __launch_bounds__(kThreads) void swiglu_kernel(const T *gate_up, T *y, int64_t rows, int64_t f) {
  for_each_pack_of<T>(rows, f, [&](int64_t r, int64_t begin) {
    const T *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *to = y + r * f;
    Pack<T> p = load_pack(gates, begin, f, aligned(gates));
    const Pack<T> up = load_pack(ups, begin, f, aligned(ups));
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      if (begin + i >= f) break;
      const float gate = widen(p.at[i]);
      narrow(gate * sigmoid(gate) * widen(up.at[i]), &p.at[i]);
    }
    store_pack(to, p, begin, f, aligned(to));
  });
}

template <class T>
__global__ __launch_bounds__(kThreads) void swiglu_bwd_kernel(const T *dy, const T *gate_up, T *dgate_up, int64_t rows, int64_t f) {
  for_each_pack_of<T>(rows, f, [&](int64_t r, int64_t begin) {
    const T *grads = dy + r * f, *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *dgates = dgate_up + 2 * r * f, *dups = dgates + f;
    const Pack<T> grad = load_pack(grads, begin, f, aligned(grads));
    Pack<T> gate = load_pack(gates, begin, f, aligned(gates)), up = load_pack(ups, begin, f, aligned(ups));
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      if (begin + i >= f) break;
      const float d = widen(grad.at[i]), g = widen(gate.at[i]), u = widen(up.at[i]), s = sigmoid(g);
      narrow(d * u * s * fmaf(g, 1 - s, 1.0f), &gate.at[i]);
      narrow(d * g * s, &up.at[i]);
    }
    store_pack(dgates, gate, begin, f, aligned(dgates));
    store_pack(dups, up, begin, f, aligned(dups));
  });
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_swiglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({gate_up, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(swiglu_kernel<T>, shape_of<T>(rows, f), stream_of(stream), static_cast<const T *>(gate_up), static_cast<T *>(y), rows, f);
  });
}

int32_t mgrpo_swiglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                              void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({dy, gate_up, dgate_up})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(swiglu_bwd_kernel<T>, shape_of<T>(rows, f), stream_of(stream), static_cast<const T *>(dy),
                  static_cast<const T *>(gate_up), static_cast<T *>(dgate_up), rows, f);
  });
}
