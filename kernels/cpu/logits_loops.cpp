#include "logits_loops.h"

#include <cmath>
#include <limits>

#include "layer_loops.h"

namespace mgrpo::cpu {

const LogitsLoops &logits_loops() {
#if defined(__x86_64__)
  const Isa isa = layer_loops().isa;
  if (isa >= Isa::avx512) return kLogitsLoopsAvx512;
  if (isa == Isa::avx2) return kLogitsLoopsAvx2;
#endif
  return kLogitsLoopsPortable;
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
    if (factor == 0) continue;  // the block's maximum may be -Inf, and 0 * -Inf is NaN
    total.sum += factor * blocks[b].sum;
    total.weighted += factor * (blocks[b].weighted + d * blocks[b].sum);
  }
  return total;
}

}  // namespace mgrpo::cpu
