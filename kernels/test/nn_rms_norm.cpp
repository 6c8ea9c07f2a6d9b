#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

constexpr double kEps = 1e-5;
constexpr double kForwardTolerance = 64 * kEpsilon;    // relative
constexpr double kBackwardTolerance = 256 * kEpsilon;  // of the largest gradient

const int64_t kWidths[] = {1, 3, 8, 13, 64, 96, 577};

struct Gradients {
  std::vector<double> dx, dw;
};

double inverse_rms(const float *x, int64_t d) {
  double squares = 0;
  for (int64_t j = 0; j < d; j++) squares += static_cast<double>(x[j]) * x[j];
  return 1 / std::sqrt(squares / d + kEps);
}

Gradients oracle(const Floats &dy, const Floats &x, const Floats &w, int64_t rows, int64_t d) {
  Gradients g{std::vector<double>(x.size()), std::vector<double>(w.size())};
  for (int64_t r = 0; r < rows; r++) {
    const double inv = inverse_rms(&x[r * d], d);
    double projection = 0;
    for (int64_t j = 0; j < d; j++) projection += static_cast<double>(dy[r * d + j]) * w[j] * x[r * d + j];
    for (int64_t j = 0; j < d; j++) {
      const int64_t i = r * d + j;
      g.dx[i] = inv * dy[i] * w[j] - inv * inv * inv * x[i] * projection / d;
      g.dw[j] += dy[i] * x[i] * inv;
    }
  }
  return g;
}

TEST(RmsNorm, MatchesFloat64) {
  for (int64_t d : kWidths) {
    const int64_t rows = 5;
    const Floats x = normal(rows * d, 1), w = normal(d, 2);
    Guarded y(rows * d), inv(rows);
    ASSERT_EQ(mgrpo_rms_norm_cpu(x.data(), w.data(), kEps, y.begin(), inv.begin(), rows, d), MGRPO_OK);
    std::vector<double> want(x.size()), want_inv;
    for (int64_t r = 0; r < rows; r++) {
      want_inv.push_back(inverse_rms(&x[r * d], d));
      for (int64_t j = 0; j < d; j++) want[r * d + j] = x[r * d + j] * want_inv.back() * w[j];
    }
    EXPECT_TRUE(close_to(y.values(), want, kForwardTolerance, 0)) << d;
    EXPECT_TRUE(close_to(inv.values(), want_inv, kForwardTolerance, 0)) << d;
    Guarded in_place(x);
    mgrpo_rms_norm_cpu(in_place.begin(), w.data(), kEps, in_place.begin(), nullptr, rows, d);
    EXPECT_TRUE(same_bits(in_place.begin(), y.begin(), rows * d));
  }
}

TEST(RmsNorm, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 700, d = 577;
  const Floats x = normal(rows * d, 3), w = normal(d, 4);
  Guarded all(rows * d), one(d);
  with_threads(3, [&] { mgrpo_rms_norm_cpu(x.data(), w.data(), kEps, all.begin(), nullptr, rows, d); });
  for (int64_t r : {int64_t{0}, int64_t{1}, int64_t{233}, rows - 1}) {
    mgrpo_rms_norm_cpu(&x[r * d], w.data(), kEps, one.begin(), nullptr, 1, d);
    EXPECT_TRUE(same_bits(one.begin(), all.begin() + r * d, d));
  }
}

TEST(RmsNorm, BackwardMatchesFloat64AndAccumulates) {
  for (int64_t d : kWidths)
    for (int64_t rows : {1, 3, 64, 65, 150}) {
      const Floats x = normal(rows * d, 5), w = normal(d, 6), dy = normal(rows * d, 7), dw0 = normal(d, 8);
      Guarded y(rows * d), inv(rows), dx(rows * d), dw(dw0);
      mgrpo_rms_norm_cpu(x.data(), w.data(), kEps, y.begin(), inv.begin(), rows, d);
      ASSERT_EQ(mgrpo_rms_norm_bwd_cpu(dy.data(), x.data(), w.data(), inv.begin(), nullptr, dx.begin(), dw.begin(), rows, d),
                MGRPO_OK);
      Gradients want = oracle(dy, x, w, rows, d);
      for (int64_t j = 0; j < d; j++) want.dw[j] += dw0[j];
      EXPECT_TRUE(close_to(dx.values(), want.dx, kBackwardTolerance, 8 * kBackwardTolerance)) << rows << " x " << d;
      EXPECT_TRUE(close_to(dw.values(), want.dw, kBackwardTolerance, kBackwardTolerance * std::sqrt(rows)))
          << rows << " x " << d;
      Guarded in_place(dy), dw2(dw0);
      mgrpo_rms_norm_bwd_cpu(in_place.begin(), x.data(), w.data(), inv.begin(), nullptr, in_place.begin(), dw2.begin(), rows,
                             d);
      EXPECT_TRUE(same_bits(in_place.begin(), dx.begin(), rows * d));
      EXPECT_TRUE(same_bits(dw2.begin(), dw.begin(), d));
    }
}

TEST(RmsNorm, BackwardBitsDoNotDependOnThreads) {
  const int64_t rows = 1000, d = 333;
  const Floats x = normal(rows * d, 9), w = normal(d, 10), dy = normal(rows * d, 11);
  Guarded y(rows * d), inv(rows), dx1(rows * d), dw1(Floats(d, 0.0f));
  mgrpo_rms_norm_cpu(x.data(), w.data(), kEps, y.begin(), inv.begin(), rows, d);
  const auto run = [&](Guarded &dx, Guarded &dw) {
    mgrpo_rms_norm_bwd_cpu(dy.data(), x.data(), w.data(), inv.begin(), nullptr, dx.begin(), dw.begin(), rows, d);
  };
  with_threads(1, [&] { run(dx1, dw1); });
  for (int threads : {2, 3, 8}) {
    Guarded dx(rows * d), dw(Floats(d, 0.0f));
    with_threads(threads, [&] { run(dx, dw); });
    EXPECT_TRUE(same_bits(dx.begin(), dx1.begin(), rows * d)) << threads;
    EXPECT_TRUE(same_bits(dw.begin(), dw1.begin(), d)) << threads;
  }
}

TEST(RmsNorm, EmptyAndInvalid) {
  float v = 1;
  EXPECT_EQ(mgrpo_rms_norm_cpu(nullptr, nullptr, kEps, nullptr, nullptr, 0, 4), MGRPO_OK);
  EXPECT_EQ(mgrpo_rms_norm_cpu(&v, &v, kEps, &v, nullptr, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rms_norm_cpu(&v, &v, kEps, &v, nullptr, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rms_norm_cpu(&v, &v, -1, &v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rms_norm_cpu(&v, &v, NAN, &v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rms_norm_cpu(&v, nullptr, kEps, &v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rms_norm_bwd_cpu(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 4), MGRPO_OK);
  EXPECT_EQ(mgrpo_rms_norm_bwd_cpu(&v, &v, &v, &v, nullptr, &v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
}

}  // namespace
