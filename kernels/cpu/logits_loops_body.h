// The passes over a row of logits, compiled for the instruction set of the file that includes this one (simd.h).
#pragma once
#include "logits_loops.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

static_assert(kRowBlock % kLanes == 0, "a block is whole vectors");

// exp of a smaller number is 0 in float32. The bound also prevents 0 * -Inf, which is NaN, in the weighted sum.
constexpr float kMinExponent = -104.0f;

// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
MGRPO_INLINE VecHalf narrow(Vec a) {
  const VecBits bits = (VecBits)a;
  const VecBits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const VecBits quiet = (bits >> 16) | 0x40;
  return __builtin_convertvector((VecBits)(a == a ? (VecInt)rounded : (VecInt)quiet), VecHalf);
}

MGRPO_INLINE void store_row(float *p, Vec a) { store(p, a); }
MGRPO_INLINE void store_row(uint16_t *p, Vec a) { *reinterpret_cast<VecHalfUnaligned *>(p) = narrow(a); }
MGRPO_INLINE void store_row_n(float *p, Vec a, int64_t n) { store_n(p, a, n); }
MGRPO_INLINE void store_row_n(uint16_t *p, Vec a, int64_t n) {
  const VecHalf h = narrow(a);
  for (int64_t i = 0; i < n; i++) p[i] = h[i];
}

MGRPO_INLINE double sum_lanes_wide(Vec a) {
  double sum = 0;
  for (int i = 0; i < kLanes; i++) sum += a[i];
  return sum;
}

template <class T>
MGRPO_INLINE bool find_max(const T *z, int64_t vocab, float *max) {
  const float inf = __builtin_inff();
  Vec m = splat(-inf);
  VecInt nan{};
  int64_t v = 0;
  for (; v + kLanes <= vocab; v += kLanes) {
    const Vec x = load(z + v);
    nan |= (VecInt)(x != x);
    m = vmax(m, x);
  }
  if (v < vocab) {
    const Vec x = keep_first(load_n(z + v, vocab - v), vocab - v, -inf);
    nan |= (VecInt)(x != x);
    m = vmax(m, x);
  }
  bool readable = true;
  *max = m[0];
  for (int i = 0; i < kLanes; i++) {
    readable = readable && nan[i] == 0;
    *max = m[i] > *max ? m[i] : *max;
  }
  return readable && *max != inf;
}

template <class T>
RowSums row_sums(const T *z, int64_t vocab, float inv_tau, const RowTrace &trace) {
  RowSums sums{0, 0, 0, false};
  sums.readable = find_max(z, vocab, &sums.max);
  if (!sums.readable || sums.max == -__builtin_inff()) return sums;
  const Vec max = splat(sums.max), scale = splat(inv_tau), min_exponent = splat(kMinExponent);
  for (int64_t begin = 0; begin < vocab; begin += kRowBlock) {
    const int64_t end = min64(begin + kRowBlock, vocab);
    Vec sum{}, weighted{};
    int64_t v = begin;
    for (; v + kLanes <= end; v += kLanes) {
      const Vec d = vmax(min_exponent, (load(z + v) - max) * scale);
      const Vec e = vexp(d);
      sum += e;
      weighted += e * d;
      store(trace.exps + v, e);
    }
    if (v < end) {
      const int64_t n = end - v;
      const Vec d = vmax(min_exponent, (load_n(z + v, n) - max) * scale);
      const Vec e = keep_first(vexp(d), n, 0);
      sum += e;
      weighted += e * keep_first(d, n, 0);
      store_n(trace.exps + v, e, n);
    }
    const double block = sum_lanes_wide(sum);
    trace.block_sums[begin / kRowBlock] = block;
    sums.sum += block;
    sums.weighted += sum_lanes_wide(weighted);
  }
  return sums;
}

// Returns the largest of n elements. It may ignore a NaN.
template <class T>
MGRPO_INLINE float block_max(const T *z, int64_t n) {
  constexpr int kUnroll = 8;
  Vec m[kUnroll];
  MGRPO_UNROLL
  for (Vec &x : m) x = splat(-__builtin_inff());
  int64_t v = 0;
  for (; v <= n - kUnroll * kLanes; v += kUnroll * kLanes) {
    MGRPO_UNROLL
    for (int u = 0; u < kUnroll; u++) m[u] = vmax(m[u], load(z + v + u * kLanes));
  }
  for (; v < n; v += kLanes) {
    const int64_t left = n - v;
    m[0] = vmax(m[0], left < kLanes ? keep_first(load_n(z + v, left), left, -__builtin_inff()) : load(z + v));
  }
  MGRPO_UNROLL
  for (int half = kUnroll / 2; half > 0; half /= 2)
    for (int u = 0; u < half; u++) m[u] = vmax(m[u], m[u + half]);
  return max_lanes(m[0]);
}

