// One row of logits, for the kernels of logprob.h and policy_loss_from_logits.h: the sums of its softmax, and its gradient, which
// overwrites the row.
//
//   VectorRow       float32 and bfloat16: only the sums; nothing is written
//   KeptExponents   float32 and bfloat16: the gradient is computed from the exponentials that the sums have stored
//   DoubleRow       float64
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "first_row.h"
#include "logits_loops.h"
#include "nonfinite.h"
#include "parallel.h"

namespace mgrpo::cpu {

inline float to_float(float z) { return z; }
inline float to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float z;
  __builtin_memcpy(&z, &wide, sizeof z);
  return z;
}
inline void store_from(double value, double *out) { *out = value; }
inline void store_from(double value, float *out) { *out = static_cast<float>(value); }
inline void store_from(double value, uint16_t *out) {
  const float f = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  *out = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// The scratch memory of one thread for its current row.
struct RowScratch {
  std::vector<float> exps;       // [vocab], if KeptExponents also keeps the logits
  std::vector<RowBlock> blocks;  // [row_blocks(vocab)], unused by DoubleRow
};

// Computes the sums of a row, and stores the exponent of the target.
template <class T>
struct VectorRow {
  using Logit = T;
  using Output = float;
  T *z;
  int64_t vocab;
  float inv_tau;
  RowBlock *blocks;
  double at_target;
  RowSums s;

  // Writes the exponentials to exps, which may be z or null.
  VectorRow(T *row, int64_t vocab, double tau, int32_t target, RowScratch &scratch, float *exps = nullptr)
      : z(row), vocab(vocab), inv_tau(static_cast<float>(1 / tau)), blocks(scratch.blocks.data()), at_target(to_float(row[target])) {
    logits_loops().exponentials(z, exps, vocab, inv_tau, blocks);
    s = row_total(blocks, vocab, tau);
    at_target = (at_target - s.max) / tau;
  }

  static void reserve(RowScratch &scratch, int64_t vocab) { scratch.blocks.resize(static_cast<size_t>(row_blocks(vocab))); }
  bool readable() const { return s.readable; }
  double max() const { return s.max; }
  double sum() const { return s.sum; }
  double mean_exponent() const { return s.mean_exponent(); }
  double exponent(int32_t) const { return at_target; }
};

// Without an entropy term the gradient has no slope, and the exponentials of float32 logits overwrite the logits. With an entropy term the
// logits are needed again, and the exponentials are in the scratch memory of the thread, which fits into the second-level cache.
template <class T, bool kSlope>
struct KeptExponents : VectorRow<T> {
  static constexpr bool kInPlace = sizeof(T) == sizeof(float) && !kSlope;
  const float *exps;

  KeptExponents(T *row, int64_t vocab, double tau, int32_t target, RowScratch &scratch)
      : KeptExponents(row, vocab, tau, target, scratch, place(row, scratch)) {}

  static void reserve(RowScratch &scratch, int64_t vocab) {
    VectorRow<T>::reserve(scratch, vocab);
    if (!kInPlace) scratch.exps.resize(static_cast<size_t>(vocab));
  }
  void gradient(double constant, double slope) {
    const float c = static_cast<float>(constant), s = static_cast<float>(slope);
    if constexpr (kSlope) {
      logits_loops().slope(exps, this->z, this->vocab, this->blocks, this->s.max, this->inv_tau, c, s);
    } else {
      logits_loops().scale(exps, this->z, this->vocab, this->blocks, c);
    }
  }

 private:
  KeptExponents(T *row, int64_t vocab, double tau, int32_t target, RowScratch &scratch, float *exps)
      : VectorRow<T>(row, vocab, tau, target, scratch, exps), exps(exps) {}
  static float *place(T *row, RowScratch &scratch) {
    if constexpr (kInPlace) return row;
    return scratch.exps.data();
  }
};

struct DoubleRow {
  using Logit = double;
  using Output = double;
  double *z;
  int64_t vocab;
  double tau, max_z = -kInf, s = 0, weighted = 0;
  bool ok = true;

  DoubleRow(double *row, int64_t vocab, double tau, int32_t, RowScratch &) : z(row), vocab(vocab), tau(tau) {
    for (int64_t v = 0; v < vocab; v++) {
      ok = ok && !std::isnan(z[v]);
      max_z = z[v] > max_z ? z[v] : max_z;
    }
    ok = ok && std::isless(max_z, kInf);
    if (!ok || std::isinf(max_z)) return;
    for (int64_t v = 0; v < vocab; v++) {
      const double d = (z[v] - max_z) / tau, e = std::exp(d);
      s += e;
      if (e > 0) weighted += e * d;
    }
  }

  static void reserve(RowScratch &, int64_t) {}
  bool readable() const { return ok; }
  double max() const { return max_z; }
  double sum() const { return s; }
  double mean_exponent() const { return weighted / s; }
  double exponent(int32_t v) const { return (z[v] - max_z) / tau; }
  void gradient(double constant, double slope) {
    for (int64_t v = 0; v < vocab; v++) {
      const double d = (z[v] - max_z) / tau, e = std::exp(d);
      z[v] = e > 0 ? e * (constant + slope * d) : 0;
    }
  }
};

// Returns the scratch memory of all threads for this amount of work.
template <class Row>
std::vector<RowScratch> row_scratch(double work, int64_t vocab) {
  std::vector<RowScratch> scratch(static_cast<size_t>(thread_count(work)));
  for (RowScratch &s : scratch) Row::reserve(s, vocab);
  return scratch;
}

// Reports whether every column has probability 0.
template <class Row>
bool all_impossible(const Row &row) {
  return row.max() == -kInf;
}

struct TokenProb {
  double logp, entropy;
};

// Returns the log-probability of the target and the entropy of a readable row.
template <class Row>
TokenProb token_prob(const Row &row, int32_t target) {
  if (all_impossible(row)) return {-kInf, 0};
  const double log_sum = std::log(row.sum());
  return {row.exponent(target) - log_sum, log_sum - row.mean_exponent()};
}

// Overwrites a readable row by its gradient, for g = dL/dlogp and e = dL/dH. Some column must have a probability above 0. ln p_v + H is d_v
// - mean d, so dz_v = exp(d_v) (constant + slope d_v) for columns other than the target. At the target g (1 - p) is computed from S -
// exp(d_y), because 1 - p would lose its digits in float32 if p is near 1.
template <class Row>
void differentiate(Row &row, int32_t target, double tau, double g, double e) {
  const double mean = row.mean_exponent(), scale = 1 / (tau * row.sum());
  const double dy = row.exponent(target), ey = std::exp(dy);
  const double at_target = scale * (g * (row.sum() - ey) - (ey > 0 ? e * ey * (dy - mean) : 0));
  row.gradient(-scale * (g - e * mean), -scale * e);
  store_from(at_target, row.z + target);
}

template <class Logit>
void fill_row(Logit *z, int64_t vocab, double value) {
  for (int64_t v = 0; v < vocab; v++) store_from(value, z + v);
}

}  // namespace mgrpo::cpu
