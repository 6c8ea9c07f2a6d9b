// Group-relative advantages of ragged groups of rewards (docs/algorithm.md §4; M-GRPO, arXiv 2511.13288, eq 9-13).
//
//   mu = sum w r / W    sigma = sqrt(sum w (r - mu)^2 / W)    A = (r - mu) / sigma
//
// Rewards that differ only by rounding are equal: their range is at most 2^-40 of the largest magnitude in the group
// (float32 rewards: 2^-20). A group of equal rewards is degenerate. LEAVE_ONE_OUT_STD does not
// divide a member's reward if the rewards of the others are equal.
//
// The sums of a group are float64 and take two passes over its members. The sum of the mean is compensated for rounding
// (`CompensatedSum`). On a CPU the members are added in order. On a GPU 8 threads share a group of up to 256 members, and 32 threads share
// a larger one. Each adds its members in order, and their sums are added in a fixed tree. So the two backends differ by rounding. The
// result of a group does not depend on the number of threads or on the other groups. A member moves 24 bytes (reward, weight and advantage
// in float64), so the time is spent on launches and memory, not on arithmetic.
#pragma once
#include "mgrpo/dtype.h"
#include "mgrpo/status.h"

enum mgrpo_std {
  MGRPO_STD_POPULATION = 0,  // sigma, over W
  MGRPO_STD_SAMPLE = 1,      // s, over W - 1
  MGRPO_STD_NONE = 2,        // no division
};

enum mgrpo_baseline {
  MGRPO_BASELINE_MEAN = 0,           // r - mu
  MGRPO_BASELINE_LEAVE_ONE_OUT = 1,  // (r - mu) W / (W - 1), the mean of the others (RLOO, arXiv 2402.14740)
  // Both the mean and the sample std of the others; weights must be 0 or 1, and std must be SAMPLE.
  MGRPO_BASELINE_LEAVE_ONE_OUT_STD = 2,
};

// This program's default is {POPULATION, MEAN, eps 0, sigma_min 1e-6}: the paper's formula, with a sigma_min of our own.
typedef struct mgrpo_convention {
  int32_t std;       // enum mgrpo_std
  int32_t baseline;  // enum mgrpo_baseline
  double eps;        // added to the divisor; >= 0
  double sigma_min;  // >= 0; a group whose population sigma is strictly below it is degenerate: all its advantages are 0
} mgrpo_convention;

typedef struct mgrpo_group_stats {
  double mean;            // 0 if empty
  double std_population;  // 0 if empty
  double weight_sum;      // W
  // The group has members, but equal rewards, or sigma < sigma_min, or W <= 1 if the formula needs other members.
  uint8_t degenerate;
  uint8_t empty;  // the group has no member with w > 0
} mgrpo_group_stats;

enum mgrpo_advantage_error_code {
  MGRPO_ADVANTAGE_OK = 0,
  MGRPO_ADVANTAGE_NON_FINITE_REWARD = 1,  // NaN or Inf, also on a member of weight 0
  MGRPO_ADVANTAGE_BAD_WEIGHT = 2,         // negative, NaN or Inf; or not 0 or 1 under LEAVE_ONE_OUT_STD
  MGRPO_ADVANTAGE_NON_FINITE_VALUE = 3,   // finite rewards whose statistics overflow float64
};

typedef struct mgrpo_advantage_error {
  int32_t code;   // enum mgrpo_advantage_error_code
  int64_t group;  // the first offending group
  int64_t index;  // the first offending member, counted within its group; -1 for NON_FINITE_VALUE
} mgrpo_advantage_error;

// rewards, weights_or_null and advantages have offsets[groups] elements. rewards and advantages are float64 or float32. If weights_or_null
// is null, all weights are 1. offsets [groups + 1] begins with 0 and does not decrease. stats has one element for each group. A member of
// weight 0 does not count in mu, sigma and the test for equality, and its advantage is 0. If a reward or weight is refused, the function
// returns MGRPO_REFUSED and fills *error. Then advantages and stats are unspecified.
MGRPO_API int32_t mgrpo_group_advantage_cpu(const void *rewards, int32_t dtype, const double *weights_or_null, const int64_t *offsets,
                                            int64_t groups, const mgrpo_convention *convention, void *advantages, mgrpo_group_stats *stats,
                                            mgrpo_advantage_error *error);

// The same on a GPU. Every array is in device memory, and convention and error are in host memory. The function waits for the stream,
// because the return value depends on the data.
MGRPO_API int32_t mgrpo_group_advantage_cuda(const void *rewards, int32_t dtype, const double *weights_or_null, const int64_t *offsets,
                                             int64_t groups, const mgrpo_convention *convention, void *advantages, mgrpo_group_stats *stats,
                                             mgrpo_advantage_error *error, void *stream);
