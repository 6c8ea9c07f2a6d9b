// AdamW over flat buffers, with clipping by the global norm of the gradient (Loshchilov and Hutter, arXiv 1711.05101).
//
//   g *= min(1, max_norm / (norm + 1e-6))        when max_norm > 0
//   m = beta1 m + (1 - beta1) g                  v = beta2 v + (1 - beta2) g^2
//   p *= 1 - lr * weight_decay
//   p -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
//
// The arithmetic is float32. Every backend executes the same sequence of IEEE operations, without contraction. So the parameters have the
// same bits on the CPU and on a GPU for the same gradient and norm. An update of a parameter reads 16 bytes (p, m, v, g) and writes 12
// bytes, or 14 with a bfloat16 copy.
#pragma once
#include "mgrpo/status.h"

typedef struct mgrpo_adamw_config {
  double lr;            // >= 0
  double beta1, beta2;  // in [0, 1)
  double eps;           // > 0
  double weight_decay;  // >= 0, decoupled
  double max_norm;      // the greatest norm of the clipped gradient, Clip in Go; 0 = no clipping
  int64_t step;         // the number of this update, from 1
} mgrpo_adamw_config;

// Computes the L2 norm of grad [n] in float64. It adds fixed blocks in a fixed order, so the bits do not depend on the number of threads.
// If grad has a NaN or Inf, the norm is NaN or Inf, and the function still returns MGRPO_OK.
MGRPO_API int32_t mgrpo_grad_norm_cpu(const float *grad, int64_t n, double *norm);

// Updates param, m and v [n] by grad [n], whose norm is `norm`. bf16_or_null [n] receives the updated parameters, rounded to the nearest
// bfloat16, ties to even. If norm is NaN or Inf, it returns MGRPO_NON_FINITE and writes nothing.
MGRPO_API int32_t mgrpo_adamw_cpu(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                                  const mgrpo_adamw_config *config);

// The same on a GPU. Buffers are in device memory, norm and config in host memory. mgrpo_grad_norm_cuda waits for the stream, and
// mgrpo_adamw_cuda only enqueues. The norm is added in another order than on the CPU, so its bits differ. The bits of the update do not.
MGRPO_API int32_t mgrpo_grad_norm_cuda(const float *grad, int64_t n, double *norm, void *stream);
MGRPO_API int32_t mgrpo_adamw_cuda(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                                   const mgrpo_adamw_config *config, void *stream);