// Converts logits to their distances below the maximum. The subtraction reads a logit from memory, so it takes one instruction.
struct Below {
  static constexpr float kLog2E = 1.44269504f;
  Vec max, farthest;  // farthest: at this distance an exponential is 0; a larger distance could give 0 * Inf

  Below(float max, float inv_tau) : max(splat(max)), farthest(splat(127 / (inv_tau * kLog2E))) {}
  MGRPO_INLINE Vec of(Vec z) const { return vmin(farthest, max - z); }
};

// Computes the exponentials of a row and their sums. If exps is null, the exponentials are not stored.
template <class T>
void row_exponentials(const T *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks) {
  constexpr int kUnroll = 2;
  const Vec scale = splat(-(inv_tau * Below::kLog2E));
  for (int64_t begin = 0; begin < vocab; begin += kRelativeBlock, z += kRelativeBlock, blocks++) {
    const int64_t n = min64(kRelativeBlock, vocab - begin);
    blocks->max = block_max(z, n);
    const Below below(blocks->max == -__builtin_inff() ? 0 : blocks->max, inv_tau);
    Vec sum[kUnroll]{}, weighted[kUnroll]{};
    int64_t v = 0;
    for (; v <= n - kUnroll * kLanes; v += kUnroll * kLanes) {
      // Prefetches the next block.
      for (int line = 0; line < kUnroll * kLanes; line += 64 / static_cast<int>(sizeof(T)))
        __builtin_prefetch(z + kRelativeBlock + v + line);
      MGRPO_UNROLL
      for (int u = 0; u < kUnroll; u++) {
        const Vec x = below.of(load(z + v + u * kLanes)), e = vexp2_normal(x, scale);
        sum[u] += e;
        weighted[u] = fma(e, x, weighted[u]);
        if (exps) store(exps + begin + v + u * kLanes, e);
      }
    }
    for (; v < n; v += kLanes) {
      const int64_t left = min64(kLanes, n - v);
      const Vec x = below.of(load_n(z + v, left)), e = keep_first(vexp2_normal(x, scale), left, 0);
      sum[0] += e;
      weighted[0] = fma(e, keep_first(x, left, 0), weighted[0]);
      if (exps) store_n(exps + begin + v, e, left);
    }
    blocks->sum = sum_lanes_wide(sum[0] + sum[1]);
    blocks->weighted = -sum_lanes_wide(weighted[0] + weighted[1]) * inv_tau;
  }
}

template <class T>
void row_scale(const float *exps, T *z, int64_t vocab, const RowBlock *blocks, float constant) {
  for (int64_t begin = 0; begin < vocab; begin += kRelativeBlock, blocks++) {
    const int64_t end = min64(begin + kRelativeBlock, vocab);
    const Vec factor = splat(blocks->factor * constant);
    int64_t v = begin;
    for (; v <= end - kLanes; v += kLanes) store_row(z + v, load(exps + v) * factor);
    if (v < end) store_row_n(z + v, load_n(exps + v, end - v) * factor, end - v);
  }
}

template <class T>
void row_slope(const float *exps, T *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant, float slope) {
  const Below below(max, inv_tau);
  for (int64_t begin = 0; begin < vocab; begin += kRelativeBlock, blocks++) {
    const int64_t end = min64(begin + kRelativeBlock, vocab);
    const Vec c = splat(blocks->factor * constant), s = splat(-blocks->factor * (slope * inv_tau));
    int64_t v = begin;
    for (; v <= end - kLanes; v += kLanes) store_row(z + v, fma(s, below.of(load(z + v)), c) * load(exps + v));
    if (v < end) {
      const int64_t n = end - v;
      store_row_n(z + v, fma(s, below.of(load_n(z + v, n)), c) * load_n(exps + v, n), n);
    }
  }
}

constexpr LogitsLoops make_logits_loops() {
  return {row_sums<float>,  row_sums<uint16_t>,  row_exponentials<float>, row_exponentials<uint16_t>,
          row_slope<float>, row_slope<uint16_t>, row_scale<float>,        row_scale<uint16_t>};
}

}  // namespace
}  // namespace mgrpo::cpu
