// The policy objective of one token and of one trajectory (docs/algorithm.md §5), for the CPU and the GPU. The backends differ only in the
// division of the work and in the order of the sums.
#pragma once
#include <math.h>

#include "mgrpo/policy_loss.h"
#include "nonfinite.h"

namespace mgrpo {

constexpr double kMaxExponent = 88.0;  // above this, exp overflows float32
constexpr double kMaxLogProb = 1e-3;   // a larger log-probability is not a rounding error but a bug of the caller
constexpr int64_t kNoKey = INT64_MAX;

MGRPO_HOST_DEVICE inline double min_of(double a, double b) { return b < a ? b : a; }
MGRPO_HOST_DEVICE inline double max_of(double a, double b) { return b > a ? b : a; }
MGRPO_HOST_DEVICE inline int64_t min_of(int64_t a, int64_t b) { return b < a ? b : a; }

MGRPO_HOST_DEVICE inline bool is_sequence(const mgrpo_loss_config &c) {
  return c.ratio == MGRPO_RATIO_SEQUENCE_PRODUCT || c.ratio == MGRPO_RATIO_SEQUENCE_GEOMETRIC;
}

// A clamped exponent. `moved` is true if it was strictly outside the bounds, so that its derivative is 0.
struct Exponent {
  double value;
  bool moved;
};
MGRPO_HOST_DEVICE inline Exponent clamp_exponent(const mgrpo_loss_config &c, double x) {
  const double limit = c.log_ratio_clamp;
  if (limit == 0 || (x >= -limit && x <= limit)) return {x, false};
  return {x > 0 ? limit : -limit, true};
}

// v_t of docs/algorithm.md §5.2. If exp overflows, v_t is the cap.
struct Tis {
  double value;
  bool truncated;
};
MGRPO_HOST_DEVICE inline Tis tis_weight(const mgrpo_loss_config &c, double logp_old, double logp_behaviour) {
  if (c.tis_cap == 0) return {1, false};
  const double ratio = exp(logp_old - logp_behaviour);
  return {min_of(ratio, c.tis_cap), ratio > c.tis_cap};
}

// kl_t of docs/algorithm.md §5.4 and its derivative with respect to logp_new.
struct Kl {
  double value, derivative;
};
MGRPO_HOST_DEVICE inline Kl kl_term(const mgrpo_loss_config &c, double logp_new, double logp_ref) {
  const Exponent x = clamp_exponent(c, logp_new - logp_ref);
  const double inside = x.moved ? 0 : 1;
  switch (c.kl) {
    case MGRPO_KL_K1:
      return {x.value, inside};
    case MGRPO_KL_K2:
      return {0.5 * x.value * x.value, inside * x.value};
    case MGRPO_KL_K3:
      return {expm1(-x.value) + x.value, -inside * expm1(-x.value)};
  }
  return {0, 0};
}

// l of docs/algorithm.md §5.1 for advantage a, without v_t and c_j.
struct PolicyTerm {
  double loss;
  double derivative;  // with respect to the log of the ratio; for CISPO, to logp_new
  double ratio;
  bool clip_low, clip_high, dual_clip, clamped;
};

MGRPO_HOST_DEVICE inline PolicyTerm cispo_term(const mgrpo_loss_config &c, Exponent delta, double a, double logp_new) {
  const double rho = exp(delta.value), low = 1 - c.cispo_low, high = 1 + c.cispo_high;
  const double weight = max_of(low, min_of(rho, high));
  PolicyTerm t{-weight * a * logp_new, -weight * a, rho, false, false, false, delta.moved};
  t.clip_low = rho < low;
  t.clip_high = rho > high;
  return t;
}

// Returns the policy term of a token. At a tie the unclipped branch is taken, with its full gradient.
MGRPO_HOST_DEVICE inline PolicyTerm policy_term(const mgrpo_loss_config &c, Exponent log_ratio, double a, double logp_new) {
  if (c.ratio == MGRPO_RATIO_CISPO) return cispo_term(c, log_ratio, a, logp_new);
  const double rho = exp(log_ratio.value), low = 1 - c.eps_low, high = 1 + c.eps_high;
  PolicyTerm t{0, 0, rho, false, false, false, log_ratio.moved};
  if (a == 0) return t;
  bool active;
  if (a > 0) {
    t.clip_high = rho > high;
    active = !t.clip_high;
    t.loss = -a * min_of(rho, high);
  } else {
    t.clip_low = rho < low;
    t.dual_clip = c.dual_clip != 0 && rho > c.dual_clip;
    active = !t.clip_low && !t.dual_clip;
    const double bounded = max_of(rho, low);
    t.loss = -a * (c.dual_clip != 0 ? min_of(bounded, c.dual_clip) : bounded);
  }
  if (active && !log_ratio.moved) t.derivative = -a * rho;
  return t;
}

// The arrays of a batch, in their element type.
template <class T>
struct TokenArrays {
  const uint8_t *mask;
  const T *logp_new, *logp_old, *logp_behaviour, *logp_ref, *entropy;
};

// The results of the first pass over a trajectory: the checks of rules 5 to 7 of docs/algorithm.md §7, and the sums that a sequence ratio
// needs. A key is token * 8 + field: errors are ordered by token, then field, and the smallest key is the first error.
struct TrajectoryScan {
  int64_t tokens = 0, bad_key = kNoKey, bad_count = 0, positive_key = kNoKey;
  double delta = 0, tis = 0;
  int32_t ratio_overflow = 0, ref_overflow = 0;

