// The AdamW update of one parameter, for the CPU and the GPU. Both are compiled without contraction (-ffp-contract=off, --fmad=false), so
// they execute exactly the operations below.
#pragma once
#include <math.h>

#include "mgrpo/adamw.h"

namespace mgrpo {

struct AdamwFactors {
  float scale;  // the factor of the gradient that clips its norm
  float keep;   // 1 - lr * weight_decay
  float step;   // lr / (1 - beta1^step)
  float root;   // sqrt(1 - beta2^step)
  float beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
};

MGRPO_HOST_DEVICE inline float clip_scale(double norm, double max_norm) {
  const double scale = max_norm / (norm + 1e-6);
  return max_norm > 0 && scale < 1 ? (float)scale : 1.0f;
}

inline AdamwFactors adamw_factors(const mgrpo_adamw_config &c) {
  const double n = (double)c.step;
  return {.scale = 1,
          .keep = (float)(1 - c.lr * c.weight_decay),
          .step = (float)(c.lr / (1 - pow(c.beta1, n))),
          .root = (float)sqrt(1 - pow(c.beta2, n)),
          .beta1 = (float)c.beta1,
          .beta2 = (float)c.beta2,
          .one_minus_beta1 = (float)(1 - c.beta1),
          .one_minus_beta2 = (float)(1 - c.beta2),
          .eps = (float)c.eps};
}

inline bool valid(const mgrpo_adamw_config &c) {
  return c.lr >= 0 && isfinite(c.lr) && c.beta1 >= 0 && c.beta1 < 1 && c.beta2 >= 0 && c.beta2 < 1 && c.eps > 0 && isfinite(c.eps) &&
         c.weight_decay >= 0 && isfinite(c.weight_decay) && c.max_norm >= 0 && isfinite(c.max_norm) && c.step >= 1;
}

MGRPO_HOST_DEVICE inline void adamw_element(const AdamwFactors &f, float gradient, float &p, float &m, float &v) {
  const float g = gradient * f.scale;
  m = f.beta1 * m + f.one_minus_beta1 * g;
  v = f.beta2 * v + f.one_minus_beta2 * g * g;
  p = f.keep * p - f.step * (m / (sqrtf(v) / f.root + f.eps));
}

}  // namespace mgrpo
