#include "mgrpo/rms_norm.h"

#include "layer_testing.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kEps = 1e-5;
constexpr double kForwardTolerance = 64 * kEpsilon;    // relative
constexpr double kBackwardTolerance = 256 * kEpsilon;  // of the largest gradient
constexpr int64_t kHuge = int64_t{1} << 40;            // the sum of two overflows

const int64_t kWidths[] = {1, 3, 8, 13, 64, 96, 577, 1100, 4200};

class RmsNorm : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(RmsNorm);

struct Normed {
  Floats sum, y, inv;  // sum is empty without a residual
};

// Normalises x, or x + residual if there is one.
Normed norm(const Backend &b, const Floats &x, const Floats &w, const Floats &residual = {}, int32_t dtype = MGRPO_FLOAT32,
            bool aligned = false, float offset = 0) {
  const int64_t d = static_cast<int64_t>(w.size()), n = static_cast<int64_t>(x.size()), rows = n / d;
  Array X(b, dtype, x, aligned), W(b, dtype, w, aligned), y(b, dtype, n, aligned), inv(b, MGRPO_FLOAT32, rows);
  float *to_inv = static_cast<float *>(inv.get());
  if (residual.empty()) {
    EXPECT_EQ(b.rms_norm(X.get(), W.get(), dtype, offset, kEps, y.get(), to_inv, rows, d), MGRPO_OK);
    return {{}, y.values(), inv.values()};
  }
  Array R(b, dtype, residual, aligned), sum(b, dtype, n, aligned);
  EXPECT_EQ(b.add_rms_norm(X.get(), R.get(), W.get(), dtype, offset, kEps, sum.get(), y.get(), to_inv, rows, d), MGRPO_OK);
  return {sum.values(), y.values(), inv.values()};
}

struct Gradients {
  Floats dx, dw;
};

// Runs the backward pass. dw0 is the initial value of dw.
Gradients norm_bwd(const Backend &b, const Floats &dy, const Floats &x, const Floats &w, const Floats &inv, const Floats &dx_more,
                   const Floats &dw0, int32_t dtype = MGRPO_FLOAT32, bool aligned = false, float offset = 0) {
  const int64_t d = static_cast<int64_t>(w.size()), n = static_cast<int64_t>(x.size());
  Array DY(b, dtype, dy, aligned), X(b, dtype, x, aligned), W(b, dtype, w, aligned), more(b, dtype, dx_more, aligned),
      dx(b, dtype, n, aligned), INV(b, MGRPO_FLOAT32, inv), dw(b, MGRPO_FLOAT32, dw0);
  EXPECT_EQ(b.rms_norm_bwd(DY.get(), X.get(), W.get(), static_cast<float *>(INV.get()), dx_more.empty() ? nullptr : more.get(), dtype,
                           offset, dx.get(), static_cast<float *>(dw.get()), n / d, d),
            MGRPO_OK);
  return {dx.values(), dw.values()};
}

double inverse_rms(const float *x, int64_t d) {
  double squares = 0;
  for (int64_t j = 0; j < d; j++) squares += static_cast<double>(x[j]) * x[j];
  return 1 / std::sqrt(squares / d + kEps);
}

std::vector<double> oracle(const Floats &x, const Floats &w) {
  const size_t d = w.size();
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); i++) y[i] = x[i] * inverse_rms(&x[i / d * d], static_cast<int64_t>(d)) * w[i % d];
  return y;
}

struct WideGradients {
  std::vector<double> dx, dw;
};

