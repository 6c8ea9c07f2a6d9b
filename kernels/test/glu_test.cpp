#include "mgrpo/glu.h"

#include "layer_testing.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kTolerance = 8 * kEpsilon;           // relative: exponential, division, two products
constexpr double kBackwardTolerance = 16 * kEpsilon;  // relative to |dy| (|up| + |gate|) + 1
constexpr double kLeast = 1e-36;                      // denormals, which have fewer digits, begin below this

// A gated activation.
struct Kind {
  int32_t gates;
  double (*activation)(double);
  double (*exponent)(double);  // the activation rounds like this exponent, except if it is the gate itself
  double (*up)(double);
  double most;  // limit of the activation for large gates
};

double silu(double g) { return g / (1 + std::exp(-g)); }
double cubic(double g) { return std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g); }
// g / 2 (1 + tanh(u)). For g < 0 this sum cancels; 2 / (1 + exp(-2 u)) does not.
double gelu_tanh(double g) { return g > 0 ? g / 2 * (1 + std::tanh(cubic(g))) : g / (1 + std::exp(-2 * cubic(g))); }

double clamped(double g) { return std::min(g, 7.0) / (1 + std::exp(-1.702 * std::min(g, 7.0))); }
double clamped_up(double u) { return std::clamp(u, -7.0, 7.0) + 1; }
double sigmoid(double g) { return 1 / (1 + std::exp(-g)); }
double same(double x) { return x; }

const Kind kKinds[] = {{MGRPO_SWIGLU, silu, [](double) { return 0.0; }, same, INFINITY},
                       {MGRPO_GEGLU, gelu_tanh, [](double g) { return 2 * cubic(g); }, same, INFINITY},
                       {MGRPO_CLAMPED_GLU, clamped, [](double g) { return 1.702 * std::min(g, 7.0); }, clamped_up, 7},
                       {MGRPO_SIGMOID_GLU, sigmoid, [](double) { return 0.0; }, same, 1}};

class Glu : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Glu);

Floats glu(const Kind &kind, const Backend &b, const Floats &gate_up, int64_t f, int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  const int64_t rows = static_cast<int64_t>(gate_up.size()) / 2 / f;
  Array x(b, dtype, gate_up, aligned), y(b, dtype, rows * f, aligned);
  EXPECT_EQ(b.glu(kind.gates, x.get(), dtype, y.get(), rows, f), MGRPO_OK);
  return y.values();
}

Floats glu_bwd(const Kind &kind, const Backend &b, const Floats &dy, const Floats &gate_up, int64_t f, int32_t dtype = MGRPO_FLOAT32,
               bool aligned = false) {
  Array d(b, dtype, dy, aligned), x(b, dtype, gate_up, aligned), grad(b, dtype, static_cast<int64_t>(gate_up.size()), aligned);
  EXPECT_EQ(b.glu_bwd(kind.gates, d.get(), x.get(), dtype, grad.get(), static_cast<int64_t>(dy.size()) / f, f), MGRPO_OK);
  return grad.values();
}

std::vector<double> oracle(const Kind &kind, const Floats &gate_up, int64_t f) {
  std::vector<double> y;
  for (size_t at = 0; at < gate_up.size(); at += 2 * f)
    for (int64_t j = 0; j < f; j++) y.push_back(kind.activation(gate_up[at + j]) * kind.up(gate_up[at + f + j]));
  return y;
}

TEST_P(Glu, MatchesFloat64OverTheWholeRangeOfGates) {
  for (const Kind &kind : kKinds) {
    Floats gate_up;
    for (int i = -800; i <= 800; i++) gate_up.push_back(0.13f * i);
    const int64_t f = static_cast<int64_t>(gate_up.size());
    const Floats up = normal(f, 1);
    gate_up.insert(gate_up.end(), up.begin(), up.end());
    const Floats got = glu(kind, backend(), gate_up, f);
    const std::vector<double> want = oracle(kind, gate_up, f);
    for (int64_t j = 0; j < f; j++) {
      const double flushed = FLT_MIN * std::fabs(gate_up[j] * kind.up(gate_up[f + j]));  // a GPU's sigmoid is never denormal
      EXPECT_NEAR(got[j], want[j], kTolerance * (1 + std::fabs(kind.exponent(gate_up[j]))) * std::fabs(want[j]) + flushed + kLeast)
          << gate_up[j];
    }
  }
}