  MGRPO_HOST_DEVICE inline void check(const double value, int64_t token, int32_t field) {
    if (!isfinite(value)) {
      bad_key = min_of(bad_key, token * 8 + field);
      bad_count++;
    } else if (field != MGRPO_FIELD_ENTROPY && value > kMaxLogProb) {
      positive_key = min_of(positive_key, token * 8 + field);
    }
  }

  template <class T>
  MGRPO_HOST_DEVICE inline void add(const mgrpo_loss_config &c, const TokenArrays<T> &in, int64_t token) {
    if (in.mask[token] == 0) return;
    const double now = in.logp_new[token], old = in.logp_old[token];
    tokens++;
    check(now, token, MGRPO_FIELD_LOGP_NEW);
    check(old, token, MGRPO_FIELD_LOGP_OLD);
    if (in.logp_behaviour) check(in.logp_behaviour[token], token, MGRPO_FIELD_LOGP_BEHAVIOUR);
    if (in.logp_ref) check(in.logp_ref[token], token, MGRPO_FIELD_LOGP_REF);
    if (in.entropy) check(in.entropy[token], token, MGRPO_FIELD_ENTROPY);
    delta += now - old;
    tis += in.logp_behaviour ? tis_weight(c, old, in.logp_behaviour[token]).value : 1;
    if (clamp_exponent(c, now - old).value > kMaxExponent) ratio_overflow = 1;
    if (c.kl == MGRPO_KL_K3 && in.logp_ref && -clamp_exponent(c, now - in.logp_ref[token]).value > kMaxExponent) ref_overflow = 1;
  }

  MGRPO_HOST_DEVICE inline void merge(const TrajectoryScan &o) {
    tokens += o.tokens;
    bad_key = min_of(bad_key, o.bad_key);
    bad_count += o.bad_count;
    positive_key = min_of(positive_key, o.positive_key);
    delta += o.delta;
    tis += o.tis;
    ratio_overflow |= o.ratio_overflow;
    ref_overflow |= o.ref_overflow;
  }

  // Returns the exponent of a sequence ratio.
  MGRPO_HOST_DEVICE inline Exponent sequence_exponent(const mgrpo_loss_config &c) const {
    const bool mean = c.ratio == MGRPO_RATIO_SEQUENCE_GEOMETRIC;
    return clamp_exponent(c, mean && tokens > 0 ? delta / (double)tokens : delta);
  }
  MGRPO_HOST_DEVICE inline void finish(const mgrpo_loss_config &c) {
    if (is_sequence(c) && sequence_exponent(c).value > kMaxExponent) ratio_overflow = 1;
  }
};

MGRPO_HOST_DEVICE inline void init_sums(mgrpo_loss_sums &s) {
  s = mgrpo_loss_sums{};
  s.ratio_min = kInf;
  s.ratio_max = s.tis_max = s.behaviour_gap_max = -kInf;
}

MGRPO_HOST_DEVICE inline void merge_sums(mgrpo_loss_sums &s, const mgrpo_loss_sums &o) {
  s.loss_policy += o.loss_policy;
  s.loss_kl += o.loss_kl;
  s.loss_entropy += o.loss_entropy;
  s.weight += o.weight;
  s.clip_low += o.clip_low;
  s.clip_high += o.clip_high;
  s.dual_clip += o.dual_clip;
  s.log_ratio_clamped += o.log_ratio_clamped;
  s.tis_truncated += o.tis_truncated;
  s.ratio += o.ratio;
  s.kl_k1 += o.kl_k1;
  s.kl_k3 += o.kl_k3;
  s.entropy += o.entropy;
  s.ref_kl += o.ref_kl;
  s.tis += o.tis;
  s.behaviour_gap += o.behaviour_gap;
  s.ratio_min = min_of(s.ratio_min, o.ratio_min);
  s.ratio_max = max_of(s.ratio_max, o.ratio_max);
  s.tis_max = max_of(s.tis_max, o.tis_max);
  s.behaviour_gap_max = max_of(s.behaviour_gap_max, o.behaviour_gap_max);
  s.tokens += o.tokens;
  s.has_entropy |= o.has_entropy;
  s.has_ref_kl |= o.has_ref_kl;
  s.has_tis |= o.has_tis;
  s.has_behaviour |= o.has_behaviour;
}

// The loss of one trained token, before weights and coefficients, and its derivatives with respect to log-prob and
// entropy.
template <class T>
struct TokenTerm {
  Exponent delta;
  Tis v;
  PolicyTerm policy;
  Kl kl;
  double entropy;
  T dlogp_new, dentropy;
};

// The second pass over one trajectory of R, with the values that its tokens have in common. Only sequence ratios need the scan of the first
// pass.
template <class T>
struct TrajectoryLoss {
  const mgrpo_loss_config &c;
  TokenArrays<T> in;
  double weight, advantage, coefficient;
  TrajectoryScan scan;

