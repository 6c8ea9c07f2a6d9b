// Gated activations. A thread computes a pack of gates of a row and the pack of "up" values with the same columns.
#include "mgrpo/glu.h"
#include "sigmoid.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

// Gated activations f(g) sigmoid(k(g)) up of a gate g. Each activation defines f, the derivative of f, k, and slope, which is f(g) times
// the derivative of k. gate and up apply its limits, and of_gate and of_up set the gradients of values beyond the limits to 0.
struct Unlimited {
  static constexpr float kSlopeOfF = 1;
  static __device__ float f(float g) { return g; }
  static __device__ float gate(float g) { return g; }
  static __device__ float up(float u) { return u; }
  static __device__ float of_gate(float, float gradient) { return gradient; }
  static __device__ float of_up(float, float gradient) { return gradient; }
};

struct Sigmoid : Unlimited {
  static constexpr float kSlopeOfF = 0;
  static __device__ float f(float) { return 1; }
  static __device__ float k(float g) { return g; }
  static __device__ float slope(float) { return 1; }
};

struct Silu : Unlimited {
  static __device__ float k(float g) { return g; }
  static __device__ float slope(float g) { return g; }
};

// (1 + tanh(u)) / 2 is sigmoid(2 u). Beyond 16 the sigmoid is 0 or 1, and a cube of g could overflow.
struct GeluTanh : Unlimited {
  static constexpr float kLinear = 1.5957691216f, kCubic = kLinear * 0.044715f;  // kLinear is 2 sqrt(2 / pi)
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

struct Clamped {
  static constexpr float kLimit = 7, kAlpha = 1.702f, kSlopeOfF = 1;
  static __device__ float f(float g) { return g; }
  static __device__ float gate(float g) { return g > kLimit ? kLimit : g; }
  static __device__ float up(float u) { return (u > kLimit ? kLimit : u < -kLimit ? -kLimit : u) + 1; }
  static __device__ float of_gate(float g, float gradient) { return g > kLimit ? 0.0f : gradient; }
  static __device__ float of_up(float u, float gradient) { return u > kLimit || u < -kLimit ? 0.0f : gradient; }
  // Below -64 the sigmoid is 0, and a product with alpha could overflow.
  static __device__ float k(float g) { return kAlpha * (g < -64 ? -64.0f : g); }
  static __device__ float slope(float g) { return k(g); }
};

// Divides rows into tiles. A tile has one pack for each thread of a block. A block computes the same tile of every `apart`-th row.
struct Tiles {
  int64_t rows, columns, tiles, apart;

  template <class T>
  static Tiles of(int64_t rows, int64_t columns, T) {
    constexpr int64_t kBlocks = 1 << 13;  // several times as many blocks as any GPU runs at once
    const int64_t tiles = (packs_of<T>(columns) + kThreads - 1) / kThreads, apart = (kBlocks + tiles - 1) / tiles;
    return {rows, columns, tiles, apart < rows ? apart : rows};
  }
  Shape shape() const { return {block_count(tiles * apart), kThreads}; }

  // Calls f(row, begin) for the thread's packs. begin is the first column of the pack.
  template <class T, class F>
  __device__ void for_each_pack_of(const F &f) const {
    for (int64_t b = blockIdx.x; b < tiles * apart; b += gridDim.x) {
      const int64_t begin = (b % tiles * kThreads + threadIdx.x) * Pack<T>::kWidth;
      if (begin >= columns) continue;
      for (int64_t row = b / tiles; row < rows; row += apart) f(row, begin);
    }
  }
};

// Replaces gates by activations.
template <class T, class Activation>
__device__ void weigh(Pack<T> *gate, const Pack<T> &up, int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) {
    if (i >= count) continue;
    const float g = Activation::gate(widen(gate->at[i]));
    narrow(Activation::f(g) * sigmoid(Activation::k(g)) * Activation::up(widen(up.at[i])), &gate->at[i]);
  }
}

// Replaces gates and ups by their gradients.
template <class T, class Activation>
__device__ void weigh_back(const Pack<T> &grad, Pack<T> *gate, Pack<T> *up, int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) {
    if (i >= count) continue;
    const float d = widen(grad.at[i]), given = widen(gate->at[i]), g = Activation::gate(given), given_up = widen(up->at[i]),
                u = Activation::up(given_up);
    const float2 s = both_sigmoids(Activation::k(g));
    narrow(Activation::of_gate(given, d * u * s.x * fmaf(Activation::slope(g), s.y, Activation::kSlopeOfF)), &gate->at[i]);
    narrow(Activation::of_up(given_up, d * Activation::f(g) * s.x), &up->at[i]);
  }
}

