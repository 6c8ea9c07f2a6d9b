// The formulas of one group and one member (docs/algorithm.md §4), for the CPU and the GPU. Each backend adds up the moments of a group in
// its own order, and calls these functions for everything else.
#pragma once
#include <math.h>

#include "mgrpo/advantage.h"

namespace mgrpo {

// A sum that also adds up its rounding errors (Neumaier 1974). Knuth's branchless TwoSum computes each error. So small rewards are not lost
// next to rewards of 1e8 and -1e8.
struct CompensatedSum {
  double sum = 0, dropped = 0;  // dropped: the sum of the rounding errors

  MGRPO_HOST_DEVICE void add(double x) {
    const double next = sum + x, of_x = next - sum;
    dropped += (sum - (next - of_x)) + (x - of_x);
    sum = next;
  }
  MGRPO_HOST_DEVICE void merge(const CompensatedSum &o) {
    add(o.sum);
    dropped += o.dropped;
  }
  MGRPO_HOST_DEVICE double value() const { return sum + dropped; }
};

// Returns the relative difference of rewards that count as equal: a few units in the last place of T. Sums of partial credits in different
// orders, and rounding to float32, differ by less.
template <class T>
MGRPO_HOST_DEVICE constexpr double rounding() {
  return sizeof(T) == sizeof(float) ? 0x1p-20 : 0x1p-40;
}

// Reports whether rewards between min_reward and max_reward differ only by rounding. size is the largest magnitude of a reward in the
// group.
template <class T>
MGRPO_HOST_DEVICE inline bool equal_rewards(double min_reward, double max_reward, double size) {
  return max_reward - min_reward <= rounding<T>() * size;
}
template <class T>
MGRPO_HOST_DEVICE inline bool equal_rewards(double min_reward, double max_reward) {
  return equal_rewards<T>(min_reward, max_reward, fmax(fabs(min_reward), fabs(max_reward)));
}

// Reports whether a group has at most one unit of weight, up to the rounding of its weights, which may have been float32: nine times 1/9
// is more than 1.
MGRPO_HOST_DEVICE inline bool at_most_one_unit(double weight_sum) { return weight_sum <= 1 + 0x1p-20; }

struct GroupMoments {
  double weight_sum;  // W, the sum over members with w > 0
  double mean;        // the smallest reward if all rewards are equal
  double squares;     // sum w (r - mean)^2
  bool equal;         // equal_rewards() of all rewards with w > 0

  MGRPO_HOST_DEVICE double std_population() const { return weight_sum > 0 ? sqrt(squares / weight_sum) : 0; }
};

MGRPO_HOST_DEVICE inline mgrpo_group_stats group_stats(const mgrpo_convention &c, const GroupMoments &g) {
  const bool empty = g.weight_sum == 0;
  const bool needs_two = c.std == MGRPO_STD_SAMPLE || c.baseline != MGRPO_BASELINE_MEAN;
  const bool degenerate = g.equal || g.std_population() < c.sigma_min || (needs_two && at_most_one_unit(g.weight_sum));
  return {empty ? 0 : g.mean, g.equal ? 0 : g.std_population(), g.weight_sum, (uint8_t)(!empty && degenerate), (uint8_t)empty};
}

// Returns the factor of a centred reward: the inverse of its divisor, times the factor of the leave-one-out baseline.
MGRPO_HOST_DEVICE inline double advantage_scale(const mgrpo_convention &c, const GroupMoments &g) {
  const double w = g.weight_sum;
  const double numerator = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT ? w / (w - 1) : 1;
  switch (c.std) {
    case MGRPO_STD_POPULATION:
      return numerator / (sqrt(g.squares / w) + c.eps);
    case MGRPO_STD_SAMPLE:
      return numerator / (sqrt(g.squares / (w - 1)) + c.eps);
  }
  return numerator;
}

// Returns the advantage of member `self` of rewards [n] with the baseline leave_one_out_std. Every weight must be 0 or 1.
template <class T>
MGRPO_HOST_DEVICE inline double advantage_among_others(const mgrpo_convention &c, const T *rewards, const double *weights_or_null,
                                                       int64_t n, int64_t self) {
  const auto counts = [&](int64_t i) { return i != self && (!weights_or_null || weights_or_null[i] > 0); };
  double sum = 0, min_reward = HUGE_VAL, max_reward = -HUGE_VAL;
  int64_t others = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!counts(i)) continue;
    const double r = rewards[i];
    sum += r;
    min_reward = r < min_reward ? r : min_reward;
    max_reward = r > max_reward ? r : max_reward;
    others++;
  }
  const double mean = sum / (double)others;
  const double r = rewards[self];
  if (equal_rewards<T>(min_reward, max_reward, fmax(fabs(r), fmax(fabs(min_reward), fabs(max_reward))))) return r - min_reward;
  double squares = 0;
  for (int64_t i = 0; i < n; i++)
    if (counts(i)) squares += (rewards[i] - mean) * (rewards[i] - mean);
  return (r - mean) / (sqrt(squares / (double)(others - 1)) + c.eps);
}

inline bool valid(const mgrpo_convention &c) {
  return c.std >= MGRPO_STD_POPULATION && c.std <= MGRPO_STD_NONE && c.baseline >= MGRPO_BASELINE_MEAN &&
         c.baseline <= MGRPO_BASELINE_LEAVE_ONE_OUT_STD && c.eps >= 0 && isfinite(c.eps) && c.sigma_min >= 0 && isfinite(c.sigma_min) &&
         (c.baseline != MGRPO_BASELINE_LEAVE_ONE_OUT_STD || c.std == MGRPO_STD_SAMPLE);
}

}  // namespace mgrpo