TEST_P(Glu, BackwardMatchesCentralDifferencesOfFloat64) {
  const double h = 1e-5;
  for (const Kind &kind : kKinds)
    for (int64_t f : {1, 7, 8, 33, 1100}) {
      const int64_t rows = 3;
      const Floats gate_up = normal(rows * 2 * f, 2, 3), dy = normal(rows * f, 3), grad = glu_bwd(kind, backend(), dy, gate_up, f);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < f; j++) {
          const double gate = gate_up[r * 2 * f + j], up = gate_up[r * 2 * f + f + j], d = dy[r * f + j];
          const double bound = kBackwardTolerance * (std::fabs(d) * (std::fabs(up) + std::fabs(gate)) + 1) + 1e-8;
          EXPECT_NEAR(grad[r * 2 * f + j], d * kind.up(up) * (kind.activation(gate + h) - kind.activation(gate - h)) / (2 * h), bound);
          EXPECT_NEAR(grad[r * 2 * f + f + j], d * kind.activation(gate) * (kind.up(up + h) - kind.up(up - h)) / (2 * h), bound);
        }
      Array d(backend(), MGRPO_FLOAT32, dy), in_place(backend(), MGRPO_FLOAT32, gate_up);
      ASSERT_EQ(backend().glu_bwd(kind.gates, d.get(), in_place.get(), MGRPO_FLOAT32, in_place.get(), rows, f), MGRPO_OK);
      EXPECT_TRUE(same_bits(in_place.values(), grad));
    }
}

TEST_P(Glu, HugeGatesAndNaN) {
  for (const Kind &kind : kKinds) {
    if (kind.most < INFINITY) continue;
    const Floats gate_up{1e30f, -1e30f, 3e38f, -3e38f, NAN, 2, 2, 2, 2, 2}, y = glu(kind, backend(), gate_up, 5);
    const Floats grad = glu_bwd(kind, backend(), Floats(5, 1), gate_up, 5);
    for (int j : {0, 1}) {
      EXPECT_EQ(y[j], j == 0 ? 2e30f : 0.0f);
      EXPECT_EQ(grad[j], j == 0 ? 2.0f : 0.0f);
      EXPECT_EQ(grad[5 + j], j == 0 ? 1e30f : 0.0f);
    }
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_TRUE(std::isnan(y[4]) && std::isnan(grad[4]) && std::isnan(grad[9]));
  }
}

TEST_P(Glu, LimitsOfTheClampedKind) {
  const float above = std::nextafter(7.0f, 8.0f), below = std::nextafter(-7.0f, -8.0f);
  const Floats gates{7, above, 3e38f, -3e38f, NAN, 2, 2, 2, 2, 2, 2}, ups{2, 2, 2, 2, 2, 7, above, 3e38f, -7, below, NAN};
  Floats gate_up = gates;
  gate_up.insert(gate_up.end(), ups.begin(), ups.end());
  const int64_t f = static_cast<int64_t>(gates.size());
  const Floats y = glu(kKinds[2], backend(), gate_up, f), grad = glu_bwd(kKinds[2], backend(), Floats(gates.size(), 1), gate_up, f);
  const std::vector<double> want = oracle(kKinds[2], gate_up, f);
  for (int j : {0, 1, 2, 3, 5, 6, 7, 8, 9}) EXPECT_NEAR(y[j], want[j], 16 * kTolerance * std::fabs(want[j])) << j;
  EXPECT_NE(grad[0], 0.0f);
  EXPECT_TRUE(grad[1] == 0.0f && grad[2] == 0.0f && grad[3] == 0.0f);
  EXPECT_TRUE(grad[f + 5] != 0.0f && grad[f + 8] != 0.0f);
  EXPECT_TRUE(grad[f + 6] == 0.0f && grad[f + 7] == 0.0f && grad[f + 9] == 0.0f);
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[10]) && std::isnan(grad[4]) && std::isnan(grad[10]));
}

