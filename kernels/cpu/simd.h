// Vectors for the instruction set that the including file is compiled for.
//
// Only files that are compiled with an instruction set's own flags include it (kernels/CMakeLists.txt). Everything
// here has internal linkage and must not call an inline function or template of another header. The linker would
// merge that function with the same function of a file compiled for every CPU, and might keep this file's.
//
// Every operation treats all lanes in the same way, and partial loads set the other lanes to 0. So the result of an element depends neither
// on its lane nor on whether it is in a remainder.
#pragma once
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace mgrpo::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecInt __attribute__((vector_size(kLanes * 4)));
typedef float VecUnaligned __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef float Vec4 __attribute__((vector_size(16)));
typedef float Vec4Unaligned __attribute__((vector_size(16), aligned(4), may_alias));

#define MGRPO_INLINE inline __attribute__((always_inline))
// Loops over an array of vectors are unrolled. Otherwise the compiler would keep the array in memory.
#define MGRPO_UNROLL _Pragma("GCC unroll 16")
#define MGRPO_LAMBDA_INLINE __attribute__((always_inline))

MGRPO_INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
MGRPO_INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

MGRPO_INLINE Vec splat(float a) { return a - Vec{}; }  // a - 0 keeps the sign of zero, a + 0 would not
MGRPO_INLINE Vec load(const float *p) { return *reinterpret_cast<const VecUnaligned *>(p); }
MGRPO_INLINE void store(float *p, Vec a) { *reinterpret_cast<VecUnaligned *>(p) = a; }

// Access only the first n lanes, 0 < n <= kLanes, and no memory after them.
#if defined(__AVX512F__)
MGRPO_INLINE __mmask16 lane_mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
MGRPO_INLINE Vec load_n(const float *p, int64_t n) { return (Vec)_mm512_maskz_loadu_ps(lane_mask(n), p); }
MGRPO_INLINE void store_n(float *p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, lane_mask(n), (__m512)a); }
MGRPO_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__)
MGRPO_INLINE __m256i lane_mask(int64_t n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
MGRPO_INLINE Vec load_n(const float *p, int64_t n) { return (Vec)_mm256_maskload_ps(p, lane_mask(n)); }
MGRPO_INLINE void store_n(float *p, Vec a, int64_t n) { _mm256_maskstore_ps(p, lane_mask(n), (__m256)a); }
MGRPO_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
MGRPO_INLINE Vec load_n(const float *p, int64_t n) {
  Vec a{};
  for (int64_t i = 0; i < n; i++) a[i] = p[i];
  return a;
}
MGRPO_INLINE void store_n(float *p, Vec a, int64_t n) {
  for (int64_t i = 0; i < n; i++) p[i] = a[i];
}
MGRPO_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
#endif

// bfloat16 is the upper half of a float.
typedef uint16_t VecHalf __attribute__((vector_size(kLanes * 2)));
typedef uint16_t VecHalfUnaligned __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint32_t VecBits __attribute__((vector_size(kLanes * 4)));

MGRPO_INLINE Vec widen(VecHalf a) { return (Vec)(__builtin_convertvector(a, VecBits) << 16); }
MGRPO_INLINE Vec load(const uint16_t *p) { return widen(*reinterpret_cast<const VecHalfUnaligned *>(p)); }
MGRPO_INLINE Vec load_n(const uint16_t *p, int64_t n) {
  VecHalf a{};
  for (int64_t i = 0; i < n; i++) a[i] = p[i];
  return widen(a);
}

// Return the maximum and the minimum. If the second argument is NaN, the result is NaN, as with the instructions of x86. Compilers do not
// use these instructions for the portable form. The masked intrinsics avoid warnings in the header of GCC.
#if defined(__AVX512F__)
MGRPO_INLINE Vec vmax(Vec a, Vec b) { return (Vec)_mm512_maskz_max_ps(lane_mask(16), (__m512)a, (__m512)b); }
MGRPO_INLINE Vec vmin(Vec a, Vec b) { return (Vec)_mm512_maskz_min_ps(lane_mask(16), (__m512)a, (__m512)b); }
#elif defined(__AVX2__)
MGRPO_INLINE Vec vmax(Vec a, Vec b) { return (Vec)_mm256_max_ps((__m256)a, (__m256)b); }
MGRPO_INLINE Vec vmin(Vec a, Vec b) { return (Vec)_mm256_min_ps((__m256)a, (__m256)b); }
#else
MGRPO_INLINE Vec vmax(Vec a, Vec b) { return a > b ? a : b; }
MGRPO_INLINE Vec vmin(Vec a, Vec b) { return a < b ? a : b; }
#endif

// Sets the lanes from n on to `fill`.
MGRPO_INLINE Vec keep_first(Vec a, int64_t n, float fill) {
  VecInt lane;
  for (int i = 0; i < kLanes; i++) lane[i] = i;
  return lane < static_cast<int32_t>(n) ? a : splat(fill);
}

// Sets the lanes before `from` and from n on to `fill`.
MGRPO_INLINE Vec keep_between(Vec a, int64_t from, int64_t n, float fill) {
  VecInt lane;
  for (int i = 0; i < kLanes; i++) lane[i] = i;
  return (lane >= static_cast<int32_t>(from)) & (lane < static_cast<int32_t>(n)) ? a : splat(fill);
}

// Returns the sums over the lanes of four vectors, all in the same order.
MGRPO_INLINE Vec4 sum_lanes4(Vec4 a, Vec4 b, Vec4 c, Vec4 d) {
  const Vec4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vec4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
#if defined(__AVX2__)
typedef float Vec8 __attribute__((vector_size(32)));
MGRPO_INLINE Vec4 sum_lanes4(Vec8 a, Vec8 b, Vec8 c, Vec8 d) {
  const Vec8 ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  const Vec8 cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13) + __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
  const Vec8 s = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
}
#endif
#if defined(__AVX512F__)
MGRPO_INLINE Vec8 fold_halves(Vec a) {
  return __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
}
MGRPO_INLINE Vec4 sum_lanes4(Vec a, Vec b, Vec c, Vec d) {
  return sum_lanes4(fold_halves(a), fold_halves(b), fold_halves(c), fold_halves(d));
}
#endif
MGRPO_INLINE float sum_lanes(Vec a) { return sum_lanes4(a, Vec{}, Vec{}, Vec{})[0]; }

// Returns the largest lane. It may ignore a NaN.
MGRPO_INLINE float max_lanes(Vec4 a) {
  const Vec4 halves = __builtin_shufflevector(a, a, 2, 3, 0, 1), m = a > halves ? a : halves;
  return m[0] > m[1] ? m[0] : m[1];
}
#if defined(__AVX2__)
MGRPO_INLINE float max_lanes(Vec8 a) {
  const Vec4 low = __builtin_shufflevector(a, a, 0, 1, 2, 3), high = __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return max_lanes(low > high ? low : high);
}
#endif
#if defined(__AVX512F__)
MGRPO_INLINE float max_lanes(Vec a) {
  const Vec8 low = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7);
  const Vec8 high = __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
  return max_lanes(low > high ? low : high);
}
#endif

