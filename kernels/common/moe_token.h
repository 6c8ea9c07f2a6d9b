// The router's choice of experts for one token, and the gradient of its weights (mgrpo/moe.h), for the CPU and the GPU.
#pragma once
#include <math.h>

#include "mgrpo/moe.h"

namespace mgrpo {

constexpr int32_t kFree = -1;  // instead of a given expert: the router chooses the experts of the token

struct Candidate {
  float logit;
  int64_t expert;
};

// Reports whether a is chosen before b. A NaN counts as -Inf, so that the order is total.
MGRPO_HOST_DEVICE inline bool before(Candidate a, Candidate b) {
  const float x = a.logit == a.logit ? a.logit : -INFINITY, y = b.logit == b.logit ? b.logit : -INFINITY;
  return x > y || (x == y && a.expert < b.expert);
}

// Returns the candidate that is chosen after `last`, or the first one if `last` is null.
MGRPO_HOST_DEVICE inline Candidate next_best(const float *logits, int64_t experts, const Candidate *last) {
  Candidate best{-INFINITY, experts};
  for (int64_t e = 0; e < experts; e++) {
    const Candidate c{logits[e], e};
    if ((last == nullptr || before(*last, c)) && before(c, best)) best = c;
  }
  return best;
}

MGRPO_HOST_DEVICE inline bool contains(const int32_t *list, int64_t n, int64_t value) {
  for (int64_t i = 0; i < n; i++)
    if (list[i] == value) return true;
  return false;
}

// Reports whether the k given experts are distinct and in [0, experts).
MGRPO_HOST_DEVICE inline bool valid_choice(const int32_t *given, int64_t experts, int64_t k) {
  for (int64_t j = 0; j < k; j++)
    if (given[j] < 0 || given[j] >= experts || contains(given, j, given[j])) return false;
  return true;
}

// A softmax over some logits, as its maximum and its denominator. A call returns the weight of a logit.
struct Softmax {
  float top, sum;
  MGRPO_HOST_DEVICE float operator()(float logit) const { return expf(logit - top) / sum; }
};

// Returns the softmax over the n experts `of`, or over the experts 0 to n - 1 if `of` is null.
MGRPO_HOST_DEVICE inline Softmax softmax_of(const float *logits, const int32_t *of, int64_t n) {
  Softmax s{-INFINITY, 0};
  for (int64_t i = 0; i < n; i++) s.top = fmaxf(s.top, logits[of != nullptr ? of[i] : i]);
  for (int64_t i = 0; i < n; i++) s.sum += expf(logits[of != nullptr ? of[i] : i] - s.top);
  return s;
}

MGRPO_HOST_DEVICE inline bool all_finite(const float *values, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; i++) finite = finite && isfinite(values[i]);
  return finite;
}

// Computes one token of mgrpo_moe_route. `given` is null or a valid choice.
MGRPO_HOST_DEVICE inline void route_token(const float *logits, const int32_t *given, int32_t *expert, float *weight,
                                          int32_t *differs_or_null, int64_t experts, int64_t k, bool normalise) {
  int32_t others = 0;
  if (given == nullptr || differs_or_null != nullptr) {
    Candidate last{};
    for (int64_t j = 0; j < k; j++) {
      last = next_best(logits, experts, j > 0 ? &last : nullptr);
      if (given == nullptr)
        expert[j] = static_cast<int32_t>(last.expert);
      else if (!contains(given, k, last.expert))
        others = 1;
    }
  }
  if (given != nullptr)
    for (int64_t j = 0; j < k; j++) expert[j] = given[j];
  if (differs_or_null != nullptr) *differs_or_null = others;
  const Softmax s = normalise ? softmax_of(logits, expert, k) : softmax_of(logits, nullptr, experts);
  const bool finite = all_finite(logits, experts);
  for (int64_t j = 0; j < k; j++) weight[j] = finite ? s(logits[expert[j]]) : NAN;
}

// Computes one token of mgrpo_moe_route_bwd.
MGRPO_HOST_DEVICE inline void route_token_bwd(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                              float *dlogits, int64_t experts, int64_t k, bool normalise) {
  for (int64_t e = 0; e < experts; e++) dlogits[e] = 0;
  const Softmax all = softmax_of(logits, nullptr, experts);
  if (dprob_or_null != nullptr) {
    float mean = 0;
    for (int64_t e = 0; e < experts; e++) mean += all(logits[e]) * dprob_or_null[e];
    for (int64_t e = 0; e < experts; e++) dlogits[e] = all(logits[e]) * (dprob_or_null[e] - mean);
  }
  const Softmax chosen = normalise ? softmax_of(logits, expert, k) : all;
  float mean = 0;
  for (int64_t j = 0; j < k; j++) mean += chosen(logits[expert[j]]) * dweight[j];
  if (!normalise)
    for (int64_t e = 0; e < experts; e++) dlogits[e] -= all(logits[e]) * mean;
  for (int64_t j = 0; j < k; j++) {
    const float w = chosen(logits[expert[j]]);
    dlogits[expert[j]] += normalise ? w * (dweight[j] - mean) : w * dweight[j];
  }
}

}  // namespace mgrpo