TEST_P(Glu, LimitsOfTheSigmoid) {
  const Floats gate_up{1e30f, -1e30f, 3e38f, -3e38f, NAN, 0, 2, 2, 2, 2, 2, NAN}, y = glu(kKinds[3], backend(), gate_up, 6);
  const Floats grad = glu_bwd(kKinds[3], backend(), Floats(6, 1), gate_up, 6);
  for (int j : {0, 2}) EXPECT_TRUE(y[j] == 2.0f && grad[j] == 0.0f && grad[6 + j] == 1.0f) << j;
  for (int j : {1, 3}) EXPECT_TRUE(y[j] == 0.0f && grad[j] == 0.0f && grad[6 + j] == 0.0f) << j;
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(grad[4]) && std::isnan(grad[10]));
  EXPECT_TRUE(std::isnan(y[5]) && std::isnan(grad[5]));
  EXPECT_NEAR(grad[11], 0.5, kTolerance);
}

TEST_P(Glu, ElementDoesNotDependOnItsPlace) {
  const int64_t rows = 500;
  for (const Kind &kind : kKinds)
    for (int64_t f : {37, 40}) {
      const Floats gate_up = normal(rows * 2 * f, 4, 2), dy = normal(rows * f, 7);
      Floats all;
      with_threads(3, [&] { all = glu(kind, backend(), gate_up, f); });
      EXPECT_TRUE(same_bits(glu(kind, backend(), gate_up, f, MGRPO_FLOAT32, true), all)) << f;
      EXPECT_TRUE(same_bits(glu_bwd(kind, backend(), dy, gate_up, f, MGRPO_FLOAT32, true), glu_bwd(kind, backend(), dy, gate_up, f))) << f;
      for (int64_t r : {0, 7, 499})
        for (int64_t j = 0; j < f; j++) {
          const Floats one = glu(kind, backend(), {gate_up[r * 2 * f + j], gate_up[r * 2 * f + f + j]}, 1);
          EXPECT_TRUE(same_bits(one, part(all, r * f + j, 1)));
        }
    }
}

TEST_P(Glu, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (const Kind &kind : kKinds)
    for (int64_t f : {5, 64, 1100})
      for (bool aligned : {false, true}) {
        const Floats gate_up = rounded_to_bf16(normal(3 * 2 * f, 5, 2)), dy = rounded_to_bf16(normal(3 * f, 6));
        EXPECT_TRUE(close_to(glu(kind, backend(), gate_up, f, MGRPO_BFLOAT16, aligned), oracle(kind, gate_up, f), kBf16Epsilon, kLeast));
        EXPECT_TRUE(close_to(glu_bwd(kind, backend(), dy, gate_up, f, MGRPO_BFLOAT16, aligned),
                             doubles(glu_bwd(kind, backend(), dy, gate_up, f)), kBf16Epsilon, kLeast));
      }
}

TEST_P(Glu, EmptyAndInvalid) {
  const Backend &b = backend();
  Array array(b, MGRPO_FLOAT32, 2);
  void *v = array.get();
  const int64_t huge = int64_t{1} << 40;
  for (const Kind &kind : kKinds) {
    EXPECT_EQ(b.glu(kind.gates, nullptr, MGRPO_FLOAT32, nullptr, 0, 4), MGRPO_OK);
    EXPECT_EQ(b.glu_bwd(kind.gates, nullptr, nullptr, MGRPO_FLOAT32, nullptr, 4, 0), MGRPO_OK);
    EXPECT_EQ(b.glu(kind.gates, v, MGRPO_FLOAT32, v, -1, 1), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.glu(kind.gates, v, MGRPO_FLOAT32, v, huge, huge), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.glu(kind.gates, v, MGRPO_FLOAT32, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.glu_bwd(kind.gates, v, nullptr, MGRPO_FLOAT32, v, 1, 1), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.glu_bwd(kind.gates, v, v, MGRPO_FLOAT32, v, huge, huge), MGRPO_INVALID_ARGUMENT);
  }
  for (int32_t gates : {-1, MGRPO_SIGMOID_GLU + 1}) {
    EXPECT_EQ(b.glu(gates, v, MGRPO_FLOAT32, v, 1, 1), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.glu_bwd(gates, v, v, MGRPO_FLOAT32, v, 1, 1), MGRPO_INVALID_ARGUMENT);
  }
  EXPECT_TRUE(array.unwritten());
}

}  // namespace
