#include "mgrpo/matmul.h"

#include <cmath>

#include "layer_testing.h"
#include "mgrpo/isa.h"

using namespace layer_testing;

namespace {

bool supported() { return mgrpo_matmul_cpu({}, {}, nullptr, 0, 0, 0, 0, 0, 0) == MGRPO_OK; }

// The parameter: whether factors are rounded to bfloat16.
class Matmul : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!supported()) GTEST_SKIP() << "no avx512_bf16";
  }
  Floats product(struct Matrix &a, struct Matrix &b);
  void expect_match(int64_t m, int64_t k, int64_t n, bool a_by_columns, bool b_by_columns, bool add);
};
INSTANTIATE_TEST_SUITE_P(Factors, Matmul, testing::Bool(), [](const auto &info) { return info.param ? "rounded" : "float32"; });

// Seeded values [rows, columns], stored by rows or by columns, with `gap` NaN after each line.
struct Matrix {
  int64_t rows, columns, line;
  bool by_columns;
  Floats memory;

  Matrix(int64_t rows, int64_t columns, bool by_columns, unsigned seed, int64_t gap = 0)
      : rows(rows),
        columns(columns),
        line((by_columns ? rows : columns) + gap),
        by_columns(by_columns),
        memory(static_cast<size_t>((by_columns ? columns : rows) * line + 1), NAN) {
    const Floats values = normal(rows * columns, seed);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) at(i, j) = values[i * columns + j];
  }
  // The values begin one float into the memory, so vectors are not aligned.
  float &at(int64_t i, int64_t j) { return memory[1 + (by_columns ? j * line + i : i * line + j)]; }
  double factor(int64_t i, int64_t j, bool round) { return round ? conformance::from_bf16(conformance::to_bf16(at(i, j))) : at(i, j); }
  mgrpo_matrix from(int64_t i, int64_t j) { return by_columns ? mgrpo_matrix{&at(i, j), 1, line} : mgrpo_matrix{&at(i, j), line, 1}; }
  mgrpo_matrix view() { return rows && columns ? from(0, 0) : mgrpo_matrix{}; }
};

Floats Matmul::product(Matrix &a, Matrix &b) {
  Guarded y(a.rows * b.columns);
  EXPECT_EQ(mgrpo_matmul_cpu(a.view(), b.view(), y.begin(), b.columns, a.rows, a.columns, b.columns, 0, GetParam()), MGRPO_OK);
  return y.values();
}

void Matmul::expect_match(int64_t m, int64_t k, int64_t n, bool a_by_columns, bool b_by_columns, bool add) {
  SCOPED_TRACE(testing::Message() << m << " x " << k << " x " << n << (a_by_columns ? " T" : " N") << (b_by_columns ? "T" : "N"));
  Matrix a(m, k, a_by_columns, 1, 3), b(k, n, b_by_columns, 2, 5);
  const int64_t y_row = n + 2;
  const Floats before = normal(m * y_row, 3);
  Guarded y(before);
  ASSERT_EQ(mgrpo_matmul_cpu(a.view(), b.view(), y.begin(), y_row, m, k, n, add, GetParam()), MGRPO_OK);
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      double want = add ? before[i * y_row + j] : 0, magnitude = std::fabs(want);
      for (int64_t p = 0; p < k; p++) {
        const double term = a.factor(i, p, GetParam()) * b.factor(p, j, GetParam());
        want += term;
        magnitude += std::fabs(term);
      }
      // A chain of k sums. Each sum may truncate instead of rounding.
      ASSERT_NEAR(y[i * y_row + j], want, 2 * static_cast<double>(k + 1) * kEpsilon * magnitude) << "row " << i << ", column " << j;
    }
    ASSERT_TRUE(same_bits(y.begin() + i * y_row + n, &before[i * y_row + n], 2)) << "behind row " << i;
  }
}

TEST_P(Matmul, MatchesFloat64) {
  int turn = 0;
  for (int64_t m : {1, 2, 13, 14, 15, 29})
    for (int64_t k : {1, 2, 3, 31, 32, 33, 64, 95})
      for (int64_t n : {1, 2, 15, 16, 17, 31, 32, 33, 50}) {
        expect_match(m, k, n, turn & 1, turn & 2, turn & 4);
        turn += 3;
      }
  for (int orders = 0; orders < 4; orders++) {  // several tiles in each direction, and several depths
    expect_match(350, 97, 390, orders & 1, orders & 2, false);
    expect_match(31, 1153, 67, orders & 1, orders & 2, true);
  }
}

TEST_P(Matmul, ElementDoesNotDependOnItsCompany) {
  for (bool transposed : {false, true}) {
    Matrix a(731, 500, transposed, 4), b(500, 410, !transposed, 5);
    Floats all;
    with_threads(2, [&] { all = product(a, b); });
    for (int threads : {1, 3, 7}) {
      with_threads(threads, [&] { EXPECT_TRUE(same_bits(product(a, b), all)) << threads << " threads"; });
    }
    for (int64_t i : {0, 13, 14, 700})
      for (int64_t j : {0, 15, 33, 400})
        for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {3, 10}, {31, 9}}) {
          Guarded some(m * n);
          ASSERT_EQ(mgrpo_matmul_cpu(a.from(i, 0), b.from(0, j), some.begin(), n, m, 500, n, 0, GetParam()), MGRPO_OK);
          for (int64_t r = 0; r < m; r++)
            ASSERT_TRUE(same_bits(some.begin() + r * n, &all[(i + r) * 410 + j], n)) << m << " x " << n << " from " << i << ", " << j;
        }
  }
}

