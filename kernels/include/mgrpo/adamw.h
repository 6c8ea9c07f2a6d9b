// AdamW over flat buffers, with the global gradient norm that clips it (Loshchilov and Hutter, arXiv 1711.05101).
//
//   g *= min(1, max_norm / (norm + 1e-6))        when max_norm > 0
//   m = beta1 m + (1 - beta1) g                  v = beta2 v + (1 - beta2) g^2
//   p *= 1 - lr * weight_decay
//   p -= lr * (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
//
// Elementwise float32; every backend executes the same sequence of IEEE operations, without contraction, so
// parameters are bit-equal on CPU and GPU for the same gradient and norm.
// Bytes moved a parameter: 16 read (p, m, v, g), 12 written, 2 more with a bfloat16 copy.
#pragma once
#include "mgrpo/status.h"

typedef struct mgrpo_adamw_config {
  double lr;            // >= 0
  double beta1, beta2;  // in [0, 1)
  double eps;           // > 0
  double weight_decay;  // >= 0, decoupled
  double max_norm;      // 0 = no clipping
  int64_t step;         // the number of this update, from 1
} mgrpo_adamw_config;

// L2 norm of grad [n], float64. Fixed blocks added up in a fixed order: the same bits for any thread count.
// A NaN or Inf in grad makes it NaN or Inf; the return value is MGRPO_OK nonetheless. Reads 4 bytes an element.
MGRPO_API int32_t mgrpo_grad_norm_cpu(const float *grad, int64_t n, double *norm);

// One update of param, m, v [n] from grad [n], whose norm is given; bf16_or_null [n] receives the updated
// parameters rounded to nearest even. MGRPO_NON_FINITE, nothing written, when norm is NaN or Inf.
MGRPO_API int32_t mgrpo_adamw_cpu(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                                  const mgrpo_adamw_config *config);

// The same on a GPU: buffers in device memory, norm and config in host memory. grad_norm waits for the stream,
// adamw only enqueues. The norm's bits differ from the CPU's (another order of addition), the update's do not.
MGRPO_API int32_t mgrpo_grad_norm_cuda(const float *grad, int64_t n, double *norm, void *stream);
MGRPO_API int32_t mgrpo_adamw_cuda(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                                   const mgrpo_adamw_config *config, void *stream);
