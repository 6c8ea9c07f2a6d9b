// The passes over one row of logits that logprob.cpp and sample.cpp share, compiled once for each
// instruction set and chosen at run time. They are serial and check nothing.
#pragma once
#include <cstdint>

namespace mgrpo::cpu {

// Exponentials are added up in float32 within a block of this many columns, blocks in float64.
constexpr int64_t kRowBlock = 256;

// The sums that determine softmax(z / tau) of a row, with d_v = (z_v - max) / tau.
struct RowSums {
  float max;        // max z
  double sum;       // S = sum exp d_v, at least 1
  double weighted;  // sum d_v exp d_v, at most 0
  bool readable;    // no NaN, no +Inf; the sums are unspecified otherwise or when max is -Inf

  double mean_exponent() const { return weighted / sum; }
};

// Where a pass leaves the exponentials: exps [vocab], block_sums [ceil(vocab / kRowBlock)].
struct RowTrace {
  float *exps;
  double *block_sums;
};

// A block's part of a row whose exponentials are relative to the block's own maximum, so that they can be written
// while the row is read for the first time.
constexpr int64_t kRelativeBlock = 1024;

struct RowBlock {
  float max;        // max z over the block
  float factor;     // exp((max - the row's max) / tau)
  double sum;       // of e_v = exp((z_v - max) / tau)
  double weighted;  // of e_v ln e_v
};

inline int64_t row_blocks(int64_t vocab) { return (vocab + kRelativeBlock - 1) / kRelativeBlock; }

// The sums of the whole row; fills in the blocks' factors.
RowSums row_total(RowBlock *blocks, int64_t vocab, double tau);

struct LogitsLoops {
  RowSums (*sums_f32)(const float *z, int64_t vocab, float inv_tau, const RowTrace &trace);
  RowSums (*sums_bf16)(const uint16_t *z, int64_t vocab, float inv_tau, const RowTrace &trace);
  // Fills blocks [row_blocks(vocab)] except their factors, and exps [vocab], which may be z or null. NaN and +Inf make
  // a block's sum NaN.
  void (*exponentials_f32)(const float *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks);
  void (*exponentials_bf16)(const uint16_t *z, float *exps, int64_t vocab, float inv_tau, RowBlock *blocks);
  // z_v becomes exps_v * its block's factor * (constant + slope d_v).
  void (*slope_f32)(const float *exps, float *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
                    float slope);
  void (*slope_bf16)(const float *exps, uint16_t *z, int64_t vocab, const RowBlock *blocks, float max, float inv_tau, float constant,
                     float slope);
  // z_v = exps_v * (constant * its block's factor).
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

// The set in use, as for layer_loops().
const LogitsLoops &logits_loops();

extern const LogitsLoops kLogitsLoopsPortable;
#if defined(__x86_64__)
extern const LogitsLoops kLogitsLoopsAvx2, kLogitsLoopsAvx512;
#endif

}  // namespace mgrpo::cpu
