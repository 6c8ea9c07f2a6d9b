#include <omp.h>

#include <map>

#include "backend.h"
#include "loss_testing.h"

namespace {
using namespace conformance;

struct Batch {
  std::vector<int64_t> cu{0}, group, trained;
  std::vector<double> weight, advantage, now, old, behaviour, ref, entropy;
  std::vector<uint8_t> mask;

  size_t count() const { return weight.size(); }
  size_t tokens() const { return mask.size(); }
};

// Ragged trajectories in interleaved groups. Some tokens are masked, one trajectory is dropped, and one is masked completely.
Batch random_batch(unsigned seed, size_t trajectories = 12, size_t longest = 9) {
  std::mt19937 generator(seed);
  Batch b;
  for (size_t j = 0; j < trajectories; j++) {
    const size_t n = 1 + generator() % longest;
    b.group.push_back(static_cast<int64_t>(j % 3) * 1000 - 7);
    b.weight.push_back(j == 3 ? 0 : 1 + static_cast<double>(generator() % 3));
    b.advantage.push_back(normals(1, generator())[0]);
    int64_t trained = 0;
    for (size_t t = 0; t < n; t++) {
      b.mask.push_back(j != 5 && (t == 0 || generator() % 4 != 0));
      trained += b.mask.back();
    }
    b.trained.push_back(trained);
    b.cu.push_back(static_cast<int64_t>(b.mask.size()));
  }
  const size_t n = b.tokens();
  const auto base = normals(n, seed + 1), d = normals(n, seed + 2, 0.3), e = normals(n, seed + 3, 0.4), r = normals(n, seed + 4, 0.5);
  for (size_t t = 0; t < n; t++) {
    b.old.push_back(-3 - std::abs(base[t]));
    b.now.push_back(b.old[t] + d[t]);
    b.behaviour.push_back(b.old[t] + e[t]);
    b.ref.push_back(b.old[t] + r[t]);
    b.entropy.push_back(1 + std::abs(base[t]));
  }
  return b;
}

struct Result {
  int32_t status;
  mgrpo_loss_error error;
  mgrpo_loss_stats stats;
  std::vector<double> dlogp, dentropy, coefficient;
};

// Selects the optional arrays to pass.
struct Supplied {
  bool behaviour = true, ref = true, entropy = true;
};

template <class T>
Result run(const Backend &backend, const Batch &b, const mgrpo_loss_config &c, Supplied has = {}) {
  Result r{};
  mgrpo_loss_totals totals;
  r.coefficient.resize(b.count());
  r.status = mgrpo_loss_coefficients(static_cast<int64_t>(b.count()), b.group.data(), b.weight.data(), b.advantage.data(), b.trained.data(),
                                     &c, r.coefficient.data(), &totals, &r.error);
  if (r.status != MGRPO_OK) return r;
  Buffer<uint8_t> mask(backend, b.mask);
  Buffer<T> now(backend, cast<T>(b.now)), old(backend, cast<T>(b.old)), behaviour(backend, cast<T>(b.behaviour)),
      ref(backend, cast<T>(b.ref)), entropy(backend, cast<T>(b.entropy)), dlogp(backend, b.tokens()), dentropy(backend, b.tokens());
  const mgrpo_loss_batch batch{.trajectories = static_cast<int64_t>(b.count()),
                               .tokens = static_cast<int64_t>(b.tokens()),
                               .cu_seqlens = b.cu.data(),
                               .weight = b.weight.data(),
                               .advantage = b.advantage.data(),
                               .coefficient = r.coefficient.data(),
                               .mask = mask.get(),
                               .dtype = sizeof(T) == 4 ? MGRPO_FLOAT32 : MGRPO_FLOAT64,
                               .logp_new = now.get(),
                               .logp_old = old.get(),
                               .logp_behaviour = has.behaviour ? behaviour.get() : nullptr,
                               .logp_ref = has.ref ? ref.get() : nullptr,
                               .entropy = has.entropy ? entropy.get() : nullptr};
  mgrpo_loss_sums sums;
  r.status = backend.policy_loss(&batch, &c, dlogp.get(), dentropy.get(), &sums, &r.error);
  mgrpo_loss_stats_finalize(&sums, &totals, &r.stats);
  r.dlogp = cast<double>(dlogp.values());
  r.dentropy = cast<double>(dentropy.values());
  return r;
}

// Computes the loss from the coefficients on, as docs/algorithm.md §5 defines it. `frozen` replaces `now` inside a stop-gradient.
long double oracle(const Batch &b, const mgrpo_loss_config &c, const std::vector<double> &now, const std::vector<double> &frozen) {
  std::map<int64_t, double> group_weight;
  double all = 0;
  for (size_t j = 0; j < b.count(); j++)
    if (b.weight[j] > 0 && b.trained[j] > 0)
      group_weight[b.group[j]] += b.weight[j], all += b.weight[j] * static_cast<double>(b.trained[j]);
  const auto bounded = [&](long double x) {
    return c.log_ratio_clamp > 0 ? std::min<long double>(c.log_ratio_clamp, std::max<long double>(-c.log_ratio_clamp, x)) : x;
  };
  long double loss = 0;
  for (size_t j = 0; j < b.count(); j++) {
    if (b.weight[j] == 0 || b.trained[j] == 0) continue;
    const long double T = b.trained[j], G = group_weight.size(), W = group_weight[b.group[j]], A = b.advantage[j];
    const long double coefficient = c.aggregation == MGRPO_AGGREGATION_TOKEN_MEAN ? b.weight[j] / all
                                    : c.aggregation == MGRPO_AGGREGATION_CONSTANT ? b.weight[j] / (G * W * c.max_length)
                                                                                  : b.weight[j] / (G * W * T);
    long double sequence = 0;
    for (int64_t t = b.cu[j]; t < b.cu[j + 1]; t++)
      if (b.mask[t]) sequence += now[t] - b.old[t];
    for (int64_t t = b.cu[j]; t < b.cu[j + 1]; t++) {
      if (!b.mask[t]) continue;
      long double l;
      if (c.ratio == MGRPO_RATIO_CISPO) {
        const long double rho = std::exp(bounded(frozen[t] - b.old[t]));
        l = -std::min<long double>(1 + c.cispo_high, std::max<long double>(1 - c.cispo_low, rho)) * A * now[t];
      } else {
        const long double exponent = c.ratio == MGRPO_RATIO_TOKEN              ? now[t] - b.old[t]
                                     : c.ratio == MGRPO_RATIO_SEQUENCE_PRODUCT ? sequence
                                                                               : sequence / T;
        const long double rho = std::exp(bounded(exponent));
        const long double clipped = std::min<long double>(1 + c.eps_high, std::max<long double>(1 - c.eps_low, rho));
        long double objective = std::min(rho * A, clipped * A);
        if (c.dual_clip > 0 && A < 0) objective = std::max(objective, c.dual_clip * A);
        l = -objective;
      }
      const long double v =
          c.tis_cap > 0 ? std::min<long double>(c.tis_cap, std::exp(static_cast<long double>(b.old[t]) - b.behaviour[t])) : 1;
      const long double x = bounded(now[t] - b.ref[t]);
      const long double kl = c.kl == MGRPO_KL_K1 ? x : c.kl == MGRPO_KL_K2 ? x * x / 2 : c.kl == MGRPO_KL_K3 ? std::exp(-x) - 1 + x : 0;
      loss += coefficient * (v * l + c.kl_coef * kl - c.entropy_coef * b.entropy[t]);
    }
  }
  return loss;
}

std::vector<mgrpo_loss_config> all_modes() {
  std::vector<mgrpo_loss_config> out;
  for (int32_t ratio = 0; ratio < 4; ratio++)
    for (int32_t aggregation = 0; aggregation < 3; aggregation++)
      for (int32_t kl = 0; kl < 4; kl++)
        for (const double tis : {0.0, 1.5})
          for (const double dual : {0.0, 1.6}) {
            mgrpo_loss_config c = loss_defaults();
            c.ratio = ratio;
            c.aggregation = aggregation;
            c.max_length = 64;
            c.kl = kl;
            c.kl_coef = kl ? 0.07 : 0;
            c.entropy_coef = kl == 2 ? 0.01 : 0;
            c.tis_cap = tis;
            c.dual_clip = dual;
            c.log_ratio_clamp = kl == 1 ? 0 : 20;
            c.cispo_low = dual > 0 ? 0.2 : 1;
            c.cispo_high = 0.3;
            out.push_back(c);
          }
  return out;
}

class PolicyLoss : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(PolicyLoss);

TEST_P(PolicyLoss, EveryModeMatchesTheDefinitionAndItsDifferences) {
  const Batch b = random_batch(7);
  for (const mgrpo_loss_config &c : all_modes()) {
    SCOPED_TRACE(testing::Message() << "ratio " << c.ratio << " aggregation " << c.aggregation << " kl " << c.kl << " tis " << c.tis_cap
                                    << " dual " << c.dual_clip);
    const Result r = run<double>(backend(), b, c);
    ASSERT_EQ(r.status, MGRPO_OK);
    ASSERT_NEAR(r.stats.loss, static_cast<double>(oracle(b, c, b.now, b.now)), 1e-12);
    ASSERT_NEAR(r.stats.loss_policy + r.stats.loss_kl + r.stats.loss_entropy, r.stats.loss, 1e-15);
    for (size_t t = 0; t < b.tokens(); t++) {
      auto up = b.now, down = b.now;
      up[t] += 1e-6;
      down[t] -= 1e-6;
      const double slope = static_cast<double>((oracle(b, c, up, b.now) - oracle(b, c, down, b.now)) / 2e-6L);
      ASSERT_NEAR(r.dlogp[t], slope, 1e-8) << "token " << t;
    }
    const Result f = run<float>(backend(), b, c);
    ASSERT_EQ(f.status, MGRPO_OK);
    ASSERT_NEAR(f.stats.loss, r.stats.loss, 2e-5);
  }
}

TEST_P(PolicyLoss, UntrainedTokensAreExactlyZeroAndMayHoldNaN) {
  Batch b = random_batch(8);
  for (size_t j = 0; j < b.count(); j++)
    for (int64_t t = b.cu[j]; t < b.cu[j + 1]; t++)
      if (!b.mask[t] || b.weight[j] == 0) b.now[t] = b.old[t] = b.behaviour[t] = b.ref[t] = b.entropy[t] = t % 2 ? kNaN : kInf;
  b.advantage[3] = b.advantage[5] = kNaN;  // one is dropped, the other has no trained token
  mgrpo_loss_config c = loss_defaults();
  c.entropy_coef = 0.01;
  const Result r = run<float>(backend(), b, c);
  ASSERT_EQ(r.status, MGRPO_OK);
  for (size_t j = 0; j < b.count(); j++)
    for (int64_t t = b.cu[j]; t < b.cu[j + 1]; t++) {
      if (b.mask[t] && b.weight[j] > 0) continue;
      EXPECT_EQ(r.dlogp[t], 0);
      EXPECT_EQ(r.dentropy[t], 0);
    }
  EXPECT_EQ(r.stats.empty_trajectories, 1);
}

TEST_P(PolicyLoss, TiesTakeTheUnclippedBranch) {
  Batch b = random_batch(9);
  b.now = b.old;
  mgrpo_loss_config c = loss_defaults();
  c.eps_low = c.eps_high = 0;
  const Result r = run<double>(backend(), b, c);
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_EQ(r.stats.clip_frac_low + r.stats.clip_frac_high, 0);
  for (size_t j = 0; j < b.count(); j++)
    for (int64_t t = b.cu[j]; t < b.cu[j + 1]; t++)
      if (b.mask[t] && b.weight[j] > 0) {
        EXPECT_NEAR(r.dlogp[t], -b.advantage[j] * r.coefficient[j], 1e-15);
      }
}

TEST_P(PolicyLoss, ClampStopsTheGradientStrictlyOutside) {
  Batch b{};
  b.cu = {0, 1, 2};
  b.group = {0, 0};
  b.trained = {1, 1};
  b.weight = {1, 1};
  b.advantage = {1, 1};
  b.mask = {1, 1};
  b.old = {-10, -10};
  b.now = {-30, -30.5};  // at the bound, and outside it
  b.behaviour = b.ref = b.old;
  b.entropy = {0, 0};
  const Result r = run<double>(backend(), b, loss_defaults());
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_DOUBLE_EQ(r.dlogp[0], -0.5 * std::exp(-20));
  EXPECT_EQ(r.dlogp[1], 0);
  EXPECT_EQ(r.stats.log_ratio_clamped_frac, 0.5);
}

TEST_P(PolicyLoss, StatisticsCountWeightsAsCopies) {
  Batch weighted = random_batch(10, 4), copied;
  weighted.weight = {2, 1, 3, 1};
  copied.cu = {0};
  for (size_t j = 0; j < 4; j++)
    for (int k = 0; k < static_cast<int>(weighted.weight[j]); k++) {
      copied.group.push_back(weighted.group[j]);
      copied.trained.push_back(weighted.trained[j]);
      copied.weight.push_back(1);
      copied.advantage.push_back(weighted.advantage[j]);
      for (int64_t t = weighted.cu[j]; t < weighted.cu[j + 1]; t++) {
        copied.mask.push_back(weighted.mask[t]);
        for (auto field : {&Batch::now, &Batch::old, &Batch::behaviour, &Batch::ref, &Batch::entropy})
          (copied.*field).push_back((weighted.*field)[t]);
      }
      copied.cu.push_back(static_cast<int64_t>(copied.mask.size()));
    }
  mgrpo_loss_config c = loss_defaults();
  c.tis_cap = 1.2;
  c.kl = MGRPO_KL_K3;
  const auto a = run<double>(backend(), weighted, c).stats, b = run<double>(backend(), copied, c).stats;
  for (auto field : {&mgrpo_loss_stats::loss, &mgrpo_loss_stats::clip_frac_low, &mgrpo_loss_stats::clip_frac_high,
                     &mgrpo_loss_stats::ratio_mean, &mgrpo_loss_stats::ratio_max, &mgrpo_loss_stats::approx_kl_k3,
                     &mgrpo_loss_stats::entropy_mean, &mgrpo_loss_stats::ref_kl_mean, &mgrpo_loss_stats::tis_mean,
                     &mgrpo_loss_stats::tis_truncated_frac, &mgrpo_loss_stats::behaviour_gap_mean, &mgrpo_loss_stats::weighted_tokens})
    EXPECT_NEAR(a.*field, b.*field, 1e-13);
}

TEST_P(PolicyLoss, AbsentInputsHaveNoStatistics) {
  const Result r = run<float>(backend(), random_batch(11), loss_defaults(), {false, false, false});
  ASSERT_EQ(r.status, MGRPO_OK);
  for (double x : {r.stats.entropy_mean, r.stats.ref_kl_mean, r.stats.tis_mean, r.stats.tis_max, r.stats.behaviour_gap_mean})
    EXPECT_TRUE(std::isnan(x));
}

TEST_P(PolicyLoss, RefusalsComeInTheSpecifiedOrder) {
  mgrpo_loss_config c = loss_defaults();
  const Batch good = random_batch(12);
  const auto first = static_cast<int64_t>(good.cu[1]);  // a trained token of trajectory 1
  struct Case {
    Batch batch;
    mgrpo_loss_config config;
    Supplied has;
    mgrpo_loss_error want;
  };
  std::vector<Case> cases;
  const auto add = [&](auto edit, mgrpo_loss_error want, Supplied has = {}) {
    Case x{good, c, has, want};
    edit(x.batch, x.config);
    cases.push_back(x);
  };
  add([](Batch &b, auto &) { b.weight[1] = -1, b.advantage[0] = kNaN; }, {MGRPO_LOSS_BAD_WEIGHT, 0, 1, -1, 0});
  add([](Batch &b, auto &) { b.weight.assign(b.count(), 0); }, {MGRPO_LOSS_EMPTY_BATCH, 0, -1, -1, 0});
  add([&](Batch &b, auto &) { b.advantage[2] = kInf, b.now[first] = kNaN; },
      {MGRPO_LOSS_NON_FINITE_INPUT, MGRPO_FIELD_ADVANTAGE, 2, -1, 0});
  add([&](Batch &b, auto &x) { x.tis_cap = 2, b.now[first] = kNaN; }, {MGRPO_LOSS_MISSING_INPUT, MGRPO_FIELD_LOGP_BEHAVIOUR, -1, -1, 0},
      {false, true, true});
  add([](Batch &, auto &x) { x.kl = MGRPO_KL_K1, x.kl_coef = 1; }, {MGRPO_LOSS_MISSING_INPUT, MGRPO_FIELD_LOGP_REF, -1, -1, 0},
      {true, false, true});
  add([](Batch &, auto &x) { x.entropy_coef = -1; }, {MGRPO_LOSS_MISSING_INPUT, MGRPO_FIELD_ENTROPY, -1, -1, 0}, {true, true, false});
  add([&](Batch &b, auto &) { b.old[first] = -kInf, b.ref[first] = kNaN, b.now[0] = 1; },
      {MGRPO_LOSS_NON_FINITE_INPUT, MGRPO_FIELD_LOGP_OLD, 1, first, 2});
  add([&](Batch &b, auto &x) { b.ref[first] = 0.5, x.log_ratio_clamp = 0, b.now[0] = 0, b.old[0] = -900; },
      {MGRPO_LOSS_POSITIVE_LOGPROB, MGRPO_FIELD_LOGP_REF, 1, first, 0});
  add([](Batch &b, auto &x) { x.log_ratio_clamp = 0, b.old[0] = -100, b.now[0] = -1; },
      {MGRPO_LOSS_RATIO_OVERFLOW, MGRPO_FIELD_RATIO, 0, -1, 0});
  add([](Batch &b, auto &x) { x.log_ratio_clamp = 0, x.kl = MGRPO_KL_K3, b.old[0] = b.now[0] = -100, b.ref[0] = -1; },
      {MGRPO_LOSS_RATIO_OVERFLOW, MGRPO_FIELD_REF_KL, 0, -1, 0});
  add([](Batch &b, auto &) { b.advantage[0] = 1e300, b.now[0] = b.old[0]; }, {MGRPO_LOSS_NON_FINITE_VALUE, 0, -1, -1, 0});
  for (size_t i = 0; i < cases.size(); i++) {
    const Result r = run<float>(backend(), cases[i].batch, cases[i].config, cases[i].has);
    const auto &want = cases[i].want;
    EXPECT_EQ(r.status, MGRPO_REFUSED) << i;
    EXPECT_EQ(r.error.code, want.code) << i;
    EXPECT_EQ(r.error.field, want.field) << i;
    EXPECT_EQ(r.error.trajectory, want.trajectory) << i;
    EXPECT_EQ(r.error.token, want.token) << i;
    EXPECT_EQ(r.error.count, want.count) << i;
  }
}

TEST_P(PolicyLoss, EmptyMicroBatch) {
  const int64_t cu = 0;
  mgrpo_loss_batch batch{};
  batch.cu_seqlens = &cu;
  batch.dtype = MGRPO_FLOAT32;
  batch.logp_new = batch.logp_old = &cu;
  const mgrpo_loss_config c = loss_defaults();
  mgrpo_loss_sums sums;
  mgrpo_loss_error error;
  EXPECT_EQ(backend().policy_loss(&batch, &c, nullptr, nullptr, &sums, &error), MGRPO_OK);
  EXPECT_EQ(sums.tokens, 0);
  EXPECT_EQ(sums.loss_policy, 0);
}

TEST_P(PolicyLoss, RejectsArraysThatDoNotFit) {
  const int64_t falling[] = {0, 5, 3}, late[] = {1, 2, 3};
  const double ones[] = {1, 1};
  const uint8_t mask[5] = {};
  const mgrpo_loss_config c = loss_defaults();
  mgrpo_loss_sums sums;
  mgrpo_loss_error error;
  float out[5];
  for (const int64_t *cu : {falling, late}) {
    const mgrpo_loss_batch batch{2, 3, cu, ones, ones, ones, mask, MGRPO_FLOAT32, out, out, nullptr, nullptr, nullptr};
    EXPECT_EQ(backend().policy_loss(&batch, &c, out, nullptr, &sums, &error), MGRPO_INVALID_ARGUMENT);
  }
}

// 70,000 trajectories exceed a grid dimension.
TEST_P(PolicyLoss, ManyTrajectories) {
  MGRPO_SKIP_EMULATED();
  const Batch b = random_batch(13, 70000, 2);
  const Result r = run<double>(backend(), b, loss_defaults());
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_NEAR(r.stats.loss, static_cast<double>(oracle(b, loss_defaults(), b.now, b.now)), 1e-12);
}

TEST(PolicyLossThreads, SameBits) {
  const Batch b = random_batch(14, 3000, 9);
  mgrpo_loss_config c = loss_defaults();
  c.ratio = MGRPO_RATIO_SEQUENCE_GEOMETRIC;
  c.tis_cap = 2;
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Result one = run<float>(cpu(), b, c);
  omp_set_num_threads(4);
  const Result four = run<float>(cpu(), b, c);
  omp_set_num_threads(before);
  EXPECT_EQ(one.dlogp, four.dlogp);
  EXPECT_EQ(one.stats.loss, four.stats.loss);
  EXPECT_EQ(one.stats.tis_mean, four.stats.tis_mean);
}

}  // namespace