WideGradients oracle_bwd(const Floats &dy, const Floats &x, const Floats &w, int64_t rows, int64_t d) {
  WideGradients g{std::vector<double>(x.size()), std::vector<double>(w.size())};
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

TEST_P(RmsNorm, MatchesFloat64) {
  for (int64_t d : kWidths) {
    const int64_t rows = 5;
    const Floats x = normal(rows * d, 1), w = normal(d, 2);
    const Normed got = norm(backend(), x, w);
    std::vector<double> want_inv;
    for (int64_t r = 0; r < rows; r++) want_inv.push_back(inverse_rms(&x[r * d], d));
    EXPECT_TRUE(close_to(got.y, oracle(x, w), kForwardTolerance, 0)) << d;
    EXPECT_TRUE(close_to(got.inv, want_inv, kForwardTolerance, 0)) << d;
    Array in_place(backend(), MGRPO_FLOAT32, x), W(backend(), MGRPO_FLOAT32, w);
    ASSERT_EQ(backend().rms_norm(in_place.get(), W.get(), MGRPO_FLOAT32, 0, kEps, in_place.get(), nullptr, rows, d), MGRPO_OK);
    EXPECT_TRUE(same_bits(in_place.values(), got.y)) << d;
  }
}

TEST_P(RmsNorm, OfASumHasTheBitsOfBothSteps) {
  for (int64_t d : kWidths) {
    const int64_t rows = 4;
    const Floats x = normal(rows * d, 3), residual = normal(rows * d, 4), w = normal(d, 5);
    Floats sum = x;
    for (size_t i = 0; i < sum.size(); i++) sum[i] += residual[i];
    const Normed got = norm(backend(), x, w, residual), of_sum = norm(backend(), sum, w);
    EXPECT_TRUE(same_bits(got.sum, sum)) << d;
    EXPECT_TRUE(same_bits(got.y, of_sum.y)) << d;
    EXPECT_TRUE(same_bits(got.inv, of_sum.inv)) << d;

    Array W(backend(), MGRPO_FLOAT32, w);
    for (bool sum_is_x : {true, false}) {
      Array X(backend(), MGRPO_FLOAT32, x), R(backend(), MGRPO_FLOAT32, residual);
      Array &to_sum = sum_is_x ? X : R, &to_y = sum_is_x ? R : X;
      ASSERT_EQ(backend().add_rms_norm(X.get(), R.get(), W.get(), MGRPO_FLOAT32, 0, kEps, to_sum.get(), to_y.get(), nullptr, rows, d),
                MGRPO_OK);
      EXPECT_TRUE(same_bits(to_sum.values(), sum)) << d;
      EXPECT_TRUE(same_bits(to_y.values(), got.y)) << d;
    }
  }
}

// Weights given as differences from 1. In float32 the result equals the one with whole weights; in bfloat16 the differences have more
// digits.
TEST_P(RmsNorm, OffsetIsAddedToTheWeights) {
  const int64_t rows = 5;
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t d : kWidths) {
      const Floats x = rounded_to_bf16(normal(rows * d, 30)), residual = rounded_to_bf16(normal(rows * d, 31)),
                   w = rounded_to_bf16(normal(d, 32, 0.01f)), dy = rounded_to_bf16(normal(rows * d, 33));
      Floats whole = w;
      for (float &v : whole) v += 1;
      const double rounding = dtype == MGRPO_BFLOAT16 ? kBf16Epsilon : kForwardTolerance;
      const Normed got = norm(backend(), x, w, {}, dtype, false, 1), sum = norm(backend(), x, w, residual, dtype, false, 1);
      EXPECT_TRUE(close_to(got.y, oracle(x, whole), rounding, 0)) << d;
      EXPECT_TRUE(close_to(sum.y, oracle(sum.sum, whole), rounding, 0)) << d;
      const Gradients grad = norm_bwd(backend(), dy, x, w, got.inv, {}, Floats(d), dtype, false, 1);
      const WideGradients want = oracle_bwd(dy, x, whole, rows, d);
      EXPECT_TRUE(close_to(grad.dx, want.dx, dtype == MGRPO_BFLOAT16 ? kBf16Epsilon : kBackwardTolerance, 8 * kBackwardTolerance)) << d;
      EXPECT_TRUE(close_to(grad.dw, want.dw, kBackwardTolerance, 4 * kBackwardTolerance)) << d;
      if (dtype == MGRPO_FLOAT32) {
        EXPECT_TRUE(same_bits(got.y, norm(backend(), x, whole).y)) << d;
      }
    }
  }
}

TEST_P(RmsNorm, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 70, d = 577;
  const Floats x = normal(rows * d, 6), residual = normal(rows * d, 7), w = normal(d, 8);
  Normed all;
  with_threads(3, [&] { all = norm(backend(), x, w, residual); });
  for (int64_t r : {int64_t{0}, int64_t{1}, int64_t{33}, rows - 1}) {
    const Normed one = norm(backend(), part(x, r * d, d), w, part(residual, r * d, d));
    EXPECT_TRUE(same_bits(one.y, part(all.y, r * d, d)));
    EXPECT_TRUE(same_bits(one.sum, part(all.sum, r * d, d)));
  }
}

