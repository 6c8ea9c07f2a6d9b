// Gated linear units.
#pragma once
#include "mgrpo/layers.h"

// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)).  gate_up [rows, 2 f]: gate, then up; y [rows, f].
MGRPO_API int32_t mgrpo_swiglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);

// dgate_up [rows, 2 f] is written; it may be gate_up.
MGRPO_API int32_t mgrpo_swiglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The same with the tanh form of GELU: y = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) * up.
MGRPO_API int32_t mgrpo_geglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_geglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The gate of gpt-oss: with g = min(gate, 7) and u = min(max(up, -7), 7), y = g / (1 + exp(-1.702 g)) (u + 1). Numbers beyond
// these limits have the gradient 0.
MGRPO_API int32_t mgrpo_clamped_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_clamped_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

// The gated linear unit of Dauphin et al. 2017: y = up / (1 + exp(-gate)).
MGRPO_API int32_t mgrpo_sigmoid_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f);
MGRPO_API int32_t mgrpo_sigmoid_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);

MGRPO_API int32_t mgrpo_swiglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_swiglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                        void *stream);
MGRPO_API int32_t mgrpo_geglu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_geglu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                       void *stream);
MGRPO_API int32_t mgrpo_clamped_glu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_clamped_glu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                             void *stream);
MGRPO_API int32_t mgrpo_sigmoid_glu_cuda(const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f, void *stream);
MGRPO_API int32_t mgrpo_sigmoid_glu_bwd_cuda(const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f,
                                             void *stream);
