#include "mgrpo/linear.h"

#include "layer_testing.h"
#include "mgrpo/isa.h"
#include "mgrpo/matmul.h"
#include "mgrpo/moe.h"

using namespace layer_testing;

namespace {

// Weights in one of two formats, and their values as float32.
struct Weights {
  Floats values;
  std::vector<uint16_t> half;  // empty for float32

  const void *at(int64_t element) const {
    return half.empty() ? static_cast<const void *>(values.data() + element) : half.data() + element;
  }
};

// Weights in float32, in bfloat16, and in bfloat16 with x rounded too, if the processor has instructions for that.
enum class Kind { fp32, bf16, rounded };

bool in_tiles() { return std::string(mgrpo_cpu_isa()) == "amx"; }
bool rounds_x() { return mgrpo_matmul_cpu({}, {}, nullptr, 0, 0, 0, 0, 0, 1) == MGRPO_OK && !in_tiles(); }

// Rounding error of a sum of k products, in units of sum |x w|. A lane adds at most k / 4 products. Tiles round x to 2^-17 and add k / 2
// products.
double dot_tolerance(int64_t k, Kind kind) {
  if (kind != Kind::fp32 && in_tiles()) return std::ldexp(1, -17) + (static_cast<double>(k) / 2 + 8) * kEpsilon;
  return (static_cast<double>(k) / 4 + 8) * kEpsilon;
}

class Linear : public testing::TestWithParam<Kind> {
 protected:
  static Weights weights(int64_t n, unsigned seed) {
    Weights w{normal(n, seed), {}};
    if (GetParam() == Kind::fp32) return w;
    for (float &v : w.values) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      w.half.push_back(static_cast<uint16_t>(bits >> 16));
      bits &= 0xFFFF0000;
      std::memcpy(&v, &bits, sizeof bits);
    }
    return w;
  }

  static int32_t run(const float *x, const void *w, const float *b, float *y, int64_t rows, int64_t k, int64_t n) {
    if (GetParam() != Kind::fp32)
      return mgrpo_linear_bf16_cpu(x, static_cast<const uint16_t *>(w), b, y, rows, k, n, GetParam() == Kind::rounded);
    return mgrpo_linear_cpu(x, static_cast<const float *>(w), b, y, rows, k, n);
  }

  static void expect_match(int64_t rows, int64_t k, int64_t n, bool bias) {
    SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
    const Floats x = normal(rows * k, 1), b = normal(n, 3);
    const Weights w = weights(n * k, 2);
    const Floats seen = GetParam() == Kind::rounded && rounds_x() ? rounded_to_bf16(x) : x;
    Guarded y(rows * n);
    ASSERT_EQ(run(x.data(), w.at(0), bias ? b.data() : nullptr, y.begin(), rows, k, n), MGRPO_OK);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < n; j++) {
        double want = bias ? b[j] : 0, magnitude = std::fabs(want);
        for (int64_t i = 0; i < k; i++) {
          const double term = static_cast<double>(seen[r * k + i]) * w.values[j * k + i];
          want += term;
          magnitude += std::fabs(term);
        }
        ASSERT_NEAR(y[r * n + j], want, dot_tolerance(k, GetParam()) * magnitude) << "row " << r << ", output " << j;
      }
  }
};
INSTANTIATE_TEST_SUITE_P(, Linear, testing::Values(Kind::fp32, Kind::bf16, Kind::rounded), [](const auto &info) {
  return info.param == Kind::fp32 ? "fp32" : info.param == Kind::bf16 ? "bf16" : "rounded";
});

TEST_P(Linear, MatchesFloat64) {
  for (int64_t rows : {1, 2, 3, 4, 5, 7, 16, 19, 33})
    for (int64_t k : {1, 7, 8, 9, 24, 63, 64, 100})
      for (int64_t n : {1, 2, 3, 4, 5, 8, 11, 96}) expect_match(rows, k, n, (rows + k + n) % 2 == 0);
  expect_match(300, 576, 50, true);
  expect_match(3, 1536, 577, false);
  expect_match(1, 6001, 130, false);
  expect_match(41, 1037, 133, true);
}

// Values are rounded to the nearest bfloat16, and ties to even. Denormal numbers become 0.
TEST(LinearRounded, ToNearestEven) {
  if (!rounds_x()) GTEST_SKIP() << "nothing is rounded";
  const Floats x{1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1.8p-8f, -1 - 0x1p-8f, 0x1p-127f, 3.4e38f, 0x1p-126f},
      want{1, 1 + 0x4p-8f, 1 + 0x2p-8f, -1, 0, INFINITY, 0x1p-126f};
  const uint16_t one = conformance::to_bf16(1);
  Guarded y(static_cast<int64_t>(x.size()));
  ASSERT_EQ(mgrpo_linear_bf16_cpu(x.data(), &one, nullptr, y.begin(), static_cast<int64_t>(x.size()), 1, 1, 1), MGRPO_OK);
  EXPECT_EQ(y.values(), want);
}

