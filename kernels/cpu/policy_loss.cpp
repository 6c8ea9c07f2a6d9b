#include "mgrpo/policy_loss.h"

#include <new>
#include <unordered_map>
#include <vector>

#include "nonfinite.h"
#include "parallel.h"
#include "policy_rules.h"

namespace mgrpo::cpu {
namespace {

constexpr double kTokenWork = 200;  // the cost of a token in multiply-adds

template <class T>
int32_t policy_loss(const mgrpo_loss_batch &b, const mgrpo_loss_config &c, T *dlogp_new, T *dentropy, mgrpo_loss_sums *sums,
                    mgrpo_loss_error *error) {
  const TokenArrays<T> in = token_arrays<T>(b);
  const double work = kTokenWork * static_cast<double>(b.tokens);
  std::vector<TrajectoryScan> scan(static_cast<size_t>(b.trajectories));
  parallel_for(b.trajectories, work, [&](int64_t j) {
    if (b.weight[j] == 0) return;
    for (int64_t t = b.cu_seqlens[j]; t < b.cu_seqlens[j + 1]; t++) scan[j].add(c, in, t);
    scan[j].finish(c);
  });
  for (int64_t j = 0; j < b.trajectories; j++)
    if (scan[j].tokens > 0 && !std::isfinite(b.advantage[j])) return refuse(error, MGRPO_LOSS_NON_FINITE_INPUT, MGRPO_FIELD_ADVANTAGE, j);
  if (const int32_t status = check_scans(scan.data(), b.trajectories, error)) return status;

  std::vector<mgrpo_loss_sums> part(static_cast<size_t>(b.trajectories));
  std::vector<uint8_t> finite(static_cast<size_t>(b.trajectories), 1);
  parallel_for(b.trajectories, work, [&](int64_t j) {
    init_sums(part[j]);
    if (scan[j].tokens == 0) {
      for (int64_t t = b.cu_seqlens[j]; t < b.cu_seqlens[j + 1]; t++) {
        if (dlogp_new) dlogp_new[t] = 0;
        if (dentropy) dentropy[t] = 0;
      }
      return;
    }
    const TrajectoryLoss<T> loss{c, in, b.weight[j], b.advantage[j], b.coefficient[j], scan[j]};
    for (int64_t t = b.cu_seqlens[j]; t < b.cu_seqlens[j + 1]; t++)
      if (!loss.apply(t, part[j], dlogp_new, dentropy)) finite[j] = 0;
  });
  init_sums(*sums);
  mark_collected(b, c, sums);
  bool all_finite = true;
  for (int64_t j = 0; j < b.trajectories; j++) {
    merge_sums(*sums, part[j]);
    all_finite = all_finite && finite[j];
  }
  return all_finite && is_finite(*sums) ? MGRPO_OK : refuse(error, MGRPO_LOSS_NON_FINITE_VALUE);
}

// Returns the sum of the weights of each group's trajectories in R, added in the order of the trajectories.
std::unordered_map<int64_t, double> group_weights(int64_t trajectories, const int64_t *group, const double *weight,
                                                  const int64_t *trained) {
  std::unordered_map<int64_t, double> sum;
  for (int64_t j = 0; j < trajectories; j++)
    if (weight[j] > 0 && trained[j] > 0) sum[group[j]] += weight[j];
  return sum;
}

int32_t coefficients(int64_t trajectories, const int64_t *group, const double *weight, const double *advantage, const int64_t *trained,
                     const mgrpo_loss_config &c, double *coefficient, mgrpo_loss_totals *totals, mgrpo_loss_error *error) {
  if (const int32_t status = check_weights(weight, trajectories, error)) return status;
  *totals = {};
  for (int64_t j = 0; j < trajectories; j++) {
    if (weight[j] == 0) continue;
    if (trained[j] == 0) {
      totals->empty_trajectories++;
      continue;
    }
    totals->trajectories++;
    totals->tokens += trained[j];
    totals->weighted_tokens += weight[j] * static_cast<double>(trained[j]);
  }
  if (totals->trajectories == 0) return refuse(error, MGRPO_LOSS_EMPTY_BATCH);
  const auto group_weight = group_weights(trajectories, group, weight, trained);
  totals->groups = static_cast<int64_t>(group_weight.size());
  bool finite = true;
  for (int64_t j = 0; j < trajectories; j++) {
    coefficient[j] = 0;
    if (weight[j] == 0 || trained[j] == 0) continue;
    if (!std::isfinite(advantage[j])) return refuse(error, MGRPO_LOSS_NON_FINITE_INPUT, MGRPO_FIELD_ADVANTAGE, j);
    const double group_total = static_cast<double>(totals->groups) * group_weight.at(group[j]);
    switch (c.aggregation) {
      case MGRPO_AGGREGATION_TRAJECTORY_MEAN:
        coefficient[j] = weight[j] / (group_total * static_cast<double>(trained[j]));
        break;
      case MGRPO_AGGREGATION_TOKEN_MEAN:
        coefficient[j] = weight[j] / totals->weighted_tokens;
        break;
      case MGRPO_AGGREGATION_CONSTANT:
        coefficient[j] = weight[j] / (group_total * c.max_length);
        break;
    }
    finite = finite && std::isfinite(group_total) && std::isfinite(coefficient[j]);
  }
  return finite && std::isfinite(totals->weighted_tokens) ? MGRPO_OK : refuse(error, MGRPO_LOSS_NON_FINITE_VALUE);
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo;

int32_t mgrpo_loss_coefficients(int64_t trajectories, const int64_t *group, const double *weight, const double *advantage,
                                const int64_t *trained, const mgrpo_loss_config *config, double *coefficient, mgrpo_loss_totals *totals,
                                mgrpo_loss_error *error) try {
  if (!error || !totals || !config || trajectories < 0 || !valid(*config)) return MGRPO_INVALID_ARGUMENT;
  if (trajectories > 0 && !(group && weight && advantage && trained && coefficient)) return MGRPO_INVALID_ARGUMENT;
  for (int64_t j = 0; j < trajectories; j++)
    if (trained[j] < 0) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  return cpu::coefficients(trajectories, group, weight, advantage, trained, *config, coefficient, totals, error);
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_policy_loss_cpu(const mgrpo_loss_batch *batch, const mgrpo_loss_config *config, void *dlogp_new_or_null,
                              void *dentropy_or_null, mgrpo_loss_sums *sums, mgrpo_loss_error *error) try {
  if (!batch || !config || !sums || !error || !valid(*config) || !valid(*batch)) return MGRPO_INVALID_ARGUMENT;
  if (dlogp_new_or_null && config->entropy_coef != 0 && !dentropy_or_null) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  if (const int32_t status = check_weights(batch->weight, batch->trajectories, error)) return status;
  if (const int32_t status = check_supplied(*batch, *config, error)) return status;
  if (batch->dtype == MGRPO_FLOAT64)
    return cpu::policy_loss(*batch, *config, static_cast<double *>(dlogp_new_or_null), static_cast<double *>(dentropy_or_null), sums,
                            error);
  return cpu::policy_loss(*batch, *config, static_cast<float *>(dlogp_new_or_null), static_cast<float *>(dentropy_or_null), sums, error);
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

void mgrpo_loss_sums_init(mgrpo_loss_sums *sums) { init_sums(*sums); }

void mgrpo_loss_sums_merge(mgrpo_loss_sums *into, const mgrpo_loss_sums *part) { merge_sums(*into, *part); }

void mgrpo_loss_stats_finalize(const mgrpo_loss_sums *sums, const mgrpo_loss_totals *totals, mgrpo_loss_stats *stats) {
  const mgrpo_loss_sums &s = *sums;
  const auto mean = [&s](double sum, bool collected = true) { return collected ? sum / s.weight : kNaN; };
  const auto when = [](bool collected, double value) { return collected ? value : kNaN; };
  *stats = {
      .loss = s.loss_policy + s.loss_kl + s.loss_entropy,
      .loss_policy = s.loss_policy,
      .loss_kl = s.loss_kl,
      .loss_entropy = s.loss_entropy,
      .tokens = totals->tokens,
      .trajectories = totals->trajectories,
      .groups = totals->groups,
      .empty_trajectories = totals->empty_trajectories,
      .weighted_tokens = totals->weighted_tokens,
      .clip_frac_low = mean(s.clip_low),
      .clip_frac_high = mean(s.clip_high),
      .dual_clip_frac = mean(s.dual_clip),
      .ratio_mean = mean(s.ratio),
      .ratio_min = s.ratio_min,
      .ratio_max = s.ratio_max,
      .approx_kl_k1 = mean(s.kl_k1),
      .approx_kl_k3 = mean(s.kl_k3),
      .log_ratio_clamped_frac = mean(s.log_ratio_clamped),
      .entropy_mean = mean(s.entropy, s.has_entropy),
      .ref_kl_mean = mean(s.ref_kl, s.has_ref_kl),
      .tis_mean = mean(s.tis, s.has_tis),
      .tis_max = when(s.has_tis, s.tis_max),
      .tis_truncated_frac = mean(s.tis_truncated, s.has_tis),
      .behaviour_gap_mean = mean(s.behaviour_gap, s.has_behaviour),
      .behaviour_gap_max = when(s.has_behaviour, s.behaviour_gap_max),
  };
}
