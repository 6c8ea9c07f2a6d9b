// The capping of logits z: cap tanh(z / cap), as in Gemma 2. A cap of 0 means that logits are not capped.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cmath>

#include "kernel.h"

// Caps contiguous logits in place. On a CPU each value is computed alone. LibTorch's vectors round differently from the remaining
// values after the last vector, so the bits of a row would depend on the number of rows.
inline void cap_logits(at::Tensor logits, double cap) {
  if (!(cap > 0)) return;
  if (!cpu_fp32(logits)) {
    logits.div_(cap).tanh_().mul_(cap);
    return;
  }
  auto *values = logits.data_ptr<float>();
  at::parallel_for(0, logits.numel(), 1 << 14, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) values[i] = float(cap) * std::tanh(values[i] / float(cap));
  });
}

// Returns the derivative of capped logits with respect to z, or an undefined tensor if cap is 0.
inline at::Tensor slope_of_cap(const at::Tensor &capped, double cap) {
  if (!(cap > 0)) return {};
  return capped.div(cap).square_().neg_().add_(1);
}
