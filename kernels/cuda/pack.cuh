// Rows of a tensor in packs of 16 bytes: conversions of elements, loads and stores of packs, and loops over the packs of a row.
#pragma once
#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "block.cuh"

namespace mgrpo::cuda {

__device__ inline float widen(float z) { return z; }
__device__ inline float widen(__nv_bfloat16 z) { return __bfloat162float(z); }
__device__ inline double widen(double z) { return z; }
__device__ inline void narrow(double value, float *out) { *out = static_cast<float>(value); }
__device__ inline void narrow(double value, __nv_bfloat16 *out) { *out = __float2bfloat16_rn(static_cast<float>(value)); }
__device__ inline void narrow(double value, double *out) { *out = value; }

// 16 bytes of a row. Elements are assigned to threads in packs, whether or not the row is aligned. So the result of a row does not depend
// on its address.
template <class T>
struct Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T at[kWidth];
};

template <class T>
__device__ inline bool aligned(const T *row) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

// Loads and stores of aligned packs, each with one instruction for 16 bytes.
template <class T>
__device__ inline uint4 load_bytes(const T *at) {
  return *reinterpret_cast<const uint4 *>(at);
}
template <class T>
__device__ inline void store_bytes(T *at, uint4 raw) {
  unsigned __int128 word;  // a store of the struct may be compiled to four stores
  __builtin_memcpy(&word, &raw, sizeof raw);
  *reinterpret_cast<unsigned __int128 *>(at) = word;
}
template <class T>
__device__ inline Pack<T> pack_of(uint4 raw) {
  Pack<T> p;
  __builtin_memcpy(p.at, &raw, sizeof raw);
  return p;
}
template <class T>
__device__ inline uint4 bytes_of(const Pack<T> &p) {
  uint4 raw;
  __builtin_memcpy(&raw, p.at, sizeof raw);
  return raw;
}
template <class T>
__device__ inline Pack<T> whole_pack(const T *at) {
  return pack_of<T>(load_bytes(at));
}
template <class T>
__device__ inline void store_whole(T *at, const Pack<T> &p) {
  store_bytes(at, bytes_of(p));
}

// Loads the pack that begins at element `begin` of a row [n]. Elements after the end of the row are not set.
template <class T>
__device__ inline Pack<T> load_pack(const T *row, int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + Pack<T>::kWidth <= n) return whole_pack(row + begin);
  Pack<T> p;
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (begin + i < n) p.at[i] = row[begin + i];
  return p;
}

template <class T>
__device__ inline void store_pack(T *row, const Pack<T> &p, int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + Pack<T>::kWidth <= n) {
    store_whole(row + begin, p);
    return;
  }
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (begin + i < n) row[begin + i] = p.at[i];
}

// Calls f(begin, pack, count) for the thread's packs of a row. The first `count` elements of the pack are row[begin] to row[begin + count -
// 1].
template <class T, class F>
__device__ inline void for_each_pack(const T *row, int64_t n, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(row);
  for (int64_t begin = static_cast<int64_t>(threadIdx.x) * kWidth; begin < n; begin += static_cast<int64_t>(blockDim.x) * kWidth)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// Does what for_each_pack does, for one of `threads` threads that share a row or a part of it. It loads four packs before it calls f for
// them.
template <class T, class F>
__device__ inline void for_each_pack_ahead(const T *row, int64_t n, unsigned thread, unsigned threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth, kAhead = 4;
  const bool is_aligned = aligned(row);
  const int64_t stride = static_cast<int64_t>(threads) * kWidth;
  int64_t begin = static_cast<int64_t>(thread) * kWidth;
  for (; is_aligned && begin + (kAhead - 1) * stride + kWidth <= n; begin += kAhead * stride) {
    uint4 raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++) raw[i] = *reinterpret_cast<const uint4 *>(row + begin + i * stride);
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      Pack<T> p;
      __builtin_memcpy(p.at, &raw[i], sizeof raw[i]);
      f(begin + i * stride, p, kWidth);
    }
  }
  for (; begin < n; begin += stride)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// The same for long rows. It loads the next packs while f computes. That takes more code and more registers.
template <class T, class F>
__device__ inline void for_each_pack_of_many(const T *row, int64_t n, unsigned thread, unsigned threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth, kAhead = sizeof(T) > 4 ? 2 : 4;
  const bool is_aligned = aligned(row);
  const int64_t stride = static_cast<int64_t>(threads) * kWidth, first = static_cast<int64_t>(thread) * kWidth, whole = n / kWidth;
  // The number of whole packs of this thread.
  const int mine = is_aligned && thread < whole ? static_cast<int>((whole - 1 - thread) / threads) + 1 : 0;
  const T *at = row + first;
  uint4 raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; i++)
    if (i < mine) raw[i] = load_bytes(at + i * stride);
  int k = 0;
#pragma unroll 1
  for (; k + 2 * kAhead <= mine; k += kAhead, at += kAhead * stride) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      const Pack<T> p = pack_of<T>(raw[i]);
      raw[i] = load_bytes(at + (i + kAhead) * stride);
      f(first + (k + i) * stride, p, kWidth);
    }
  }
#pragma unroll 1
  for (; k < mine; k += kAhead, at += kAhead * stride) {
#pragma unroll
    for (int i = 0; i < kAhead; i++) {
      if (k + i >= mine) continue;
      const Pack<T> p = pack_of<T>(raw[i]);
      if (k + i + kAhead < mine) raw[i] = load_bytes(at + (i + kAhead) * stride);
      f(first + (k + i) * stride, p, kWidth);
    }
  }
#pragma unroll 1
  for (int64_t begin = first + mine * stride; begin < n; begin += stride)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

}  // namespace mgrpo::cuda