TEST_P(RmsNorm, BitsDoNotDependOnWhereARowLies) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t d : {8, 96, 577, 600, 2560, 5120}) {  // one, two and four packs per thread, and rows that do not divide into packs
      const Floats x = rounded_to_bf16(normal(3 * d, 9)), residual = rounded_to_bf16(normal(3 * d, 10)), w = rounded_to_bf16(normal(d, 11)),
                   dy = rounded_to_bf16(normal(3 * d, 12)), zero(d);
      const Normed odd = norm(backend(), x, w, residual, dtype), even = norm(backend(), x, w, residual, dtype, true);
      EXPECT_TRUE(same_bits(odd.y, even.y)) << d;
      EXPECT_TRUE(same_bits(odd.sum, even.sum)) << d;
      EXPECT_TRUE(same_bits(odd.inv, even.inv)) << d;
      const Gradients a = norm_bwd(backend(), dy, odd.sum, w, odd.inv, residual, zero, dtype),
                      b = norm_bwd(backend(), dy, odd.sum, w, odd.inv, residual, zero, dtype, true);
      EXPECT_TRUE(same_bits(a.dx, b.dx)) << d;
      EXPECT_TRUE(same_bits(a.dw, b.dw)) << d;
    }
  }
}

TEST_P(RmsNorm, NaNStaysInItsRow) {
  const int64_t d = 13;
  Floats x = normal(3 * d, 13);
  const Floats w = normal(d, 14), clean = norm(backend(), x, w).y;
  x[d + 5] = NAN;
  const Floats y = norm(backend(), x, w).y;
  EXPECT_TRUE(same_bits(part(y, 0, d), part(clean, 0, d)));
  EXPECT_TRUE(same_bits(part(y, 2 * d, d), part(clean, 2 * d, d)));
  for (float v : part(y, d, d)) EXPECT_TRUE(std::isnan(v));
}

TEST_P(RmsNorm, BackwardMatchesFloat64AndAccumulates) {
  for (int64_t d : kWidths)
    for (int64_t rows : {1, 3, 64, 65, 150}) {
      const Floats x = normal(rows * d, 15), w = normal(d, 16), dy = normal(rows * d, 17), dw0 = normal(d, 18);
      const Floats inv = norm(backend(), x, w).inv;
      const Gradients got = norm_bwd(backend(), dy, x, w, inv, {}, dw0);
      WideGradients want = oracle_bwd(dy, x, w, rows, d);
      for (int64_t j = 0; j < d; j++) want.dw[j] += dw0[j];
      EXPECT_TRUE(close_to(got.dx, want.dx, kBackwardTolerance, 8 * kBackwardTolerance)) << rows << " x " << d;
      EXPECT_TRUE(close_to(got.dw, want.dw, kBackwardTolerance, kBackwardTolerance * std::sqrt(rows))) << rows << " x " << d;

      const Floats more = normal(rows * d, 19);
      Floats both = got.dx;
      for (size_t i = 0; i < both.size(); i++) both[i] += more[i];
      const Gradients with_more = norm_bwd(backend(), dy, x, w, inv, more, dw0);
      EXPECT_TRUE(same_bits(with_more.dx, both)) << rows << " x " << d;
      EXPECT_TRUE(same_bits(with_more.dw, got.dw)) << rows << " x " << d;

      Array X(backend(), MGRPO_FLOAT32, x), W(backend(), MGRPO_FLOAT32, w), INV(backend(), MGRPO_FLOAT32, inv);
      const float *to_inv = static_cast<float *>(INV.get());
      Array frozen(backend(), MGRPO_FLOAT32, dy);
      ASSERT_EQ(backend().rms_norm_bwd(frozen.get(), X.get(), W.get(), to_inv, nullptr, MGRPO_FLOAT32, 0, frozen.get(), nullptr, rows, d),
                MGRPO_OK);
      EXPECT_TRUE(same_bits(frozen.values(), got.dx));
      for (bool dx_is_dy : {true, false}) {
        Array DY(backend(), MGRPO_FLOAT32, dy), MORE(backend(), MGRPO_FLOAT32, more), dw(backend(), MGRPO_FLOAT32, dw0);
        Array &dx = dx_is_dy ? DY : MORE;
        ASSERT_EQ(backend().rms_norm_bwd(DY.get(), X.get(), W.get(), to_inv, MORE.get(), MGRPO_FLOAT32, 0, dx.get(),
                                         static_cast<float *>(dw.get()), rows, d),
                  MGRPO_OK);
        EXPECT_TRUE(same_bits(dx.values(), both));
        EXPECT_TRUE(same_bits(dw.values(), got.dw));
      }
    }
}

TEST_P(RmsNorm, BackwardOfManyRows) {
  const int64_t rows = 17000, d = 5;
  const Floats x = normal(rows * d, 20), w = normal(d, 21), dy = normal(rows * d, 22);
  const Gradients got = norm_bwd(backend(), dy, x, w, norm(backend(), x, w).inv, {}, Floats(d));
  EXPECT_TRUE(close_to(got.dw, oracle_bwd(dy, x, w, rows, d).dw, kBackwardTolerance, kBackwardTolerance * std::sqrt(rows)));
}

