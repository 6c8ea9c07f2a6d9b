#include <omp.h>

#include <cstdlib>

#include "logits_testing.h"
#include "loss_testing.h"

namespace {
using namespace conformance;

const float nan32 = std::numeric_limits<float>::quiet_NaN(), inf32 = std::numeric_limits<float>::infinity();

// Trajectories of three tokens; every fifth token is masked, and the second trajectory has weight 0. logits is [rows, ld].
template <class Type>
struct Problem {
  using Logit = typename Type::Logit;
  using Output = typename Type::Output;
  Shape shape;
  double tau;
  std::vector<Logit> logits;
  std::vector<int32_t> targets;
  std::vector<int64_t> cu{0};
  std::vector<double> weight, advantage, coefficient;
  std::vector<uint8_t> mask;
  std::vector<Output> old, behaviour, ref;

  Problem(Shape shape, double tau, double scale) : shape(shape), tau(tau) {
    const auto n = static_cast<size_t>(shape.rows * shape.ld), rows = static_cast<size_t>(shape.rows);
    const auto values = normals(n, static_cast<unsigned>(n), scale), noise = normals(3 * rows, 3, 0.3);
    for (size_t i = 0; i < n; i++) logits.push_back(Type::store(static_cast<int64_t>(i) % shape.ld < shape.vocab ? values[i] : kNaN));
    for (size_t r = 0; r < rows; r++) {
      targets.push_back(static_cast<int32_t>((static_cast<int64_t>(r) * 7919) % shape.vocab));
      mask.push_back(r % 5 != 4);
      const double logp = oracle(row(r), targets[r], tau, 0, 0).logp;
      old.push_back(static_cast<Output>(std::min(0.0, logp + noise[3 * r])));
      behaviour.push_back(static_cast<Output>(std::min(0.0, logp + noise[3 * r + 1])));
      ref.push_back(static_cast<Output>(std::min(0.0, logp + noise[3 * r + 2])));
    }
    for (int64_t begin = 0; begin < shape.rows; begin += 3) {
      const size_t j = weight.size();
      cu.push_back(std::min(begin + 3, shape.rows));
      weight.push_back(j == 1 ? 0 : 1 + static_cast<double>(j % 2));
      advantage.push_back(j % 3 == 0 ? -1.5 : 0.8);
      coefficient.push_back(j == 1 ? 0 : 0.25 + 0.1 * static_cast<double>(j % 4));
    }
  }

  std::vector<double> row(size_t r) const {
    std::vector<double> out;
    for (int64_t v = 0; v < shape.vocab; v++) out.push_back(Type::load(logits[r * static_cast<size_t>(shape.ld) + static_cast<size_t>(v)]));
    return out;
  }
  size_t trajectory(size_t r) const { return r / 3; }
  bool trained(size_t r) const { return mask[r] && weight[trajectory(r)] > 0; }
};

template <class Type>
struct Result {
  int32_t status;
  int64_t bad;
  mgrpo_loss_sums sums;
  mgrpo_loss_error error;
  std::vector<typename Type::Output> logp, entropy;
  std::vector<typename Type::Logit> dz;
};

// The problem's arrays in a backend's memory.
template <class Type>
struct Arrays {
  using Output = typename Type::Output;
  const Problem<Type> &p;
  Buffer<typename Type::Logit> z;
  Buffer<int32_t> targets;
  Buffer<uint8_t> mask;
  Buffer<Output> old, behaviour, ref, logp, entropy;

  Arrays(const Backend &b, const Problem<Type> &p, bool aligned = false)
      : p(p),
        z(b, p.logits, aligned),
        targets(b, p.targets),
        mask(b, p.mask),
        old(b, p.old),
        behaviour(b, p.behaviour),
        ref(b, p.ref),
        logp(b, p.mask.size()),
        entropy(b, p.mask.size()) {}

