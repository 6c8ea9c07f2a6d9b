#include <omp.h>

#include <cstdlib>

#include "logits_testing.h"

namespace {
using namespace conformance;

template <class Type>
void compare_with_oracle(const Backend &b, Shape shape, double tau, double scale) {
  const auto n = static_cast<size_t>(shape.rows * shape.ld);
  std::vector<typename Type::Logit> logits(n);
  const auto values = normals(n, static_cast<unsigned>(n), scale);
  std::vector<int32_t> targets;
  std::vector<typename Type::Output> dlogp, dentropy;
  for (int64_t r = 0; r < shape.rows; r++) {
    for (int64_t v = 0; v < shape.ld; v++)
      logits[static_cast<size_t>(r * shape.ld + v)] = Type::store(v < shape.vocab ? values[static_cast<size_t>(r * shape.ld + v)] : kNaN);
    targets.push_back(static_cast<int32_t>((r * 7919) % shape.vocab));
    dlogp.push_back(static_cast<typename Type::Output>(0.5 - 0.25 * static_cast<double>(r % 5)));
    dentropy.push_back(static_cast<typename Type::Output>(0.125 * static_cast<double>(r % 3)));
  }
  Buffer<typename Type::Logit> z(b, logits);
  Buffer<int32_t> y(b, targets);
  Buffer<typename Type::Output> logp(b, targets.size()), entropy(b, targets.size()), g(b, dlogp), e(b, dentropy);
  int64_t bad = 99;
  ASSERT_EQ(
      b.token_logprob(z.get(), Type::kType, shape.rows, shape.vocab, shape.ld, y.get(), nullptr, tau, logp.get(), entropy.get(), &bad),
      MGRPO_OK);
  EXPECT_EQ(bad, -1);
  ASSERT_EQ(b.token_logprob_bwd(z.get(), Type::kType, shape.rows, shape.vocab, shape.ld, y.get(), nullptr, tau, g.get(), e.get(), &bad),
            MGRPO_OK);
  const auto got_logp = logp.values(), got_entropy = entropy.values();
  const auto dz = z.values();
  for (size_t r = 0; r < targets.size(); r++) {
    std::vector<double> row;
    for (int64_t v = 0; v < shape.vocab; v++) row.push_back(Type::load(logits[r * static_cast<size_t>(shape.ld) + static_cast<size_t>(v)]));
    const Row want = oracle(row, targets[r], tau, static_cast<double>(dlogp[r]), static_cast<double>(dentropy[r]));
    ASSERT_NEAR(got_logp[r], want.logp, Type::kValue * std::max(1.0, std::abs(want.logp))) << r;
    ASSERT_NEAR(got_entropy[r], want.entropy, Type::kValue * std::max(1.0, want.entropy)) << r;
    for (int64_t v = 0; v < shape.ld; v++) {
      const double got = Type::load(dz[r * static_cast<size_t>(shape.ld) + static_cast<size_t>(v)]);
      if (v >= shape.vocab) {
        ASSERT_TRUE(std::isnan(got)) << "padding was written at row " << r << " column " << v;
      } else {
        ASSERT_NEAR(got, want.dz[static_cast<size_t>(v)], Type::kGradient / tau) << r << " " << v;
      }
    }
  }
}

class LogProb : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(LogProb);

// One column; less than a vector; odd remainders and strides; several blocks of the sum; a real vocabulary.
// Then rows shared by several blocks of a GPU, and more rows than the emulated GPU has clusters.
const Shape kShapes[] = {{1, 1, 1}, {3, 5, 5}, {7, 17, 19}, {5, 255, 256}, {4, 1031, 1040}, {2, 49152, 49152}, {9, 60001, 60004}};

TEST_P(LogProb, MatchesTheDefinitionInFloat32) {
  for (const Shape &s : kShapes) compare_with_oracle<InFloat32>(backend(), s, 0.7, 3);
}
TEST_P(LogProb, MatchesTheDefinitionInFloat64) {
  for (const Shape &s : kShapes) compare_with_oracle<InFloat64>(backend(), s, 1.3, 5);
}
TEST_P(LogProb, MatchesTheDefinitionInBFloat16) {
  for (const Shape &s : kShapes) compare_with_oracle<InBFloat16>(backend(), s, 1, 4);
}
TEST_P(LogProb, RowsAsLongAsSharedMemoryAllows) { compare_with_oracle<InFloat32>(backend(), {2, 262147, 262148}, 1, 3); }
TEST_P(LogProb, ExtremeTemperatures) {
  compare_with_oracle<InFloat32>(backend(), {6, 300, 300}, 0.01, 3);
  compare_with_oracle<InFloat32>(backend(), {6, 300, 300}, 100, 30);
}
TEST_P(LogProb, RejectsTemperaturesWithoutAFiniteInverse) {
  Buffer<float> z(backend(), std::vector<float>(4));
  Buffer<int32_t> y(backend(), std::vector<int32_t>(1));
  Buffer<float> logp(backend(), size_t{1}), entropy(backend(), size_t{1});
  for (double tau : {0.0, -1.0, 1e-39, 0.99e-6, std::numeric_limits<double>::infinity()}) {
    int64_t bad;
    EXPECT_EQ(backend().token_logprob(z.get(), MGRPO_FLOAT32, 1, 4, 4, y.get(), nullptr, tau, logp.get(), entropy.get(), &bad),
              MGRPO_INVALID_ARGUMENT)
        << tau;
  }
}

// A call in float32 with vectors as inputs and outputs.
struct Call {
  int32_t status;
  int64_t bad;
  std::vector<float> logp, entropy, dz;
};

Call call(const Backend &b, const std::vector<float> &logits, int64_t vocab, const std::vector<int32_t> &targets,
          const std::vector<uint8_t> &mask = {}) {
  const auto rows = static_cast<int64_t>(targets.size());
  Buffer<float> z(b, logits), logp(b, targets.size()), entropy(b, targets.size()), ones(b, std::vector<float>(targets.size(), 1));
  Buffer<int32_t> y(b, targets);
  Buffer<uint8_t> u(b, mask);
  const uint8_t *m = mask.empty() ? nullptr : u.get();
  Call c;
  c.status = b.token_logprob(z.get(), MGRPO_FLOAT32, rows, vocab, vocab, y.get(), m, 1, logp.get(), entropy.get(), &c.bad);
  int64_t ignored;
  b.token_logprob_bwd(z.get(), MGRPO_FLOAT32, rows, vocab, vocab, y.get(), m, 1, ones.get(), ones.get(), &ignored);
  c.logp = logp.values();
  c.entropy = entropy.values();
  c.dz = z.values();
  return c;
}

const float nan32 = std::numeric_limits<float>::quiet_NaN(), inf32 = std::numeric_limits<float>::infinity();

TEST_P(LogProb, MaskedRowsAreExactlyZeroWhateverTheyHold) {
  const Call c = call(backend(), {nan32, inf32, 1, 2, -inf32, -inf32}, 2, {-3, 1, 900}, {0, 1, 0});
  EXPECT_EQ(c.status, MGRPO_OK);
  EXPECT_EQ(c.bad, -1);
  for (size_t r : {0u, 2u}) {
    EXPECT_EQ(c.logp[r], 0);
    EXPECT_EQ(c.entropy[r], 0);
    EXPECT_EQ(c.dz[2 * r], 0);
    EXPECT_EQ(c.dz[2 * r + 1], 0);
  }
}

TEST_P(LogProb, MinusInfinityIsProbabilityZero) {
  const Call c = call(backend(), {0, -inf32, 0, -inf32, 1, -inf32}, 3, {0, 0});
  EXPECT_EQ(c.status, MGRPO_OK);
  EXPECT_NEAR(c.logp[0], -std::log(2.0), 1e-6);
  EXPECT_EQ(c.dz[1], 0);
  EXPECT_EQ(c.logp[1], -inf32);  // the target itself; the loss refuses it
  EXPECT_EQ(c.entropy[1], 0);
}

TEST_P(LogProb, NaNAndInfinityNameTheFirstRow) {
  for (const float bad : {nan32, inf32}) {
    std::vector<float> logits(4 * 40, 0.5f);
    logits[2 * 40 + 37] = bad;
    logits[3 * 40] = bad;
    const Call c = call(backend(), logits, 40, {0, 0, 0, 0});
    EXPECT_EQ(c.status, MGRPO_NON_FINITE);
    EXPECT_EQ(c.bad, 2);
    EXPECT_NEAR(c.logp[1], -std::log(40.0), 1e-5);
    EXPECT_TRUE(std::isnan(c.logp[2]) && std::isnan(c.entropy[2]));
  }
}

TEST_P(LogProb, RejectsTargetsOutsideTheVocabulary) {
  const Call c = call(backend(), {0, 0, 0, 0}, 2, {1, 2});
  EXPECT_NE(c.status, MGRPO_OK);
  EXPECT_EQ(c.bad, 1);
}

TEST_P(LogProb, RejectsImpossibleShapes) {
  int64_t bad;
  float x[4] = {};
  EXPECT_EQ(backend().token_logprob(x, MGRPO_FLOAT32, 1, 5, 4, nullptr, nullptr, 1, x, x, &bad), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(backend().token_logprob(x, MGRPO_FLOAT32, 0, 4, 4, nullptr, nullptr, 0, x, x, &bad), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(backend().token_logprob(nullptr, 3, 1, 4, 4, nullptr, nullptr, 1, x, x, &bad), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(backend().token_logprob(nullptr, MGRPO_FLOAT32, 0, 4, 4, nullptr, nullptr, 1, nullptr, nullptr, &bad), MGRPO_OK);
}

TEST_P(LogProb, MoreRowsThanAGridDimension) {
  MGRPO_SKIP_EMULATED();
  const size_t rows = 70001, vocab = 3;
  std::vector<float> logits;
  std::vector<int32_t> targets;
  for (size_t r = 0; r < rows; r++) {
    for (size_t v = 0; v < vocab; v++) logits.push_back(static_cast<float>((r + v * v) % 5));
    targets.push_back(static_cast<int32_t>(r % vocab));
  }
  const Call c = call(backend(), logits, vocab, targets);
  ASSERT_EQ(c.status, MGRPO_OK);
  for (size_t r : {size_t{0}, size_t{65535}, size_t{65536}, rows - 1}) {
    const Row want = oracle({logits[r * 3], logits[r * 3 + 1], logits[r * 3 + 2]}, targets[r], 1, 1, 1);
    EXPECT_NEAR(c.logp[r], want.logp, 1e-6) << r;
    for (size_t v = 0; v < vocab; v++) EXPECT_NEAR(c.dz[r * 3 + v], want.dz[v], 1e-6) << r;
  }
}

// 70,000 rows with a stride of 32,768, so the last row begins after 2^31 elements. Only a few columns are valid. Untouched pages of the
// allocation take no memory on a CPU, so the test stays small.
TEST(LogProbIndex, BeyondTwoToThe31Elements) {
  const int64_t rows = 70000, ld = 32768, vocab = 4;
  auto *logits = static_cast<uint16_t *>(std::calloc(static_cast<size_t>(rows * ld), sizeof(uint16_t)));
  if (!logits) GTEST_SKIP() << "no address space for " << rows * ld * 2 << " bytes";
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 1);
  std::vector<uint8_t> mask(static_cast<size_t>(rows), 0);
  std::vector<float> logp(static_cast<size_t>(rows), -77), entropy = logp;
  const int64_t last = rows - 1;
  mask[static_cast<size_t>(last)] = 1;
  logits[last * ld + 1] = to_bf16(2);
  int64_t bad;
  ASSERT_EQ(
      mgrpo_token_logprob_cpu(logits, MGRPO_BFLOAT16, rows, vocab, ld, targets.data(), mask.data(), 1, logp.data(), entropy.data(), &bad),
      MGRPO_OK);
  std::free(logits);
  EXPECT_NEAR(logp.back(), oracle({0, 2, 0, 0}, 1, 1, 1, 0).logp, 1e-6);
  EXPECT_EQ(logp.front(), 0);
}

TEST_P(LogProb, ARowsBitsDoNotDependOnTheOthers) {
  const size_t rows = 9, vocab = 777;
  const auto logits = cast<float>(normals(rows * vocab, 5, 4));
  std::vector<int32_t> targets(rows, 11);
  const Call together = call(backend(), logits, vocab, targets);
  for (size_t r = 0; r < rows; r++) {
    const std::vector<float> row(logits.begin() + static_cast<int64_t>(r * vocab), logits.begin() + static_cast<int64_t>((r + 1) * vocab));
    const Call alone = call(backend(), row, vocab, {11});
    EXPECT_EQ(alone.logp[0], together.logp[r]);
    EXPECT_EQ(alone.entropy[0], together.entropy[r]);
    EXPECT_EQ(std::memcmp(alone.dz.data(), together.dz.data() + r * vocab, vocab * sizeof(float)), 0);
  }
}

// One block of a GPU processes several rows; here it processes all kinds of rows.
TEST_P(LogProb, SomeRowsAreNotDifferentiable) {
  const size_t rows = 45, vocab = 777;
  auto logits = cast<float>(normals(rows * vocab, 7, 4));
  std::vector<int32_t> targets(rows, 12);
  std::vector<uint8_t> mask;
  for (size_t r = 0; r < rows; r++) mask.push_back(r % 3 != 1);
  logits[9 * vocab + 700] = nan32;
  std::fill_n(logits.begin() + 17 * vocab, vocab, -inf32);
  const bool on_cpu = std::string(backend().name) == cpu().name;  // the CPU refuses the whole call if a target is not a column
  if (!on_cpu) targets[24] = vocab;
  const Call together = call(backend(), logits, vocab, targets, mask);
  for (size_t r = 0; r < rows; r++) {
    const auto first = logits.begin() + static_cast<int64_t>(r * vocab);
    const Call alone = call(backend(), {first, first + vocab}, vocab, {targets[r]}, {mask[r]});
    const bool is_bad = r == 9 || r == 17 || (r == 24 && !on_cpu);
    for (size_t v = 0; v < vocab; v++) {
      const float got = together.dz[r * vocab + v];
      if (is_bad)
        ASSERT_TRUE(std::isnan(got)) << r << " " << v;
      else
        ASSERT_EQ(got, mask[r] ? alone.dz[v] : 0) << r << " " << v;
    }
  }
}

TEST(LogProbThreads, SameBits) {
  const size_t rows = 64, vocab = 5000;
  const auto logits = cast<float>(normals(rows * vocab, 6, 4));
  const std::vector<int32_t> targets(rows, 4999);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Call one = call(cpu(), logits, vocab, targets);
  omp_set_num_threads(3);
  const Call three = call(cpu(), logits, vocab, targets);
  omp_set_num_threads(before);
  EXPECT_EQ(one.logp, three.logp);
  EXPECT_EQ(one.entropy, three.entropy);
  EXPECT_EQ(one.dz, three.dz);
}

}  // namespace
