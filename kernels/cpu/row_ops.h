// The passes over one row of logits that logprob.cpp and sample.cpp share, compiled once for each
// instruction set and chosen at run time. They are serial and check nothing.
#pragma once
#include <cstdint>

namespace mgrpo::cpu {

// Exponentials are added up in float32 within a block of this many columns, blocks in float64.
constexpr int64_t kRowBlock = 256;

// What softmax(z / tau) of a row needs, with d_v = (z_v - max) / tau.
struct RowSums {
  float max;        // max z
  double sum;       // S = sum exp d_v, at least 1
  double weighted;  // sum d_v exp d_v, at most 0
  bool readable;    // no NaN, no +Inf; the sums are unspecified otherwise or when max is -Inf

  double mean_exponent() const { return weighted / sum; }
};

// Where a pass may leave the exponentials: exps [vocab], block_sums [ceil(vocab / kRowBlock)].
struct RowTrace {
  float *exps;
  double *block_sums;
};

struct RowOps {
  RowSums (*sums_f32)(const float *z, int64_t vocab, float inv_tau, const RowTrace *trace_or_null);
  RowSums (*sums_bf16)(const uint16_t *z, int64_t vocab, float inv_tau, const RowTrace *trace_or_null);
  // z_v becomes exp(d_v) (constant + slope d_v).
  void (*gradient_f32)(float *z, int64_t vocab, float max, float inv_tau, float constant, float slope);
  void (*gradient_bf16)(uint16_t *z, int64_t vocab, float max, float inv_tau, float constant, float slope);

  RowSums sums(const float *z, int64_t vocab, float inv_tau, const RowTrace *trace) const {
    return sums_f32(z, vocab, inv_tau, trace);
  }
  RowSums sums(const uint16_t *z, int64_t vocab, float inv_tau, const RowTrace *trace) const {
    return sums_bf16(z, vocab, inv_tau, trace);
  }
  void gradient(float *z, int64_t vocab, float max, float inv_tau, float constant, float slope) const {
    gradient_f32(z, vocab, max, inv_tau, constant, slope);
  }
  void gradient(uint16_t *z, int64_t vocab, float max, float inv_tau, float constant, float slope) const {
    gradient_bf16(z, vocab, max, inv_tau, constant, slope);
  }
};

// The best set this CPU has; MGRPO_CPU_ISA lowers it as for nn_ops().
const RowOps &row_ops();

extern const RowOps kRowOpsPortable;
#if defined(__x86_64__)
extern const RowOps kRowOpsAvx2, kRowOpsAvx512;
#endif

}  // namespace mgrpo::cpu
