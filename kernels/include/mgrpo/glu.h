// Gated linear units.
#pragma once
#include "mgrpo/layers.h"

// The activations of a gate g and an "up" value u.
enum mgrpo_gates {
  MGRPO_SWIGLU = 0,  // silu(g) u with silu(g) = g / (1 + exp(-g))
  MGRPO_GEGLU = 1,   // the same with the tanh form of GELU: g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) u
  // The gate of gpt-oss: g / (1 + exp(-1.702 g)) (u + 1) with g up to 7 and u within [-7, 7]. Numbers beyond these limits have the
  // gradient 0.
  MGRPO_CLAMPED_GLU = 2,
  MGRPO_SIGMOID_GLU = 3,  // u / (1 + exp(-g)), of Dauphin et al. 2017
};

// gates is a number of enum mgrpo_gates.  gate_up [rows, 2 f]: gate, then up; y [rows, f].
MGRPO_API int32_t mgrpo_glu_cpu(int32_t gates, const float *gate_up, float *y, int64_t rows, int64_t f);

// dgate_up [rows, 2 f] is written; it may be gate_up.
MGRPO_API int32_t mgrpo_glu_bwd_cpu(int32_t gates, const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

MGRPO_API int32_t mgrpo_glu_cuda(int32_t gates, const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_glu_bwd_cuda(int32_t gates, const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows,
                                     int64_t f, void *stream);
