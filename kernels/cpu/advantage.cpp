#include "mgrpo/advantage.h"

#include "check.h"
#include "first_row.h"
#include "group_advantage.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kGroupBlock = 256;  // groups that a thread takes at once

// Without weights every one is 1, and the compiler knows.
template <class T, bool kWeighted>
struct Group {
  const T *rewards;
  const double *weights;
  int64_t n;

  double weight(int64_t i) const { return kWeighted ? weights[i] : 1; }
};

template <class Group>
mgrpo_advantage_error check(const mgrpo_convention &c, const Group &g, int64_t index) {
  const bool unit_only = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD;
  for (int64_t i = 0; i < g.n; i++) {
    if (!isfinite(g.rewards[i])) return {MGRPO_ADVANTAGE_NON_FINITE_REWARD, index, i};
    const double w = g.weight(i);
    if (!(w >= 0) || !isfinite(w) || (unit_only && w != 0 && w != 1)) return {MGRPO_ADVANTAGE_BAD_WEIGHT, index, i};
  }
  return {MGRPO_ADVANTAGE_OK, index, -1};
}

template <class Group>
GroupMoments moments(const Group &g) {
  GroupMoments m{0, 0, 0, true};
  CompensatedSum sum;
  double first = 0;
  for (int64_t i = 0; i < g.n; i++) {
    const double w = g.weight(i), r = g.rewards[i];
    if (w == 0) continue;
    if (m.weight_sum == 0) first = r;
    m.identical = m.identical && r == first;
    m.weight_sum += w;
    sum.add(w * r);
  }
  if (m.weight_sum == 0) return m;
  m.mean = m.identical ? first : sum.value() / m.weight_sum;
  for (int64_t i = 0; i < g.n; i++) {
    const double w = g.weight(i), centred = g.rewards[i] - m.mean;
    if (w > 0) m.squares += w * centred * centred;
  }
  return m;
}

template <class Group, class T>
mgrpo_advantage_error advantages(const mgrpo_convention &c, const Group &g, int64_t index, T *out,
                                 mgrpo_group_stats *stats) {
  const mgrpo_advantage_error error = check(c, g, index);
  if (error.code != MGRPO_ADVANTAGE_OK) return error;
  const GroupMoments m = moments(g);
  *stats = group_stats(c, m);
  bool finite = isfinite(m.mean) && isfinite(m.squares) && isfinite(m.weight_sum);
  const double scale = advantage_scale(c, m);
  for (int64_t i = 0; i < g.n; i++) {
    double a = 0;
    if (!stats->degenerate && !stats->empty && g.weight(i) > 0)
      a = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD ? advantage_among_others(c, g.rewards, g.weights, g.n, i)
                                                         : (g.rewards[i] - m.mean) * scale;
    out[i] = static_cast<T>(a);
    finite = finite && isfinite(out[i]);
  }
  if (!finite) return {MGRPO_ADVANTAGE_NON_FINITE_VALUE, index, -1};
  return error;
}

template <bool kWeighted, class T>
int32_t every_group(const T *rewards, const double *weights, const int64_t *offsets, int64_t groups,
                    const mgrpo_convention &convention, T *out, mgrpo_group_stats *stats, mgrpo_advantage_error *error) {
  const auto compute = [&](int64_t g) {
    const int64_t at = offsets[g];
    const Group<T, kWeighted> group{rewards + at, weights + (kWeighted ? at : 0), offsets[g + 1] - at};
    return advantages(convention, group, g, out + at, stats + g);
  };
  FirstRow refused;
  parallel_blocks(groups, kGroupBlock, 16.0 * static_cast<double>(offsets[groups]), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++)
      if (compute(g).code != MGRPO_ADVANTAGE_OK) return refused.report(g);
  });
  *error = {MGRPO_ADVANTAGE_OK, -1, -1};
  if (refused.row() < 0) return MGRPO_OK;
  *error = compute(refused.row());
  return MGRPO_REFUSED;
}

template <class T>
int32_t group_advantage(const T *rewards, const double *weights, const int64_t *offsets, int64_t groups,
                        const mgrpo_convention *convention, T *out, mgrpo_group_stats *stats,
                        mgrpo_advantage_error *error) {
  if (!error || !convention || !valid(*convention) || groups < 0 || !offsets || offsets[0] != 0)
    return MGRPO_INVALID_ARGUMENT;
  for (int64_t g = 0; g < groups; g++)
    if (offsets[g + 1] < offsets[g]) return MGRPO_INVALID_ARGUMENT;
  if ((groups > 0 && !stats) || (offsets[groups] > 0 && any_null({rewards, out}))) return MGRPO_INVALID_ARGUMENT;
  return weights ? every_group<true>(rewards, weights, offsets, groups, *convention, out, stats, error)
                 : every_group<false>(rewards, weights, offsets, groups, *convention, out, stats, error);
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_group_advantage_cpu(const double *rewards, const double *weights_or_null, const int64_t *offsets,
                                  int64_t groups, const mgrpo_convention *convention, double *advantages,
                                  mgrpo_group_stats *stats, mgrpo_advantage_error *error) {
  return mgrpo::cpu::group_advantage(rewards, weights_or_null, offsets, groups, convention, advantages, stats, error);
}

int32_t mgrpo_group_advantage_f32_cpu(const float *rewards, const double *weights_or_null, const int64_t *offsets,
                                      int64_t groups, const mgrpo_convention *convention, float *advantages,
                                      mgrpo_group_stats *stats, mgrpo_advantage_error *error) {
  return mgrpo::cpu::group_advantage(rewards, weights_or_null, offsets, groups, convention, advantages, stats, error);
}
