// A thread has a pack of a row's gates and the pack of ups that belongs to it.
#include "mgrpo/nn.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float g) { return 1 / (1 + expf(-g)); }

// Activations of the form g sigmoid(k(g)): k, and g times its derivative.
struct Silu {
  static __device__ float k(float g) { return g; }
  static __device__ float slope(float g) { return g; }
};

// (1 + tanh(u)) / 2 is sigmoid(2 u). Beyond 16 the sigmoid is 0 or 1, and a cube of g could overflow.
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216f, kCubic = kLinear * 0.044715f;  // 2 sqrt(2 / pi)
  static __device__ float bounded(float g) { return g > 16 ? 16.0f : g < -16 ? -16.0f : g; }
  static __device__ float k(float g) {
    g = bounded(g);
    return g * fmaf(g * g, kCubic, kLinear);
  }
  static __device__ float slope(float g) {
    g = bounded(g);
    return g * fmaf(g * g, 3 * kCubic, kLinear);
  }
};

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

template <class T, class Activation>
__global__ __launch_bounds__(kThreads) void glu_kernel(const T *gate_up, T *y, int64_t rows, int64_t f) {
  for_each_pack_of<T>(rows, f, [&](int64_t r, int64_t begin) {
    const T *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *to = y + r * f;
    Pack<T> p = load_pack(gates, begin, f, aligned(gates));
    const Pack<T> up = load_pack(ups, begin, f, aligned(ups));
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      if (begin + i >= f) break;
      const float gate = widen(p.at[i]);
      narrow(gate * sigmoid(Activation::k(gate)) * widen(up.at[i]), &p.at[i]);
    }
    store_pack(to, p, begin, f, aligned(to));
  });
}

template <class T, class Activation>
__global__ __launch_bounds__(kThreads) void glu_bwd_kernel(const T *dy, const T *gate_up, T *dgate_up, int64_t rows, int64_t f) {
  for_each_pack_of<T>(rows, f, [&](int64_t r, int64_t begin) {
    const T *grads = dy + r * f, *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *dgates = dgate_up + 2 * r * f, *dups = dgates + f;
    const Pack<T> grad = load_pack(grads, begin, f, aligned(grads));
    Pack<T> gate = load_pack(gates, begin, f, aligned(gates)), up = load_pack(ups, begin, f, aligned(ups));
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      if (begin + i >= f) break;
      const float d = widen(grad.at[i]), g = widen(gate.at[i]), u = widen(up.at[i]), s = sigmoid(Activation::k(g));
      narrow(d * u * s * fmaf(Activation::slope(g), 1 - s, 1.0f), &gate.at[i]);
      narrow(d * g * s, &up.at[i]);
    }
    store_pack(dgates, gate, begin, f, aligned(dgates));
    store_pack(dups, up, begin, f, aligned(dups));
  });
}

template <class Activation>
int32_t glu(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({gate_up, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(glu_kernel<T, Activation>, shape_of<T>(rows, f), stream_of(stream), static_cast<const T *>(gate_up), static_cast<T *>(y),
                  rows, f);
  });
}

template <class Activation>
int32_t glu_bwd(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f, void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({dy, gate_up, dgate_up})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(glu_bwd_kernel<T, Activation>, shape_of<T>(rows, f), stream_of(stream), static_cast<const T *>(dy),
                  static_cast<const T *>(gate_up), static_cast<T *>(dgate_up), rows, f);
  });
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

int32_t mgrpo_swiglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  return glu<Silu>(gate_up, dtype, y, rows, f, stream);
}

int32_t mgrpo_swiglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                              void *stream) {
  return glu_bwd<Silu>(dy, gate_up, dtype, dgate_up, rows, f, stream);
}

int32_t mgrpo_geglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  return glu<GeluTanh>(gate_up, dtype, y, rows, f, stream);
}

int32_t mgrpo_geglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f, void *stream) {
  return glu_bwd<GeluTanh>(dy, gate_up, dtype, dgate_up, rows, f, stream);
}
