// The checks of the policy objective before its sums are used: the arguments, and the rules of docs/algorithm.md §7. Rules 3 and 5 to 7
// need the scans of the tokens.
#pragma once
#include <math.h>

#include <algorithm>

#include "mgrpo/policy_loss_from_logits.h"
#include "policy_term.h"
#include "temperature.h"

namespace mgrpo {

inline bool valid(const mgrpo_loss_config &c) {
  const auto within = [](double x, double low, double high) { return x >= low && x <= high && isfinite(x); };
  return c.ratio >= MGRPO_RATIO_TOKEN && c.ratio <= MGRPO_RATIO_CISPO && c.aggregation >= MGRPO_AGGREGATION_TRAJECTORY_MEAN &&
         c.aggregation <= MGRPO_AGGREGATION_CONSTANT && c.kl >= MGRPO_KL_NONE && c.kl <= MGRPO_KL_K3 && within(c.eps_low, 0, 1) &&
         within(c.eps_high, 0, HUGE_VAL) && (c.dual_clip == 0 || (c.dual_clip > 1 && isfinite(c.dual_clip))) && within(c.cispo_low, 0, 1) &&
         within(c.cispo_high, 0, HUGE_VAL) && within(c.tis_cap, 0, HUGE_VAL) && within(c.log_ratio_clamp, 0, kMaxExponent) &&
         within(c.kl_coef, 0, HUGE_VAL) && (c.kl_coef == 0 || c.kl != MGRPO_KL_NONE) && isfinite(c.entropy_coef) &&
         (c.aggregation != MGRPO_AGGREGATION_CONSTANT || (c.max_length > 0 && isfinite(c.max_length)));
}

inline bool valid(const mgrpo_loss_batch &b) {
  if (b.trajectories < 0 || b.tokens < 0 || (b.dtype != MGRPO_FLOAT32 && b.dtype != MGRPO_FLOAT64)) return false;
  if (b.cu_seqlens == nullptr || b.cu_seqlens[0] != 0) return false;
  for (int64_t j = 0; j < b.trajectories; j++)
    if (b.cu_seqlens[j + 1] < b.cu_seqlens[j]) return false;
  if (b.cu_seqlens[b.trajectories] != b.tokens) return false;
  return (b.trajectories == 0 || (b.weight && b.advantage && b.coefficient)) && (b.tokens == 0 || b.mask);
}

// Reports whether the logits are float32 and their gradient is bfloat16.
inline bool narrows(const mgrpo_logits &z) { return z.dtype == MGRPO_FLOAT32 && z.gradient_dtype == MGRPO_BFLOAT16; }

// Reports whether the logits fit tokens first to first + rows - 1 of the batch, and the ratio is a token-level ratio.
inline bool valid(const mgrpo_logits &z, int64_t first, const mgrpo_loss_batch &b, const mgrpo_loss_config &c) {
  const bool wide = z.dtype == MGRPO_FLOAT64;
  if (z.gradient_dtype != 0 && z.gradient_dtype != z.dtype && !narrows(z)) return false;
  if (!wide && z.dtype != MGRPO_FLOAT32 && z.dtype != MGRPO_BFLOAT16) return false;
  if (b.dtype != (wide ? MGRPO_FLOAT64 : MGRPO_FLOAT32) || is_sequence(c)) return false;
  if (z.rows < 0 || first < 0 || first > b.tokens || z.rows > b.tokens - first) return false;
  return z.vocab >= 1 && z.vocab <= z.ld && valid_temperature(z.tau) && (z.rows == 0 || (z.data && z.targets));
}

// Returns the trajectory that a token of the batch belongs to.
inline int64_t trajectory_of(const mgrpo_loss_batch &b, int64_t token) {
  return std::upper_bound(b.cu_seqlens, b.cu_seqlens + b.trajectories + 1, token) - b.cu_seqlens - 1;
}

// Returns the batch with the log-probs and entropies that are being computed from its logits.
inline mgrpo_loss_batch with_outputs(mgrpo_loss_batch b, const void *logp, const void *entropy) {
  b.logp_new = logp;
  b.entropy = entropy;
  return b;
}

inline int32_t refuse(mgrpo_loss_error *error, int32_t code, int32_t field = MGRPO_FIELD_NONE, int64_t trajectory = -1, int64_t token = -1,
                      int64_t count = 0) {
  *error = {code, field, trajectory, token, count};
  return MGRPO_REFUSED;
}

// Checks rule 1.
inline int32_t check_weights(const double *weight, int64_t trajectories, mgrpo_loss_error *error) {
  for (int64_t j = 0; j < trajectories; j++)
    if (!(weight[j] >= 0) || !isfinite(weight[j])) return refuse(error, MGRPO_LOSS_BAD_WEIGHT, MGRPO_FIELD_NONE, j);
  return MGRPO_OK;
}

// Checks rule 4.
inline int32_t check_supplied(const mgrpo_loss_batch &b, const mgrpo_loss_config &c, mgrpo_loss_error *error) {
  const auto missing = [error](int32_t field) { return refuse(error, MGRPO_LOSS_MISSING_INPUT, field); };
  if (!b.logp_new) return missing(MGRPO_FIELD_LOGP_NEW);
  if (!b.logp_old) return missing(MGRPO_FIELD_LOGP_OLD);
  if (c.tis_cap != 0 && !b.logp_behaviour) return missing(MGRPO_FIELD_LOGP_BEHAVIOUR);
  if (c.kl_coef != 0 && !b.logp_ref) return missing(MGRPO_FIELD_LOGP_REF);
  if (c.entropy_coef != 0 && !b.entropy) return missing(MGRPO_FIELD_ENTROPY);
  return MGRPO_OK;
}

// Checks rules 3 and 5 to 7 in the scans of all trajectories. The scan of a trajectory outside R has no tokens.
inline int32_t check_scans(const TrajectoryScan *scan, int64_t trajectories, mgrpo_loss_error *error) {
  int64_t count = 0;
  for (int64_t j = 0; j < trajectories; j++) count += scan[j].bad_count;
  const auto first = [&](int32_t code, int64_t TrajectoryScan::*key, int64_t n) {
    int64_t at = 0;
    for (int64_t j = 1; j < trajectories; j++)
      if (scan[j].*key < scan[at].*key) at = j;
    return refuse(error, code, (int32_t)(scan[at].*key % 8), at, scan[at].*key / 8, n);
  };
  if (count > 0) return first(MGRPO_LOSS_NON_FINITE_INPUT, &TrajectoryScan::bad_key, count);
  for (int64_t j = 0; j < trajectories; j++)
    if (scan[j].positive_key != kNoKey) return first(MGRPO_LOSS_POSITIVE_LOGPROB, &TrajectoryScan::positive_key, 0);
  for (int64_t j = 0; j < trajectories; j++) {
    if (scan[j].ratio_overflow) return refuse(error, MGRPO_LOSS_RATIO_OVERFLOW, MGRPO_FIELD_RATIO, j);
    if (scan[j].ref_overflow) return refuse(error, MGRPO_LOSS_RATIO_OVERFLOW, MGRPO_FIELD_REF_KL, j);
  }
  return MGRPO_OK;
}

// Sets the flags of the optional sums that a batch collects.
inline void mark_collected(const mgrpo_loss_batch &b, const mgrpo_loss_config &c, mgrpo_loss_sums *s) {
  s->has_entropy = b.entropy != nullptr;
  s->has_ref_kl = b.logp_ref != nullptr && c.kl != MGRPO_KL_NONE;
  s->has_behaviour = b.logp_behaviour != nullptr;
  s->has_tis = b.logp_behaviour != nullptr && c.tis_cap != 0;
}

}  // namespace mgrpo
