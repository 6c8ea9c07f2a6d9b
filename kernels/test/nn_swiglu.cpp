#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

constexpr double kTolerance = 8 * kEpsilon;          // relative: exponential, division, two products
constexpr double kBackwardTolerance = 16 * kEpsilon;  // relative to |dy| (|up| + |gate|) + 1

TEST(Swiglu, MatchesFloat64OverTheWholeRangeOfGates) {
  Floats gates;
  for (int i = -800; i <= 800; i++) gates.push_back(0.13f * i);
  const int64_t f = static_cast<int64_t>(gates.size());
  Floats gate_up = gates;
  const Floats up = normal(f, 1);
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  Guarded y(f);
  ASSERT_EQ(mgrpo_swiglu_cpu(gate_up.data(), y.begin(), 1, f), MGRPO_OK);
  std::vector<double> want;
  for (int64_t j = 0; j < f; j++) want.push_back(gates[j] / (1 + std::exp(-static_cast<double>(gates[j]))) * up[j]);
  EXPECT_TRUE(close_to(y.values(), want, kTolerance, 1e-36));  // below -85: the denormals' loss of digits
}

TEST(Swiglu, BackwardMatchesCentralDifferencesOfFloat64) {
  const auto silu = [](double g) { return g / (1 + std::exp(-g)); };
  const double h = 1e-5;
  for (int64_t f : {1, 7, 8, 33}) {
    const int64_t rows = 3;
    const Floats gate_up = normal(rows * 2 * f, 2, 3), dy = normal(rows * f, 3);
    Guarded grad(rows * 2 * f);
    ASSERT_EQ(mgrpo_swiglu_bwd_cpu(dy.data(), gate_up.data(), grad.begin(), rows, f), MGRPO_OK);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < f; j++) {
        const double gate = gate_up[r * 2 * f + j], up = gate_up[r * 2 * f + f + j], d = dy[r * f + j];
        const double bound = kBackwardTolerance * (std::fabs(d) * (std::fabs(up) + std::fabs(gate)) + 1) + 1e-8;
        EXPECT_NEAR(grad[r * 2 * f + j], d * up * (silu(gate + h) - silu(gate - h)) / (2 * h), bound);
        EXPECT_NEAR(grad[r * 2 * f + f + j], d * silu(gate), bound);
      }
    Guarded in_place(gate_up);
    mgrpo_swiglu_bwd_cpu(dy.data(), in_place.begin(), in_place.begin(), rows, f);
    EXPECT_TRUE(same_bits(in_place.begin(), grad.begin(), rows * 2 * f));
  }
}

TEST(Swiglu, ElementDoesNotDependOnItsPlace) {
  const int64_t f = 37, rows = 500;
  const Floats gate_up = normal(rows * 2 * f, 4, 2);
  Guarded all(rows * f);
  with_threads(3, [&] { mgrpo_swiglu_cpu(gate_up.data(), all.begin(), rows, f); });
  for (int64_t r : {0, 7, 499})
    for (int64_t j = 0; j < f; j++) {
      const Floats alone{gate_up[r * 2 * f + j], gate_up[r * 2 * f + f + j]};
      Guarded one(1);
      mgrpo_swiglu_cpu(alone.data(), one.begin(), 1, 1);
      EXPECT_TRUE(same_bits(one.begin(), all.begin() + r * f + j, 1));
    }
}

TEST(Swiglu, EmptyAndInvalid) {
  float v[2] = {1, 1};
  EXPECT_EQ(mgrpo_swiglu_cpu(nullptr, nullptr, 0, 4), MGRPO_OK);
  EXPECT_EQ(mgrpo_swiglu_bwd_cpu(nullptr, nullptr, nullptr, 4, 0), MGRPO_OK);
  EXPECT_EQ(mgrpo_swiglu_cpu(v, v, -1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_swiglu_cpu(v, nullptr, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_swiglu_bwd_cpu(v, nullptr, v, 1, 1), MGRPO_INVALID_ARGUMENT);
}

}  // namespace