// kWhole: the rows consist of whole aligned packs.
template <class T, class Activation, bool kWhole>
__global__ __launch_bounds__(kThreads) void glu_kernel(const T *gate_up, T *y, Tiles tiles) {
  const int64_t f = tiles.columns;
  tiles.for_each_pack_of<T>([&](int64_t r, int64_t begin) {
    const T *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *to = y + r * f;
    if constexpr (kWhole) {
      Pack<T> p = whole_pack(gates + begin);
      weigh<T, Activation>(&p, whole_pack(ups + begin));
      store_whole(to + begin, p);
    } else {
      Pack<T> p = load_pack(gates, begin, f, aligned(gates));
      weigh<T, Activation>(&p, load_pack(ups, begin, f, aligned(ups)), static_cast<int>(min(f - begin, int64_t{Pack<T>::kWidth})));
      store_pack(to, p, begin, f, aligned(to));
    }
  });
}

template <class T, class Activation, bool kWhole>
__global__ __launch_bounds__(kThreads) void glu_bwd_kernel(const T *dy, const T *gate_up, T *dgate_up, Tiles tiles) {
  const int64_t f = tiles.columns;
  tiles.for_each_pack_of<T>([&](int64_t r, int64_t begin) {
    const T *grads = dy + r * f, *gates = gate_up + 2 * r * f, *ups = gates + f;
    T *dgates = dgate_up + 2 * r * f, *dups = dgates + f;
    if constexpr (kWhole) {
      Pack<T> gate = whole_pack(gates + begin), up = whole_pack(ups + begin);
      weigh_back<T, Activation>(whole_pack(grads + begin), &gate, &up);
      store_whole(dgates + begin, gate);
      store_whole(dups + begin, up);
    } else {
      const Pack<T> grad = load_pack(grads, begin, f, aligned(grads));
      Pack<T> gate = load_pack(gates, begin, f, aligned(gates)), up = load_pack(ups, begin, f, aligned(ups));
      weigh_back<T, Activation>(grad, &gate, &up, static_cast<int>(min(f - begin, int64_t{Pack<T>::kWidth})));
      store_pack(dgates, gate, begin, f, aligned(dgates));
      store_pack(dups, up, begin, f, aligned(dups));
    }
  });
}

template <class Activation>
int32_t glu(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({gate_up, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Tiles tiles = Tiles::of(rows, f, zero);
    return launch(whole_packs<T>(f, {gate_up, y}) ? glu_kernel<T, Activation, true> : glu_kernel<T, Activation, false>, tiles.shape(),
                  stream_of(stream), static_cast<const T *>(gate_up), static_cast<T *>(y), tiles);
  });
}

template <class Activation>
int32_t glu_bwd(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f, void *stream) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({dy, gate_up, dgate_up})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Tiles tiles = Tiles::of(rows, f, zero);
    return launch(whole_packs<T>(f, {dy, gate_up, dgate_up}) ? glu_bwd_kernel<T, Activation, true> : glu_bwd_kernel<T, Activation, false>,
                  tiles.shape(), stream_of(stream), static_cast<const T *>(dy), static_cast<const T *>(gate_up), static_cast<T *>(dgate_up),
                  tiles);
  });
}

// Calls f with the activation of a number of enum mgrpo_gates.
template <class F>
int32_t for_gates(int32_t gates, const F &f) {
  switch (gates) {
    case MGRPO_SWIGLU:
      return f(Silu{});
    case MGRPO_GEGLU:
      return f(GeluTanh{});
    case MGRPO_CLAMPED_GLU:
      return f(Clamped{});
    case MGRPO_SIGMOID_GLU:
      return f(Sigmoid{});
  }
  return MGRPO_INVALID_ARGUMENT;
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

int32_t mgrpo_glu_cuda(int32_t gates, const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream) {
  return for_gates(gates, [&](auto activation) { return glu<decltype(activation)>(gate_up, dtype, y, rows, f, stream); });
}

int32_t mgrpo_glu_bwd_cuda(int32_t gates, const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                           void *stream) {
  return for_gates(gates, [&](auto activation) { return glu_bwd<decltype(activation)>(dy, gate_up, dtype, dgate_up, rows, f, stream); });
}
