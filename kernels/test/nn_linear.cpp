#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

// Rounding of a sum of k products, in units of sum |x w|: lanes are chains of k / 4 steps at most.
double dot_tolerance(int64_t k) { return (static_cast<double>(k) / 4 + 8) * kEpsilon; }

void expect_linear_matches(int64_t rows, int64_t k, int64_t n, bool bias) {
  SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
  const Floats x = normal(rows * k, 1), w = normal(n * k, 2), b = normal(n, 3);
  Guarded y(rows * n);
  ASSERT_EQ(mgrpo_linear_cpu(x.data(), w.data(), bias ? b.data() : nullptr, y.begin(), rows, k, n), MGRPO_OK);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j++) {
      double want = bias ? b[j] : 0, magnitude = std::fabs(want);
      for (int64_t i = 0; i < k; i++) {
        const double term = static_cast<double>(x[r * k + i]) * w[j * k + i];
        want += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(y[r * n + j], want, dot_tolerance(k) * magnitude) << "row " << r << ", output " << j;
    }
}

TEST(Linear, MatchesFloat64) {
  for (int64_t rows : {1, 2, 3, 4, 5, 7, 16, 33})
    for (int64_t k : {1, 7, 8, 9, 24, 64, 100})
      for (int64_t n : {1, 2, 3, 4, 5, 8, 11, 96}) expect_linear_matches(rows, k, n, (rows + k + n) % 2 == 0);
  expect_linear_matches(300, 576, 50, true);
  expect_linear_matches(3, 1536, 577, false);
}

TEST(Linear, RowDoesNotDependOnItsCompany) {
  for (auto [k, n] : {std::pair<int64_t, int64_t>{64, 96}, {100, 37}, {577, 130}, {1536, 9}}) {
    const int64_t rows = 200;
    const Floats x = normal(rows * k, 4), w = normal(n * k, 5), b = normal(n, 6);
    Guarded all(rows * n);
    with_threads(2, [&] { mgrpo_linear_cpu(x.data(), w.data(), b.data(), all.begin(), rows, k, n); });
    for (int64_t count : {1, 2, 3, 4, 5, 6, 7, 16, 64})
      for (int64_t first : {0, 1, 13, 136}) {
        Guarded some(count * n);
        with_threads(1, [&] {
          mgrpo_linear_cpu(x.data() + first * k, w.data(), b.data(), some.begin(), count, k, n);
        });
        ASSERT_TRUE(same_bits(some.begin(), all.begin() + first * n, count * n))
            << count << " rows from " << first << ", k = " << k;
      }
  }
}

TEST(Linear, OutputDoesNotDependOnItsCompany) {
  const int64_t rows = 5, k = 77, n = 61;
  const Floats x = normal(rows * k, 7), w = normal(n * k, 8);
  Guarded all(rows * n);
  mgrpo_linear_cpu(x.data(), w.data(), nullptr, all.begin(), rows, k, n);
  for (int64_t first : {0, 1, 2, 3, 58, 60})
    for (int64_t count = 1; count <= n - first; count += 5) {
      Guarded some(rows * count);
      mgrpo_linear_cpu(x.data(), w.data() + first * k, nullptr, some.begin(), rows, k, count);
      for (int64_t r = 0; r < rows; r++)
        ASSERT_TRUE(same_bits(some.begin() + r * count, all.begin() + r * n + first, count));
    }
}

TEST(Linear, ThreadsDoNotChangeBits) {
  const int64_t k = 576;
  for (auto [rows, n] : {std::pair<int64_t, int64_t>{16, 3001}, {1501, 33}}) {
    const Floats x = normal(rows * k, 9), w = normal(n * k, 10);
    Guarded one(rows * n);
    with_threads(1, [&] { mgrpo_linear_cpu(x.data(), w.data(), nullptr, one.begin(), rows, k, n); });
    for (int threads : {2, 3, 7}) {
      Guarded many(rows * n);
      with_threads(threads, [&] { mgrpo_linear_cpu(x.data(), w.data(), nullptr, many.begin(), rows, k, n); });
      ASSERT_TRUE(same_bits(one.begin(), many.begin(), rows * n)) << threads << " threads";
    }
  }
}

TEST(Linear, EmptyAndInvalid) {
  float value = 1;
  EXPECT_EQ(mgrpo_linear_cpu(nullptr, nullptr, nullptr, nullptr, 0, 8, 8), MGRPO_OK);
  EXPECT_EQ(mgrpo_linear_cpu(nullptr, nullptr, nullptr, nullptr, 8, 8, 0), MGRPO_OK);
  EXPECT_EQ(mgrpo_linear_cpu(&value, &value, nullptr, &value, -1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_cpu(&value, &value, nullptr, &value, 1, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_cpu(&value, &value, nullptr, &value, 1, 1, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_cpu(&value, &value, nullptr, &value, int64_t{1} << 40, int64_t{1} << 40, 1),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_cpu(&value, &value, nullptr, nullptr, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_cpu(nullptr, &value, nullptr, &value, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  const Floats bias{2, -3};
  Guarded y(4);
  EXPECT_EQ(mgrpo_linear_cpu(nullptr, nullptr, bias.data(), y.begin(), 2, 0, 2), MGRPO_OK);
  EXPECT_EQ(y.values(), (Floats{2, -3, 2, -3}));
}

TEST(Linear, NonFiniteInputsStayInTheirRow) {
  const int64_t k = 20, n = 9;
  Floats x = normal(5 * k, 11);
  const Floats w = normal(n * k, 12);
  Guarded clean(5 * n), dirty(5 * n);
  mgrpo_linear_cpu(x.data(), w.data(), nullptr, clean.begin(), 5, k, n);
  x[2 * k + 19] = NAN;
  mgrpo_linear_cpu(x.data(), w.data(), nullptr, dirty.begin(), 5, k, n);
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