TEST_P(Matmul, RoundsToTheNearestEven) {
  const Floats numbers{1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 0x1p-8f, 3.3895e38f},
      want{1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1, 0x1.FEp127f};
  const float one = 1;
  Guarded y(5);
  ASSERT_EQ(mgrpo_matmul_cpu({numbers.data(), 1, 5}, {&one, 1, 1}, y.begin(), 1, 5, 1, 1, 0, GetParam()), MGRPO_OK);
  EXPECT_EQ(y.values(), GetParam() ? want : numbers);
}

// 1 added to 2^24 is lost. A sum of blocks loses the ones of the block of 2^24 only.
TEST_P(Matmul, LongSumsAreSumsOfBlocks) {
  const int64_t k = 4000;
  Floats numbers(k, 1), ones(k, 1);
  numbers[0] = 0x1p24f;
  Guarded y(1);
  ASSERT_EQ(mgrpo_matmul_cpu({numbers.data(), k, 1}, {ones.data(), 1, 1}, y.begin(), 1, 1, k, 1, 0, GetParam()), MGRPO_OK);
  EXPECT_GE(y.values()[0], 0x1p24f + static_cast<float>(k - 400));
}

TEST_P(Matmul, NonFiniteFactorsStayInTheirRowAndColumn) {
  for (float bad : {NAN, INFINITY, -INFINITY, 3.4e38f}) {
    if (bad == 3.4e38f && !GetParam()) continue;  // it rounds to infinity
    Matrix a(40, 70, false, 6), b(70, 45, true, 7);
    const Floats clean = product(a, b);
    a.at(17, 69) = bad;
    b.at(3, 41) = bad;
    const Floats dirty = product(a, b);
    for (int64_t i = 0; i < 40; i++)
      for (int64_t j = 0; j < 45; j++) {
        const float got = dirty[i * 45 + j];
        if (i == 17 || j == 41)
          EXPECT_FALSE(std::isfinite(got)) << i << ", " << j << ": " << got;
        else
          EXPECT_EQ(got, clean[i * 45 + j]);
      }
  }
}

TEST_P(Matmul, EmptyAndInvalid) {
  float value = 1;
  const mgrpo_matrix one{&value, 1, 1}, none{};
  const auto run = [&](mgrpo_matrix a, mgrpo_matrix b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, int32_t add = 0) {
    return mgrpo_matmul_cpu(a, b, y, y_row, m, k, n, add, GetParam());
  };
  EXPECT_EQ(run(none, none, nullptr, 0, 0, 8, 8), MGRPO_INVALID_ARGUMENT) << "b is null";
  EXPECT_EQ(run(none, one, nullptr, 0, 0, 1, 1), MGRPO_OK);
  EXPECT_EQ(run(one, none, nullptr, 0, 1, 1, 0), MGRPO_OK);
  for (int at = 0; at < 3; at++) {
    EXPECT_EQ(run(one, one, &value, 1, at == 0 ? -1 : 1, at == 1 ? -1 : 1, at == 2 ? -1 : 1), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(run(one, one, &value, 1, at == 0 ? 1 : int64_t{1} << 40, at == 1 ? 1 : int64_t{1} << 40, at == 2 ? 1 : int64_t{1} << 40),
              MGRPO_INVALID_ARGUMENT);
  }
  EXPECT_EQ(run(none, one, &value, 1, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(one, one, nullptr, 1, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(one, one, &value, 0, 1, 1, 1), MGRPO_INVALID_ARGUMENT) << "rows of y overlap";
  EXPECT_EQ(run({&value, 2, 2}, one, &value, 1, 1, 1, 1), MGRPO_INVALID_ARGUMENT) << "neither stride is 1";
  EXPECT_EQ(run({&value, 1, 1}, one, &value, 1, 2, 2, 1), MGRPO_INVALID_ARGUMENT) << "rows of a overlap";
  Guarded y(Floats{5, 5, 5, 5});
  EXPECT_EQ(run(none, none, y.begin(), 2, 2, 0, 2, 1), MGRPO_OK);
  EXPECT_EQ(y.values(), (Floats{5, 5, 5, 5}));
  EXPECT_EQ(run(none, none, y.begin(), 2, 2, 0, 2), MGRPO_OK);
  EXPECT_EQ(y.values(), (Floats{0, 0, 0, 0}));
}

// A large vocabulary: offsets into y exceed 32 bits.
TEST_P(Matmul, MoreThan2To31Elements) {
  const int64_t m = 3, k = 2, n = 11;
  const int64_t y_row = (int64_t{1} << 31) / 2 + 3;
  std::unique_ptr<float, decltype(&std::free)> y(static_cast<float *>(std::calloc(static_cast<size_t>(y_row * 2 + n), sizeof(float))),
                                                 &std::free);
  ASSERT_TRUE(y);
  Matrix a(m, k, false, 8), b(k, n, false, 9);
  const Floats want = product(a, b);
  ASSERT_EQ(mgrpo_matmul_cpu(a.view(), b.view(), y.get(), y_row, m, k, n, 0, GetParam()), MGRPO_OK);
  for (int64_t i = 0; i < m; i++) EXPECT_TRUE(same_bits(y.get() + i * y_row, &want[i * n], n)) << "row " << i;
}

TEST(MatmulOfOtherProcessors, IsRefused) {
  const std::string before = mgrpo_cpu_isa();
  ASSERT_EQ(mgrpo_cpu_use("portable"), MGRPO_OK);
  EXPECT_FALSE(supported());
  EXPECT_EQ(mgrpo_cpu_use(before.c_str()), MGRPO_OK);
}

}  // namespace
