// The logistic function, which takes one exponential and one reciprocal.
#pragma once
#include <cfloat>

#include "layers.cuh"

namespace mgrpo::cuda {

// Returns 1 / x, accurate to one unit in the last place, with one instruction. Denormal results become 0.
__device__ inline float reciprocal(float x) {
#ifdef __CUDACC__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = 1 / x;
  return fabsf(y) < FLT_MIN ? 0 : emulator::nudged(y, x);
#endif
}
__device__ inline float sigmoid(float g) { return reciprocal(1 + expf(-g)); }

// Returns the sigmoid s and 1 - s. A subtraction would lose digits of 1 - s.
__device__ inline float2 both_sigmoids(float g) {
  const float e = expf(-g), s = reciprocal(1 + e);
  return {s, fminf(e, FLT_MAX) * s};
}

}  // namespace mgrpo::cuda
