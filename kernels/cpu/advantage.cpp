#include "mgrpo/advantage.h"

#include "check.h"
#include "first_row.h"
#include "group_advantage.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kGroupBlock = 1024;  // groups that a thread computes at a time

// Ragged groups and the arrays of their results, as in mgrpo/advantage.h.
template <class T>
struct GroupArrays {
  const T *rewards;
  const double *weights;  // null: all 1
  const int64_t *offsets;
  T *advantages;
  mgrpo_group_stats *stats;
};

// Without weights each weight is the constant 1, which lets the compiler drop the multiplication.
template <class T, bool kWeighted>
struct Group {
  using Reward = T;
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
  double min_reward = HUGE_VAL, max_reward = -HUGE_VAL;
  for (int64_t i = 0; i < g.n; i++) {
    const double w = g.weight(i), r = g.rewards[i];
    if (w == 0) continue;
    min_reward = r < min_reward ? r : min_reward;
    max_reward = r > max_reward ? r : max_reward;
    m.weight_sum += w;
    sum.add(w * r);
  }
  if (m.weight_sum == 0) return m;
  m.equal = equal_rewards<typename Group::Reward>(min_reward, max_reward);
  m.mean = m.equal ? min_reward : sum.value() / m.weight_sum;
  for (int64_t i = 0; i < g.n; i++) {
    const double w = g.weight(i), centred = g.rewards[i] - m.mean;
    if (w > 0) m.squares += w * centred * centred;
  }
  return m;
}

template <class Group, class T>
mgrpo_advantage_error advantages(const mgrpo_convention &c, const Group &g, int64_t index, T *out, mgrpo_group_stats *stats) {
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
mgrpo_advantage_error one_group(const GroupArrays<T> &in, const mgrpo_convention &c, int64_t g) {
  const int64_t at = in.offsets[g];
  const Group<T, kWeighted> group{in.rewards + at, in.weights + (kWeighted ? at : 0), in.offsets[g + 1] - at};
  return advantages(c, group, g, in.advantages + at, in.stats + g);
}

template <class T>
mgrpo_advantage_error one_group(const GroupArrays<T> &in, const mgrpo_convention &c, int64_t g) {
  return in.weights ? one_group<true>(in, c, g) : one_group<false>(in, c, g);
}

template <class T>
int32_t group_advantage(const GroupArrays<T> &in, int64_t groups, const mgrpo_convention *convention, mgrpo_advantage_error *error) {
  if (!error || !convention || !valid(*convention) || groups < 0 || !in.offsets || in.offsets[0] != 0) return MGRPO_INVALID_ARGUMENT;
  for (int64_t g = 0; g < groups; g++)
    if (in.offsets[g + 1] < in.offsets[g]) return MGRPO_INVALID_ARGUMENT;
  if ((groups > 0 && !in.stats) || (in.offsets[groups] > 0 && any_null({in.rewards, in.advantages}))) return MGRPO_INVALID_ARGUMENT;
  FirstRow refused;
  parallel_blocks(groups, kGroupBlock, 16.0 * static_cast<double>(in.offsets[groups]), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++)
      if (one_group(in, *convention, g).code != MGRPO_ADVANTAGE_OK) return refused.report(g);
  });
  *error = {MGRPO_ADVANTAGE_OK, -1, -1};
  if (refused.row() < 0) return MGRPO_OK;
  *error = one_group(in, *convention, refused.row());
  return MGRPO_REFUSED;
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_group_advantage_cpu(const void *rewards, int32_t dtype, const double *weights_or_null, const int64_t *offsets, int64_t groups,
                                  const mgrpo_convention *convention, void *advantages, mgrpo_group_stats *stats,
                                  mgrpo_advantage_error *error) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    return mgrpo::cpu::group_advantage<T>({static_cast<const T *>(rewards), weights_or_null, offsets, static_cast<T *>(advantages), stats},
                                          groups, convention, error);
  };
  if (dtype == MGRPO_FLOAT64) return run(double{});
  if (dtype == MGRPO_FLOAT32) return run(float{});
  return MGRPO_INVALID_ARGUMENT;
}
