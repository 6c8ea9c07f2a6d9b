#include "row_ops.h"

#include <cmath>
#include <limits>

#include "nn_ops.h"

namespace mgrpo::cpu {

// The instruction set that nn_ops() chose, as for all kernels.
const RowOps &row_ops() {
#if defined(__x86_64__)
  if (&nn_ops() == &kNnOpsAvx512 || &nn_ops() == &kNnOpsAmx) return kRowOpsAvx512;
  if (&nn_ops() == &kNnOpsAvx2) return kRowOpsAvx2;
#endif
  return kRowOpsPortable;
}

RowSums row_total(RowBlock *blocks, int64_t vocab, double tau) {
  RowSums total{-std::numeric_limits<float>::infinity(), 0, 0, true};
  const int64_t n = row_blocks(vocab);
  for (int64_t b = 0; b < n; b++) {
    if (std::isnan(blocks[b].sum)) total.readable = false;
    if (blocks[b].max > total.max) total.max = blocks[b].max;
  }
  if (!total.readable || std::isinf(total.max)) return total;
  for (int64_t b = 0; b < n; b++) {
    const double d = (static_cast<double>(blocks[b].max) - total.max) / tau, factor = std::exp(d);
    blocks[b].factor = static_cast<float>(factor);
    if (factor == 0) continue;  // 0 * -Inf must not arise
    total.sum += factor * blocks[b].sum;
    total.weighted += factor * (blocks[b].weighted + d * blocks[b].sum);
  }
  return total;
}

}  // namespace mgrpo::cpu