TEST(LinearRounded, NoMemoryForARow) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitiser ends the process";
#endif
  if (!rounds_x() && !in_tiles()) GTEST_SKIP() << "no scratch is needed";
  const float x = 0;
  const uint16_t w = 0;
  const int32_t first[] = {0, 1};
  Guarded y(1);
  constexpr int64_t kAddresses = int64_t{1} << 47;  // bytes that a process has
  EXPECT_EQ(mgrpo_linear_bf16_cpu(&x, &w, nullptr, y.begin(), 1, kAddresses / 2, 1, 1), MGRPO_OUT_OF_MEMORY);
  EXPECT_EQ(mgrpo_moe_linear_bf16_cpu(&x, &w, first, y.begin(), 1, 1, kAddresses / 2, 1, 1), MGRPO_OUT_OF_MEMORY);
}

TEST_P(Linear, RowDoesNotDependOnItsCompany) {
  for (auto [k, n] : {std::pair<int64_t, int64_t>{64, 96}, {100, 37}, {577, 130}, {1536, 9}}) {
    const int64_t rows = 200;
    const Floats x = normal(rows * k, 4), b = normal(n, 6);
    const Weights w = weights(n * k, 5);
    Guarded all(rows * n);
    with_threads(2, [&] { run(x.data(), w.at(0), b.data(), all.begin(), rows, k, n); });
    for (int64_t count : {1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 64})
      for (int64_t first : {0, 1, 13, 136}) {
        Guarded some(count * n);
        with_threads(1, [&] { run(x.data() + first * k, w.at(0), b.data(), some.begin(), count, k, n); });
        ASSERT_TRUE(same_bits(some.begin(), all.begin() + first * n, count * n)) << count << " rows from " << first << ", k = " << k;
      }
  }
}

TEST_P(Linear, OutputDoesNotDependOnItsCompany) {
  for (auto [k, n] : {std::pair<int64_t, int64_t>{77, 61}, {1203, 301}}) {
    const int64_t rows = 5;
    const Floats x = normal(rows * k, 7);
    const Weights w = weights(n * k, 8);
    Guarded all(rows * n);
    run(x.data(), w.at(0), nullptr, all.begin(), rows, k, n);
    for (int64_t first : {0, 1, 2, 3, 58, 60})
      for (int64_t count = 1; count <= n - first; count += 5) {
        Guarded some(rows * count);
        run(x.data(), w.at(first * k), nullptr, some.begin(), rows, k, count);
        for (int64_t r = 0; r < rows; r++) ASSERT_TRUE(same_bits(some.begin() + r * count, all.begin() + r * n + first, count));
      }
  }
}

TEST_P(Linear, ThreadsDoNotChangeBits) {
  const int64_t k = 576;
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{16, 3001}, {1501, 33}}) {
    const Floats x = normal(rows * k, 9);
    const Weights w = weights(n * k, 10);
    Guarded one(rows * n);
    with_threads(1, [&] { run(x.data(), w.at(0), nullptr, one.begin(), rows, k, n); });
    for (int threads : {2, 3, 7}) {
      Guarded many(rows * n);
      with_threads(threads, [&] { run(x.data(), w.at(0), nullptr, many.begin(), rows, k, n); });
      ASSERT_TRUE(same_bits(one.begin(), many.begin(), rows * n)) << threads << " threads";
    }
  }
}

TEST_P(Linear, EmptyAndInvalid) {
  float value = 1;
  EXPECT_EQ(run(nullptr, nullptr, nullptr, nullptr, 0, 8, 8), MGRPO_OK);
  EXPECT_EQ(run(nullptr, nullptr, nullptr, nullptr, 8, 8, 0), MGRPO_OK);
  EXPECT_EQ(run(&value, &value, nullptr, &value, -1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, &value, nullptr, &value, 1, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, &value, nullptr, &value, 1, 1, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, &value, nullptr, &value, int64_t{1} << 40, int64_t{1} << 40, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, &value, nullptr, nullptr, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(nullptr, &value, nullptr, &value, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  const Floats bias{2, -3};
  Guarded y(4);
  EXPECT_EQ(run(nullptr, nullptr, bias.data(), y.begin(), 2, 0, 2), MGRPO_OK);
  EXPECT_EQ(y.values(), (Floats{2, -3, 2, -3}));
}

TEST_P(Linear, NonFiniteInputsStayInTheirRow) {
  const int64_t k = 20, n = 9;
  Floats x = normal(5 * k, 11);
  const Weights w = weights(n * k, 12);
  Guarded clean(5 * n), dirty(5 * n);
  run(x.data(), w.at(0), nullptr, clean.begin(), 5, k, n);
  x[2 * k + 19] = NAN;
  run(x.data(), w.at(0), nullptr, dirty.begin(), 5, k, n);
  for (int64_t r = 0; r < 5; r++)
    for (int64_t j = 0; j < n; j++) {
      if (r == 2) {
        EXPECT_TRUE(std::isnan(dirty[r * n + j]));
      } else {
        EXPECT_EQ(dirty[r * n + j], clean[r * n + j]);
      }
    }
}

}  // namespace
