#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace conformance;
using namespace nn_testing;

namespace {

constexpr double kTolerance = 8 * kEpsilon;          // relative: exponential, division, two products
constexpr double kBackwardTolerance = 16 * kEpsilon;  // relative to |dy| (|up| + |gate|) + 1
constexpr double kLeast = 1e-36;                      // below it denormals lose digits, and a GPU's sigmoid is 0

class Swiglu : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Swiglu);

Floats swiglu(const Backend &b, const Floats &gate_up, int64_t f, int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  const int64_t rows = static_cast<int64_t>(gate_up.size()) / 2 / f;
  Array x(b, dtype, gate_up, aligned), y(b, dtype, rows * f, aligned);
  EXPECT_EQ(b.swiglu(x.get(), dtype, y.get(), rows, f), MGRPO_OK);
  return y.values();
}

Floats swiglu_bwd(const Backend &b, const Floats &dy, const Floats &gate_up, int64_t f, int32_t dtype = MGRPO_FLOAT32,
                  bool aligned = false) {
  Array d(b, dtype, dy, aligned), x(b, dtype, gate_up, aligned), grad(b, dtype, static_cast<int64_t>(gate_up.size()), aligned);
  EXPECT_EQ(b.swiglu_bwd(d.get(), x.get(), dtype, grad.get(), static_cast<int64_t>(dy.size()) / f, f), MGRPO_OK);
  return grad.values();
}

double silu(double g) { return g / (1 + std::exp(-g)); }

std::vector<double> oracle(const Floats &gate_up, int64_t f) {
  std::vector<double> y;
  for (size_t at = 0; at < gate_up.size(); at += 2 * f)
    for (int64_t j = 0; j < f; j++) y.push_back(silu(gate_up[at + j]) * gate_up[at + f + j]);
  return y;
}

TEST_P(Swiglu, MatchesFloat64OverTheWholeRangeOfGates) {
  Floats gate_up;
  for (int i = -800; i <= 800; i++) gate_up.push_back(0.13f * i);
  const int64_t f = static_cast<int64_t>(gate_up.size());
  const Floats up = normal(f, 1);
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  EXPECT_TRUE(close_to(swiglu(backend(), gate_up, f), oracle(gate_up, f), kTolerance, kLeast));
}

TEST_P(Swiglu, BackwardMatchesCentralDifferencesOfFloat64) {
  const double h = 1e-5;
  for (int64_t f : {1, 7, 8, 33, 1100}) {
    const int64_t rows = 3;
    const Floats gate_up = normal(rows * 2 * f, 2, 3), dy = normal(rows * f, 3), grad = swiglu_bwd(backend(), dy, gate_up, f);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < f; j++) {
        const double gate = gate_up[r * 2 * f + j], up = gate_up[r * 2 * f + f + j], d = dy[r * f + j];
        const double bound = kBackwardTolerance * (std::fabs(d) * (std::fabs(up) + std::fabs(gate)) + 1) + 1e-8;
        EXPECT_NEAR(grad[r * 2 * f + j], d * up * (silu(gate + h) - silu(gate - h)) / (2 * h), bound);
        EXPECT_NEAR(grad[r * 2 * f + f + j], d * silu(gate), bound);
      }
    Array d(backend(), MGRPO_FLOAT32, dy), in_place(backend(), MGRPO_FLOAT32, gate_up);
    ASSERT_EQ(backend().swiglu_bwd(d.get(), in_place.get(), MGRPO_FLOAT32, in_place.get(), rows, f), MGRPO_OK);
    EXPECT_TRUE(same_bits(in_place.values(), grad));
  }
}

TEST_P(Swiglu, ElementDoesNotDependOnItsPlace) {
  const int64_t f = 37, rows = 500;
  const Floats gate_up = normal(rows * 2 * f, 4, 2);
  Floats all;
  with_threads(3, [&] { all = swiglu(backend(), gate_up, f); });
  EXPECT_TRUE(same_bits(swiglu(backend(), gate_up, f, MGRPO_FLOAT32, true), all));
  for (int64_t r : {0, 7, 499})
    for (int64_t j = 0; j < f; j++) {
      const Floats one = swiglu(backend(), {gate_up[r * 2 * f + j], gate_up[r * 2 * f + f + j]}, 1);
      EXPECT_TRUE(same_bits(one, part(all, r * f + j, 1)));
    }
}

TEST_P(Swiglu, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 alone";
  for (int64_t f : {5, 64, 1100})
    for (bool aligned : {false, true}) {
      const Floats gate_up = rounded_to_bf16(normal(3 * 2 * f, 5, 2)), dy = rounded_to_bf16(normal(3 * f, 6));
      EXPECT_TRUE(close_to(swiglu(backend(), gate_up, f, MGRPO_BFLOAT16, aligned), oracle(gate_up, f), kBf16Epsilon, kLeast));
      EXPECT_TRUE(close_to(swiglu_bwd(backend(), dy, gate_up, f, MGRPO_BFLOAT16, aligned), doubles(swiglu_bwd(backend(), dy, gate_up, f)),
                           kBf16Epsilon, kLeast));
    }
}

TEST_P(Swiglu, EmptyAndInvalid) {
  const Backend &b = backend();
  Array array(b, MGRPO_FLOAT32, 2);
  void *v = array.get();
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(b.swiglu(nullptr, MGRPO_FLOAT32, nullptr, 0, 4), MGRPO_OK);
  EXPECT_EQ(b.swiglu_bwd(nullptr, nullptr, MGRPO_FLOAT32, nullptr, 4, 0), MGRPO_OK);
  EXPECT_EQ(b.swiglu(v, MGRPO_FLOAT32, v, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.swiglu(v, MGRPO_FLOAT32, v, huge, huge), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.swiglu(v, MGRPO_FLOAT32, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.swiglu_bwd(v, nullptr, MGRPO_FLOAT32, v, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.swiglu_bwd(v, v, MGRPO_FLOAT32, v, huge, huge), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(array.unwritten());
}

}  // namespace
