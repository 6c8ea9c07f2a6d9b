// The passes over one row of logits that several kernels share. They are compiled and chosen as layer_loops.h describes. They run on one
// thread and do not check their arguments.
#pragma once
#include <cstdint>

namespace mgrpo::cpu {

// The number of columns of a block. Exponentials are added in float32 within a block, and the blocks are added in float64.
constexpr int64_t kRowBlock = 256;

// The sums that determine softmax(z / tau) of a row, with d_v = (z_v - max) / tau.
struct RowSums {
  float max;        // max z
  double sum;       // S = sum exp d_v, at least 1
  double weighted;  // sum d_v exp d_v, at most 0
  bool readable;    // the row has no NaN and no +Inf; the sums are valid only if this is true and max is not -Inf

  double mean_exponent() const { return weighted / sum; }
};

// The arrays that a pass fills: the exponentials, [vocab], and the sums of the blocks, [ceil(vocab / kRowBlock)].
struct RowTrace {
  float *exps;
  double *block_sums;
};

// The number of columns of a RowBlock. Its exponentials are relative to the block's own maximum, so they can be written when the row is
// read for the first time.
constexpr int64_t kRelativeBlock = 1024;

struct RowBlock {
  float max;        // max z of the block
  float factor;     // exp((max - the row's max) / tau)
  double sum;       // sum of e_v = exp((z_v - max) / tau)
  double weighted;  // sum of e_v ln e_v
};

inline int64_t row_blocks(int64_t vocab) { return (vocab + kRelativeBlock - 1) / kRelativeBlock; }

// Returns the sums of the whole row, and sets the factors of the blocks.
RowSums row_total(RowBlock *blocks, int64_t vocab, double tau);

struct LogitsLoops {
  RowSums (*sums_f32)(const float *z, int64_t vocab, float inv_tau, const RowTrace &trace);
  RowSums (*sums_bf16)(const uint16_t *z, int64_t vocab, float inv_tau, const RowTrace &trace);
  // Sets blocks [row_blocks(vocab)] except their factors, and exps [vocab], which may be z or null. NaN and +Inf make the sum of their
  // block NaN.
  void (*exponentials_f32)(const float *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks);
  void (*exponentials_bf16)(const uint16_t *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks);
  // Sets z_v to exps_v * (factor of its block) * (constant + slope d_v).
  void (*slope_f32)(const float *exps, float *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
                    float slope);
  void (*slope_bf16)(const float *exps, uint16_t *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
                     float slope);
  // Sets z_v to exps_v * (constant * factor of its block).
  void (*scale_f32)(const float *exps, float *z, int64_t vocab, const RowBlock *blocks, float constant);
  void (*scale_bf16)(const float *exps, uint16_t *z, int64_t vocab, const RowBlock *blocks, float constant);

  RowSums sums(const float *z, int64_t vocab, float inv_tau, const RowTrace &trace) const { return sums_f32(z, vocab, inv_tau, trace); }
  RowSums sums(const uint16_t *z, int64_t vocab, float inv_tau, const RowTrace &trace) const { return sums_bf16(z, vocab, inv_tau, trace); }
  void exponentials(const float *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks) const {
    exponentials_f32(z, exps, vocab, inv_tau, blocks);
  }
  void exponentials(const uint16_t *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks) const {
    exponentials_bf16(z, exps, vocab, inv_tau, blocks);
  }
  void slope(const float *exps, float *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
             float slope) const {
    slope_f32(exps, z, vocab, blocks, max, inv_tau, constant, slope);
  }
  void slope(const float *exps, uint16_t *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
             float slope) const {
    slope_bf16(exps, z, vocab, blocks, max, inv_tau, constant, slope);
  }
  void scale(const float *exps, float *z, int64_t vocab, const RowBlock *blocks, float constant) const {
    scale_f32(exps, z, vocab, blocks, constant);
  }
  void scale(const float *exps, uint16_t *z, int64_t vocab, const RowBlock *blocks, float constant) const {
    scale_bf16(exps, z, vocab, blocks, constant);
  }
};

// Returns the passes for the instruction set of layer_loops().
const LogitsLoops &logits_loops();

extern const LogitsLoops kLogitsLoopsPortable;
#if defined(__x86_64__)
extern const LogitsLoops kLogitsLoopsAvx2, kLogitsLoopsAvx512;
#endif

}  // namespace mgrpo::cpu