  MGRPO_HOST_DEVICE inline TokenTerm<T> term(int64_t token) const {
    TokenTerm<T> t = term_without_entropy(token, in.logp_new[token]);
    t.entropy = in.entropy ? in.entropy[token] : 0;
    return t;
  }
  MGRPO_HOST_DEVICE inline TokenTerm<T> term_without_entropy(int64_t token, double now) const {
    const double old = in.logp_old[token];
    TokenTerm<T> t;
    t.delta = clamp_exponent(c, now - old);
    t.v = in.logp_behaviour ? tis_weight(c, old, in.logp_behaviour[token]) : Tis{1, false};
    t.policy = policy_term(c, is_sequence(c) ? scan.sequence_exponent(c) : t.delta, advantage, now);
    t.kl = in.logp_ref ? kl_term(c, now, in.logp_ref[token]) : Kl{0, 0};
    t.entropy = 0;
    const double slope = is_sequence(c) ? scan.tis * sequence_slope() : t.v.value;
    t.dlogp_new = (T)(coefficient * (slope * t.policy.derivative + c.kl_coef * t.kl.derivative));
    t.dentropy = (T)(-c.entropy_coef * coefficient);
    return t;
  }

  // Adds a token to the sums, and writes its gradients to the arrays that are not null. Returns false if a gradient is not finite.
  MGRPO_HOST_DEVICE inline bool apply(int64_t token, mgrpo_loss_sums &s, T *dlogp_new, T *dentropy) const {
    if (in.mask[token] == 0) {
      if (dlogp_new) dlogp_new[token] = 0;
      if (dentropy) dentropy[token] = 0;
      return true;
    }
    const TokenTerm<T> t = term(token);
    s.loss_policy += coefficient * t.v.value * t.policy.loss;
    s.loss_kl += coefficient * c.kl_coef * t.kl.value;
    s.loss_entropy -= coefficient * c.entropy_coef * t.entropy;
    count(s, t.policy, t.delta.value, t.kl.value, t.entropy);
    if (in.logp_behaviour) count_behaviour(s, t.v, fabs((double)in.logp_old[token] - in.logp_behaviour[token]));
    if (dlogp_new) dlogp_new[token] = t.dlogp_new;
    if (dentropy) dentropy[token] = t.dentropy;
    return isfinite(t.dlogp_new) && isfinite(t.dentropy);
  }

  // Returns the derivative of the logarithm of a sequence ratio with respect to logp_new of a token.
  MGRPO_HOST_DEVICE inline double sequence_slope() const { return c.ratio == MGRPO_RATIO_SEQUENCE_GEOMETRIC ? 1 / (double)scan.tokens : 1; }

  MGRPO_HOST_DEVICE inline void count(mgrpo_loss_sums &s, const PolicyTerm &t, double delta, double kl, double entropy) const {
    s.tokens++;
    s.weight += weight;
    s.clip_low += t.clip_low ? weight : 0;
    s.clip_high += t.clip_high ? weight : 0;
    s.dual_clip += t.dual_clip ? weight : 0;
    s.log_ratio_clamped += t.clamped ? weight : 0;
    s.ratio += weight * t.ratio;
    s.ratio_min = min_of(s.ratio_min, t.ratio);
    s.ratio_max = max_of(s.ratio_max, t.ratio);
    s.kl_k1 -= weight * delta;
    s.kl_k3 += weight * (expm1(delta) - delta);
    s.entropy += weight * entropy;
    s.ref_kl += weight * kl;
  }

  MGRPO_HOST_DEVICE inline void count_behaviour(mgrpo_loss_sums &s, const Tis &v, double gap) const {
    s.tis += weight * v.value;
    s.tis_max = max_of(s.tis_max, v.value);
    s.tis_truncated += v.truncated ? weight : 0;
    s.behaviour_gap += weight * gap;
    s.behaviour_gap_max = max_of(s.behaviour_gap_max, gap);
  }
};

MGRPO_HOST_DEVICE inline bool is_finite(const mgrpo_loss_sums &s) {
  return isfinite(s.loss_policy) && isfinite(s.loss_kl) && isfinite(s.loss_entropy);
}

template <class T>
TokenArrays<T> token_arrays(const mgrpo_loss_batch &b) {
  const auto typed = [](const void *p) { return static_cast<const T *>(p); };
  return {b.mask, typed(b.logp_new), typed(b.logp_old), typed(b.logp_behaviour), typed(b.logp_ref), typed(b.entropy)};
}

}  // namespace mgrpo