  mgrpo_loss_batch batch(const mgrpo_loss_config &c) {
    return {.trajectories = static_cast<int64_t>(p.weight.size()),
            .tokens = p.shape.rows,
            .cu_seqlens = p.cu.data(),
            .weight = p.weight.data(),
            .advantage = p.advantage.data(),
            .coefficient = p.coefficient.data(),
            .mask = mask.get(),
            .dtype = sizeof(Output) == 4 ? MGRPO_FLOAT32 : MGRPO_FLOAT64,
            .logp_new = nullptr,
            .logp_old = old.get(),
            .logp_behaviour = c.tis_cap != 0 ? behaviour.get() : nullptr,
            .logp_ref = c.kl != MGRPO_KL_NONE ? ref.get() : nullptr,
            .entropy = nullptr};
  }
  mgrpo_logits rows(int64_t first, int64_t n) {
    return {z.get() + first * p.shape.ld, Type::kType, n, p.shape.vocab, p.shape.ld, targets.get() + first, p.tau, 0};
  }
  Result<Type> result(Result<Type> r) {
    r.logp = logp.values();
    r.entropy = entropy.values();
    r.dz = z.values();
    return r;
  }
};

template <class Type>
Result<Type> run(const Backend &b, const Problem<Type> &p, const mgrpo_loss_config &c) {
  Arrays<Type> a(b, p);
  const mgrpo_loss_batch batch = a.batch(c);
  const mgrpo_logits logits = a.rows(0, p.shape.rows);
  Result<Type> r{};
  r.status = b.policy_loss_from_logits(&logits, &batch, &c, a.logp.get(), a.entropy.get(), &r.sums, &r.bad, &r.error);
  return a.result(r);
}

// Computes logp and entropy by their definitions, dL/dlogp and dL/dH with policy_loss, and then dL/dz by its definition.
template <class Type>
void compare_with_oracle(const Backend &b, Shape shape, double tau, double scale, const mgrpo_loss_config &c) {
  const Problem<Type> p(shape, tau, scale);
  const Result<Type> got = run(b, p, c);
  ASSERT_EQ(got.status, MGRPO_OK);
  EXPECT_EQ(got.bad, -1);

  const size_t rows = p.mask.size();
  std::vector<double> logp(rows), entropy(rows), g(rows), e(rows);
  for (size_t r = 0; r < rows; r++) {
    const Row want = oracle(p.row(r), p.targets[r], tau, 0, 0);
    logp[r] = want.logp;
    entropy[r] = want.entropy;
  }
  Arrays<Type> host(cpu(), p);
  mgrpo_loss_batch exact = host.batch(c);
  const auto old = cast<double>(p.old), behaviour = cast<double>(p.behaviour), ref = cast<double>(p.ref);
  exact.dtype = MGRPO_FLOAT64;
  exact.logp_new = logp.data();
  exact.entropy = entropy.data();
  exact.logp_old = old.data();
  if (exact.logp_behaviour) exact.logp_behaviour = behaviour.data();
  if (exact.logp_ref) exact.logp_ref = ref.data();
  mgrpo_loss_sums sums;
  mgrpo_loss_error error;
  ASSERT_EQ(mgrpo_policy_loss_cpu(&exact, &c, g.data(), e.data(), &sums, &error), MGRPO_OK);
  for (const auto field : {&mgrpo_loss_sums::loss_policy, &mgrpo_loss_sums::loss_kl, &mgrpo_loss_sums::loss_entropy,
                           &mgrpo_loss_sums::entropy, &mgrpo_loss_sums::ratio, &mgrpo_loss_sums::clip_high})
    EXPECT_NEAR(got.sums.*field, sums.*field, 1e-5 * std::max(1.0, std::abs(sums.*field)));
  EXPECT_EQ(got.sums.tokens, sums.tokens);
  EXPECT_TRUE(got.sums.has_entropy);

  for (size_t r = 0; r < rows; r++) {
    const Row want = oracle(p.row(r), p.targets[r], tau, g[r], e[r]);
    ASSERT_NEAR(got.logp[r], p.trained(r) ? want.logp : 0, Type::kValue * std::max(1.0, std::abs(want.logp))) << r;
    ASSERT_NEAR(got.entropy[r], p.trained(r) ? want.entropy : 0, Type::kValue * std::max(1.0, want.entropy)) << r;
    for (int64_t v = 0; v < shape.ld; v++) {
      const double z = Type::load(got.dz[r * static_cast<size_t>(shape.ld) + static_cast<size_t>(v)]);
      if (v >= shape.vocab) {
        ASSERT_TRUE(std::isnan(z)) << "padding was written at row " << r << " column " << v;
      } else if (!p.trained(r)) {
        ASSERT_EQ(z, 0) << r << " " << v;
      } else {
        // A rounding of logp moves the ratio, and with it the whole row, by the same factor.
        ASSERT_NEAR(z, want.dz[static_cast<size_t>(v)], 2 * Type::kGradient * std::max(1.0, std::abs(want.logp)) / tau) << r << " " << v;
      }
    }
  }
}

class FromLogits : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(FromLogits);

// One column; less than a vector; odd remainders and strides; several blocks of the sum; a real vocabulary; a row that exceeds one
// block's shared memory on a GPU.
const Shape kShapes[] = {{1, 1, 1}, {7, 5, 5}, {11, 17, 19}, {9, 1025, 1032}, {8, 4131, 4140}, {2, 49152, 49152}, {1, 151936, 151936}};

std::vector<mgrpo_loss_config> configs() {
  std::vector<mgrpo_loss_config> all(4, loss_defaults());
  all[1].kl = MGRPO_KL_K3, all[1].kl_coef = 0.1, all[1].tis_cap = 1.1, all[1].dual_clip = 1.2;
  all[2].entropy_coef = 0.3;  // needs the second exponential
  all[3].ratio = MGRPO_RATIO_CISPO, all[3].cispo_high = 0.1, all[3].entropy_coef = -0.1, all[3].kl = MGRPO_KL_K1;
  return all;
}

TEST_P(FromLogits, MatchesTheDefinitionInFloat32) {
  for (const Shape &s : kShapes)
    for (const auto &c : configs()) compare_with_oracle<InFloat32>(backend(), s, 0.7, 3, c);
}
TEST_P(FromLogits, MatchesTheDefinitionInFloat64) {
  for (const Shape &s : kShapes)
    for (const auto &c : configs()) compare_with_oracle<InFloat64>(backend(), s, 1.3, 5, c);
}
TEST_P(FromLogits, MatchesTheDefinitionInBFloat16) {
  for (const Shape &s : kShapes)
    for (const auto &c : configs()) compare_with_oracle<InBFloat16>(backend(), s, 1, 4, c);
}
TEST_P(FromLogits, ExtremeTemperatures) {
  for (const auto &c : configs()) {
    compare_with_oracle<InFloat32>(backend(), {6, 3000, 3000}, 0.01, 3, c);
    compare_with_oracle<InFloat32>(backend(), {6, 3000, 3000}, 100, 30, c);
  }
}

// One block of columns far below the row's maximum, and others that are all -Inf.
TEST_P(FromLogits, BlocksOfVanishingProbability) {
  Problem<InFloat32> p({1, 5000, 5000}, 1, 1);
  std::fill(p.logits.begin() + 1024, p.logits.begin() + 2048, -500.0f);
  std::fill(p.logits.begin() + 2048, p.logits.begin() + 4096, -inf32);
  const auto r = run(backend(), p, loss_defaults());
  ASSERT_EQ(r.status, MGRPO_OK);
  const Row want = oracle(p.row(0), 0, 1, 0, 0);
  EXPECT_NEAR(r.logp[0], want.logp, 1e-5);
  EXPECT_NEAR(r.entropy[0], want.entropy, 1e-5);
  for (size_t v = 1024; v < 4096; v++) ASSERT_EQ(r.dz[v], 0) << v;
  EXPECT_NE(r.dz[4097], 0);
}

TEST_P(FromLogits, MaskedRowsAndDroppedTrajectoriesAreExactlyZeroWhateverTheyHold) {
  Problem<InFloat32> p({7, 40, 40}, 1, 2);
  for (size_t r : {3u, 4u, 5u}) {  // the trajectory of weight 0; row 4 is masked too
    std::fill_n(p.logits.begin() + static_cast<int64_t>(40 * r), 40, nan32);
    p.targets[r] = 900;
    p.old[r] = nan32;
  }
  const auto r = run(backend(), p, loss_defaults());
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_EQ(r.bad, -1);
  EXPECT_EQ(r.sums.tokens, 4);
  for (size_t i = 3 * 40; i < 6 * 40; i++) ASSERT_EQ(r.dz[i], 0) << i;
}

TEST_P(FromLogits, NaNAndInfinityNameTheFirstRow) {
  for (const float value : {nan32, inf32})
    for (const size_t column : {0u, 37u, 2040u}) {
      Problem<InFloat32> p({9, 2048, 2048}, 1, 2);
      p.logits[6 * 2048 + column] = p.logits[8 * 2048] = value;
      const auto r = run(backend(), p, loss_defaults());
      EXPECT_EQ(r.status, MGRPO_NON_FINITE);
      EXPECT_EQ(r.bad, 6);
      EXPECT_TRUE(std::isnan(r.logp[6]) && std::isnan(r.entropy[6]) && std::isnan(r.dz[6 * 2048 + 5]));
    }
}

TEST_P(FromLogits, TargetsOutsideTheVocabularyNameTheFirstRow) {
  Problem<InFloat32> p({9, 40, 48}, 1, 2);
  p.targets[2] = 40;
  p.targets[0] = -1;
  const auto r = run(backend(), p, loss_defaults());
  EXPECT_EQ(r.status, MGRPO_NON_FINITE);
  EXPECT_EQ(r.bad, 0);
}

TEST_P(FromLogits, AnImpossibleTargetIsRefused) {
  Problem<InFloat32> p({3, 40, 40}, 1, 2);
  p.logits[40 + static_cast<size_t>(p.targets[1])] = -inf32;
  std::fill_n(p.logits.begin() + 80, 40, -inf32);
  const auto r = run(backend(), p, loss_defaults());
  EXPECT_EQ(r.status, MGRPO_REFUSED);
  EXPECT_EQ(r.error.code, MGRPO_LOSS_NON_FINITE_INPUT);
  EXPECT_EQ(r.error.field, MGRPO_FIELD_LOGP_NEW);
  EXPECT_EQ(r.error.token, 1);
  EXPECT_EQ(r.error.count, 2);
}

TEST_P(FromLogits, RefusesAsTheLossDoes) {
  mgrpo_loss_config c = loss_defaults();
  Problem<InFloat32> p({6, 40, 40}, 1, 2);
  p.old[2] = nan32;
  auto r = run(backend(), p, c);
  EXPECT_EQ(r.status, MGRPO_REFUSED);
  EXPECT_EQ(r.error.field, MGRPO_FIELD_LOGP_OLD);
  p.weight[0] = -1;
  EXPECT_EQ(run(backend(), p, c).error.code, MGRPO_LOSS_BAD_WEIGHT);

  Problem<InFloat32> q({6, 40, 40}, 1, 2);
  Arrays<InFloat32> a(backend(), q);
  const mgrpo_loss_batch without = a.batch(c);
  const mgrpo_logits logits = a.rows(0, 6);
  c.kl = MGRPO_KL_K1, c.kl_coef = 1;
  EXPECT_EQ(backend().policy_loss_from_logits(&logits, &without, &c, a.logp.get(), a.entropy.get(), &r.sums, &r.bad, &r.error),
            MGRPO_REFUSED);
  EXPECT_EQ(r.error.code, MGRPO_LOSS_MISSING_INPUT);
}

TEST_P(FromLogits, RejectsWhatItCannotDo) {
  mgrpo_loss_config sequence = loss_defaults();
  sequence.ratio = MGRPO_RATIO_SEQUENCE_GEOMETRIC;
  const Problem<InFloat32> p({6, 40, 40}, 1, 2);
  EXPECT_EQ(run(backend(), p, sequence).status, MGRPO_INVALID_ARGUMENT);

  const mgrpo_loss_config c = loss_defaults();
  Arrays<InFloat32> a(backend(), p);
  const mgrpo_loss_batch batch = a.batch(c);
  Buffer<int64_t> bad(backend(), std::vector<int64_t>{-1});
  mgrpo_loss_error error;
  const auto status = [&](mgrpo_logits z, int64_t first) {
    return backend().policy_gradient_from_logits(&z, first, &batch, &c, a.logp.get(), a.entropy.get(), bad.get(), &error);
  };
  mgrpo_logits z = a.rows(0, 6);
  EXPECT_EQ(status(z, 1), MGRPO_INVALID_ARGUMENT);  // the rows exceed the batch
  z.vocab = 41;
  EXPECT_EQ(status(z, 0), MGRPO_INVALID_ARGUMENT);
  z = a.rows(0, 6);
  z.tau = 0;
  EXPECT_EQ(status(z, 0), MGRPO_INVALID_ARGUMENT);
  z = a.rows(0, 6);
  z.dtype = MGRPO_FLOAT64;  // the batch is float32
  EXPECT_EQ(status(z, 0), MGRPO_INVALID_ARGUMENT);
  z = a.rows(0, 6);
  z.gradient_dtype = MGRPO_FLOAT64;
  EXPECT_EQ(status(z, 0), MGRPO_INVALID_ARGUMENT);
}

// On a GPU the gradient of float32 logits can be stored as bfloat16 in place of the logits. It equals the rounded float32 gradient.
TEST_P(FromLogits, NarrowGradients) {
  const mgrpo_loss_config c = configs()[2];
  for (const bool aligned : {false, true})
    for (const Shape &s : kShapes) {
      Problem<InFloat32> p(s, 0.7, 3);
      const bool spoilt = s.rows > 7;
      if (spoilt) p.logits[static_cast<size_t>(6 * s.ld)] = nan32;
      const auto wide = run(backend(), p, c);
      Arrays<InFloat32> a(backend(), p, aligned);
      const mgrpo_loss_batch batch = a.batch(c);
      mgrpo_logits logits = a.rows(0, s.rows);
      logits.gradient_dtype = MGRPO_BFLOAT16;
      Result<InFloat32> got{};
      got.status = backend().policy_loss_from_logits(&logits, &batch, &c, a.logp.get(), a.entropy.get(), &got.sums, &got.bad, &got.error);
      if (backend().name == cpu().name) {
        EXPECT_EQ(got.status, MGRPO_INVALID_ARGUMENT);
        continue;
      }
      ASSERT_EQ(got.status, spoilt ? MGRPO_NON_FINITE : MGRPO_OK);
      EXPECT_EQ(got.bad, spoilt ? 6 : -1);
      got = a.result(got);
      for (size_t r = 0; r < p.mask.size(); r++) {
        ASSERT_EQ(std::memcmp(&got.logp[r], &wide.logp[r], sizeof(float)), 0) << r;
        std::vector<uint16_t> half(static_cast<size_t>(s.vocab));
        std::memcpy(half.data(), &got.dz[r * static_cast<size_t>(s.ld)], half.size() * sizeof(uint16_t));
        for (size_t v = 0; v < half.size(); v++) {
          const float want = wide.dz[r * static_cast<size_t>(s.ld) + v];
          if (std::isnan(want))
            ASSERT_TRUE(std::isnan(from_bf16(half[v]))) << r << " " << v;
          else
            ASSERT_EQ(half[v], to_bf16(want)) << "row " << r << " of " << s.vocab << ", column " << v;
        }
      }
    }
}

TEST_P(FromLogits, ChunksMakeUpTheWhole) {
  const Problem<InFloat32> p({14, 3000, 3001}, 0.9, 3);
  const mgrpo_loss_config c = loss_defaults();
  const auto whole = run(backend(), p, c);
  Arrays<InFloat32> a(backend(), p);
  const mgrpo_loss_batch batch = a.batch(c);
  Buffer<int64_t> bad(backend(), std::vector<int64_t>{-1});
  mgrpo_loss_error error;
  for (int64_t first = 0; first < 14; first += 4) {
    const mgrpo_logits z = a.rows(first, std::min<int64_t>(4, 14 - first));
    ASSERT_EQ(backend().policy_gradient_from_logits(&z, first, &batch, &c, a.logp.get(), a.entropy.get(), bad.get(), &error), MGRPO_OK);
  }
  const auto parts = a.result({});
  EXPECT_EQ(bad.values()[0], -1);
  EXPECT_EQ(parts.logp, whole.logp);
  EXPECT_EQ(parts.entropy, whole.entropy);
  EXPECT_EQ(std::memcmp(parts.dz.data(), whole.dz.data(), whole.dz.size() * sizeof(float)), 0);
}

TEST_P(FromLogits, MoreRowsThanAGridDimension) {
  MGRPO_SKIP_EMULATED();
  compare_with_oracle<InFloat32>(backend(), {70001, 3, 3}, 1, 1, loss_defaults());
}

// As in LogProbIndex, the last row begins after 2^31 elements.
TEST(FromLogitsIndex, BeyondTwoToThe31Elements) {
  const int64_t rows = 70000, ld = 32768, vocab = 4, last = rows - 1;
  auto *logits = static_cast<uint16_t *>(std::calloc(static_cast<size_t>(rows * ld), sizeof(uint16_t)));
  if (!logits) GTEST_SKIP() << "no address space for " << rows * ld * 2 << " bytes";
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 1);
  std::vector<uint8_t> mask(static_cast<size_t>(rows), 0);
  std::vector<float> logp(static_cast<size_t>(rows), -77), entropy = logp, old(static_cast<size_t>(rows), -1);
  mask[static_cast<size_t>(last)] = 1;
  logits[last * ld + 1] = to_bf16(2);
  const int64_t cu[] = {0, rows};
  const double one = 1, advantage = -1;
  const mgrpo_loss_config c = loss_defaults();
  const mgrpo_loss_batch batch{1,       rows,       cu,      &one,    &advantage, &one, mask.data(), MGRPO_FLOAT32,
                               nullptr, old.data(), nullptr, nullptr, nullptr};
  const mgrpo_logits z{logits, MGRPO_BFLOAT16, rows, vocab, ld, targets.data(), 1, 0};
  mgrpo_loss_sums sums;
  mgrpo_loss_error error;
  int64_t bad;
  ASSERT_EQ(mgrpo_policy_loss_from_logits_cpu(&z, &batch, &c, logp.data(), entropy.data(), &sums, &bad, &error), MGRPO_OK);
  const float dz = from_bf16(logits[last * ld]);
  std::free(logits);
  EXPECT_NEAR(logp.back(), oracle({0, 2, 0, 0}, 1, 1, 1, 0).logp, 1e-6);
  EXPECT_EQ(logp.front(), 0);
  EXPECT_LT(dz, 0);
}

TEST(FromLogitsThreads, SameBits) {
  const Problem<InBFloat16> p({64, 5000, 5000}, 1, 4);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run(cpu(), p, loss_defaults());
  omp_set_num_threads(3);
  const auto three = run(cpu(), p, loss_defaults());
  omp_set_num_threads(before);
  EXPECT_EQ(one.logp, three.logp);
  EXPECT_EQ(one.entropy, three.entropy);
  EXPECT_EQ(one.dz, three.dz);
  EXPECT_EQ(one.sums.loss_policy, three.sums.loss_policy);
}

}  // namespace