TEST_P(RmsNorm, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (int64_t d : {7, 64, 577, 1100})
    for (bool aligned : {false, true}) {
      const int64_t rows = 3;
      const Floats x = rounded_to_bf16(normal(rows * d, 23)), residual = rounded_to_bf16(normal(rows * d, 24)),
                   w = rounded_to_bf16(normal(d, 25)), dy = rounded_to_bf16(normal(rows * d, 26));
      const Normed got = norm(backend(), x, w, residual, MGRPO_BFLOAT16, aligned);
      Floats sum = x;
      for (size_t i = 0; i < sum.size(); i++) sum[i] += residual[i];
      sum = rounded_to_bf16(sum);
      EXPECT_TRUE(same_bits(got.sum, sum));
      EXPECT_TRUE(close_to(got.y, oracle(sum, w), kBf16Epsilon, 0));
      EXPECT_TRUE(same_bits(norm(backend(), sum, w, {}, MGRPO_BFLOAT16, aligned).y, got.y));
      const Gradients grad = norm_bwd(backend(), dy, sum, w, got.inv, residual, Floats(d), MGRPO_BFLOAT16, aligned);
      WideGradients want = oracle_bwd(dy, sum, w, rows, d);
      for (size_t i = 0; i < want.dx.size(); i++) want.dx[i] += residual[i];
      EXPECT_TRUE(close_to(grad.dx, want.dx, kBf16Epsilon, 8 * kBackwardTolerance));
      EXPECT_TRUE(close_to(grad.dw, want.dw, kBackwardTolerance, 2 * kBackwardTolerance));
    }
}

TEST(RmsNormCpu, BackwardBitsDoNotDependOnThreads) {
  const int64_t rows = 1000, d = 333;
  const Floats x = normal(rows * d, 27), w = normal(d, 28), dy = normal(rows * d, 29), inv = norm(cpu(), x, w).inv;
  Gradients one, many;
  with_threads(1, [&] { one = norm_bwd(cpu(), dy, x, w, inv, {}, Floats(d)); });
  for (int threads : {2, 3, 8}) {
    with_threads(threads, [&] { many = norm_bwd(cpu(), dy, x, w, inv, {}, Floats(d)); });
    EXPECT_TRUE(same_bits(many.dx, one.dx)) << threads;
    EXPECT_TRUE(same_bits(many.dw, one.dw)) << threads;
  }
}

TEST_P(RmsNorm, EmptyAndInvalid) {
  const Backend &b = backend();
  Array array(b, MGRPO_FLOAT32, 1);
  float *v = static_cast<float *>(array.get());
  const auto run = [&](const void *x, const void *w, double eps, int64_t rows, int64_t d) {
    return b.rms_norm(x, w, MGRPO_FLOAT32, 0, eps, v, nullptr, rows, d);
  };
  EXPECT_EQ(run(nullptr, nullptr, kEps, 0, 4), MGRPO_OK);
  EXPECT_EQ(run(v, v, kEps, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(v, v, kEps, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(v, v, kEps, kHuge, kHuge), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(v, v, -1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(v, v, NAN, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(v, nullptr, kEps, 1, 1), MGRPO_INVALID_ARGUMENT);
  const auto add = [&](const void *residual, void *sum, double eps, int64_t rows, int64_t d) {
    return b.add_rms_norm(v, residual, v, MGRPO_FLOAT32, 0, eps, sum, v, nullptr, rows, d);
  };
  EXPECT_EQ(add(nullptr, nullptr, kEps, 0, 4), MGRPO_OK);
  EXPECT_EQ(add(nullptr, v, kEps, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(add(v, nullptr, kEps, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(add(v, v, -1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(add(v, v, kEps, kHuge, kHuge), MGRPO_INVALID_ARGUMENT);
  const auto bwd = [&](const void *dy, void *dx, int64_t rows, int64_t d) {
    return b.rms_norm_bwd(dy, v, v, v, nullptr, MGRPO_FLOAT32, 0, dx, v, rows, d);
  };
  EXPECT_EQ(bwd(nullptr, nullptr, 0, 4), MGRPO_OK);
  EXPECT_EQ(bwd(nullptr, v, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(bwd(v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(bwd(v, v, kHuge, kHuge), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(array.unwritten());
}

}  // namespace
