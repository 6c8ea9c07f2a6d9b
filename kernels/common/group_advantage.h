// The formulas of one group and one member (docs/algorithm.md §4), for CPU and GPU alike: a backend adds up the
// moments in its own order and calls these for the rest.
#pragma once
#include <math.h>

#include "mgrpo/advantage.h"

namespace mgrpo {

// A sum that also carries what rounding dropped (Neumaier 1974; the rounding error itself by Knuth's branchless
// TwoSum): rewards of 1e8 and -1e8 leave the small ones intact.
struct CompensatedSum {
  double sum = 0, dropped = 0;

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

// Rewards count as equal if they differ by at most this share of their size: a few units in the last place of T. Sums
// of partial credits in another order, and rounding to float32, differ by less.
template <class T>
MGRPO_HOST_DEVICE constexpr double rounding() {
  return sizeof(T) == sizeof(float) ? 0x1p-20 : 0x1p-40;
}

// Whether rewards from least to most differ by rounding alone. size: the largest magnitude of a reward in the group.
template <class T>
MGRPO_HOST_DEVICE inline bool equal_rewards(double least, double most, double size) {
  return most - least <= rounding<T>() * size;
}
template <class T>
MGRPO_HOST_DEVICE inline bool equal_rewards(double least, double most) {
  return equal_rewards<T>(least, most, fmax(fabs(least), fabs(most)));
}

struct GroupMoments {
  double weight_sum;  // W over members with w > 0
  double mean;        // the least reward where all are equal
  double squares;     // sum w (r - mean)^2
  bool equal;         // equal_rewards() of all rewards with w > 0

  MGRPO_HOST_DEVICE double std_population() const { return weight_sum > 0 ? sqrt(squares / weight_sum) : 0; }
};

MGRPO_HOST_DEVICE inline mgrpo_group_stats group_stats(const mgrpo_convention &c, const GroupMoments &g) {
  const bool empty = g.weight_sum == 0;
  const bool needs_two = c.std == MGRPO_STD_SAMPLE || c.baseline != MGRPO_BASELINE_MEAN;
  const bool degenerate = g.equal || g.std_population() < c.sigma_min || (needs_two && g.weight_sum <= 1);
  return {empty ? 0 : g.mean, g.equal ? 0 : g.std_population(), g.weight_sum, (uint8_t)(!empty && degenerate), (uint8_t)empty};
}

// The divisor of the centred reward, and the factor of the leave-one-out baseline.
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

// leave_one_out_std for member `self` of rewards [n]; weights_or_null holds 0 and 1 only.
template <class T>
MGRPO_HOST_DEVICE inline double advantage_among_others(const mgrpo_convention &c, const T *rewards, const double *weights_or_null,
                                                       int64_t n, int64_t self) {
  const auto counts = [&](int64_t i) { return i != self && (!weights_or_null || weights_or_null[i] > 0); };
  double sum = 0, least = HUGE_VAL, most = -HUGE_VAL;
  int64_t others = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!counts(i)) continue;
    const double r = rewards[i];
    sum += r;
    least = r < least ? r : least;
    most = r > most ? r : most;
    others++;
  }
  const double mean = sum / (double)others;
  const double r = rewards[self];
  if (equal_rewards<T>(least, most, fmax(fabs(r), fmax(fabs(least), fabs(most))))) return r - least;
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