// Returns e^x. It subtracts a multiple of ln 2 in two parts, and uses the degree-6 polynomial of the Cephes library (S. Moshier, expf). The
// result differs from the exact value by at most 2 units in the last place, and is 1 at x = 0. Underflow is gradual, above 88.73 the result
// is infinity, and NaN stays NaN.
MGRPO_INLINE Vec vexp(Vec x) {
  x = vmin(splat(89.0f), vmax(splat(-104.0f), x));
  const Vec round_magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the integer in the low bits
  const Vec shifted = fma(x, splat(1.44269504f), round_magic);
  const Vec n = shifted - round_magic;
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  // 2^n has two factors, because n can be from -150 to 128, which is more than the exponent of one float can represent.
  const VecInt exponent = (VecInt)shifted - (VecInt)round_magic;
  const VecInt half = exponent >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((exponent - half + 127) << 23);
}

// Returns 2^(x * scale) for products from -127 to 127. It uses the minimax polynomial of degree 6 on [-1/2, 1/2]. The result differs from
// the exact value by at most 2 units in the last place. It is exactly 0 at -127 and 1 at x = 0, and NaN stays NaN. It takes half the time
// of vexp.
MGRPO_INLINE Vec vexp2_normal(Vec x, Vec scale) {
  const Vec round_magic = splat(12583039.0f);  // as above, plus 127, so that the low bits are the exponent field of 2^n
  const Vec shifted = fma(x, scale, round_magic);
  const Vec r = fma(x, scale, round_magic - shifted);
  Vec p = splat(1.5353361960e-04f);
  p = fma(p, r, splat(1.3398875017e-03f));
  p = fma(p, r, splat(9.6184369177e-03f));
  p = fma(p, r, splat(5.5503323674e-02f));
  p = fma(p, r, splat(2.4022647738e-01f));
  p = fma(p, r, splat(6.9314718246e-01f));
  return fma(p, r, splat(1.0f)) * (Vec)((VecInt)shifted << 23);
}

}  // namespace
}  // namespace mgrpo::cpu
