#include <omp.h>

#include "backend.h"

namespace {
using namespace conformance;

const mgrpo_adamw_config kConfig{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 1, .step = 1};

struct State {
  std::vector<float> p, m, v;
};

class AdamW : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(AdamW);

// Runs `steps` updates on the same gradient and returns the status of the last one.
int32_t run(const Backend &b, State &s, const std::vector<float> &gradient, mgrpo_adamw_config config, int steps,
            std::vector<uint16_t> *bf16 = nullptr, bool aligned = false) {
  Buffer<float> p(b, s.p, aligned), m(b, s.m, aligned), v(b, s.v, aligned), g(b, gradient, aligned);
  Buffer<uint16_t> copy(b, s.p.size(), aligned);
  const auto n = static_cast<int64_t>(s.p.size());
  int32_t status = MGRPO_OK;
  for (int i = 0; i < steps; i++) {
    double norm = -1;
    EXPECT_EQ(b.grad_norm(g.get(), n, &norm), MGRPO_OK);
    status = b.adamw(p.get(), m.get(), v.get(), g.get(), bf16 ? copy.get() : nullptr, n, norm, &config);
    config.step++;
  }
  s = {p.values(), m.values(), v.values()};
  if (bf16) *bf16 = copy.values();
  return status;
}

State zeros(size_t n, unsigned seed) { return {cast<float>(normals(n, seed)), std::vector<float>(n), std::vector<float>(n)}; }

TEST_P(AdamW, MatchesTheUpdateRuleInFloat64) {
  const size_t n = 1000;
  State s = zeros(n, 1);
  const auto gradient = cast<float>(normals(n, 2));
  std::vector<double> p = cast<double>(s.p), m(n), v(n);
  double norm = 0;
  for (float g : gradient) norm += static_cast<double>(g) * g;
  norm = std::sqrt(norm);
  ASSERT_GT(norm, 1);
  for (int step = 1; step <= 5; step++)
    for (size_t i = 0; i < n; i++) {
      const double g = gradient[i] * std::min(1.0, 1 / (norm + 1e-6));
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      p[i] *= 1 - 1e-2 * 0.1;
      p[i] -= 1e-2 * (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-8);
    }
  ASSERT_EQ(run(backend(), s, gradient, kConfig, 5), MGRPO_OK);
  expect_near(s.p, p, 2e-6, "p");
  expect_near(s.m, m, 1e-7, "m");
  expect_near(s.v, v, 1e-7, "v");
}

TEST_P(AdamW, BitsEqualTheCPUs) {
  for (size_t n : {5000, 5001, 5003, 3})
    for (bool aligned : {false, true}) {
      State here = zeros(n, 3), there = here;
      const auto gradient = cast<float>(normals(n, 4, 1e-3));  // the norm is below the clip, so its last bits do not matter
      std::vector<uint16_t> copy_here, copy_there;
      run(backend(), here, gradient, kConfig, 3, &copy_here, aligned);
      run(cpu(), there, gradient, kConfig, 3, &copy_there);
      EXPECT_EQ(here.p, there.p) << n;
      EXPECT_EQ(here.m, there.m) << n;
      EXPECT_EQ(here.v, there.v) << n;
      EXPECT_EQ(copy_here, copy_there) << n;
    }
}

TEST_P(AdamW, NonFiniteGradientsTouchNothing) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    State s = zeros(300, 5);
    const State before = s;
    auto gradient = cast<float>(normals(300, 6));
    gradient[177] = static_cast<float>(bad);
    EXPECT_EQ(run(backend(), s, gradient, kConfig, 1), MGRPO_NON_FINITE);
    EXPECT_EQ(s.p, before.p);
    EXPECT_EQ(s.m, before.m);
    EXPECT_EQ(s.v, before.v);
  }
}

TEST_P(AdamW, BFloat16CopyRoundsToNearestEven) {
  State s{{1.00390625f, 1.01171875f, -3.0f, 0.0f}, {0, 0, 0, 0}, {0, 0, 0, 0}};  // the first two are ties and round to 1.0 and 1.015625
  std::vector<uint16_t> copy;
  mgrpo_adamw_config still = kConfig;
  still.lr = 0;
  ASSERT_EQ(run(backend(), s, {1, 1, 1, 1}, still, 1, &copy), MGRPO_OK);
  EXPECT_EQ(copy, (std::vector<uint16_t>{0x3F80, 0x3F82, 0xC040, 0x0000}));
}

TEST_P(AdamW, NoClippingWithoutMaxNorm) {
  State clipped = zeros(10, 7), free = clipped;
  mgrpo_adamw_config config = kConfig;
  run(backend(), clipped, std::vector<float>(10, 100.0f), config, 1);
  config.max_norm = 0;
  run(backend(), free, std::vector<float>(10, 100.0f), config, 1);
  EXPECT_EQ(free.m[0], 0.1f * 100.0f);
  EXPECT_LT(clipped.m[0], 0.04f);
}

TEST_P(AdamW, RejectsImpossibleSettings) {
  for (auto edit : std::vector<void (*)(mgrpo_adamw_config &)>{
           [](mgrpo_adamw_config &c) { c.step = 0; }, [](mgrpo_adamw_config &c) { c.beta1 = 1; }, [](mgrpo_adamw_config &c) { c.eps = 0; },
           [](mgrpo_adamw_config &c) { c.lr = -1; }, [](mgrpo_adamw_config &c) { c.max_norm = kNaN; }}) {
    State s = zeros(4, 1);
    mgrpo_adamw_config config = kConfig;
    edit(config);
    EXPECT_EQ(run(backend(), s, {1, 1, 1, 1}, config, 1), MGRPO_INVALID_ARGUMENT);
  }
}

TEST_P(AdamW, EmptyBuffers) {
  double norm = -1;
  EXPECT_EQ(backend().grad_norm(nullptr, 0, &norm), MGRPO_OK);
  EXPECT_EQ(norm, 0);
  EXPECT_EQ(backend().adamw(nullptr, nullptr, nullptr, nullptr, nullptr, 0, 0, &kConfig), MGRPO_OK);
}

TEST_P(AdamW, NormOfManyBlocks) {
  const auto gradient = cast<float>(normals(300001, 8));
  long double want = 0;
  for (float g : gradient) want += static_cast<long double>(g) * g;
  Buffer<float> g(backend(), gradient);
  double norm;
  ASSERT_EQ(backend().grad_norm(g.get(), static_cast<int64_t>(gradient.size()), &norm), MGRPO_OK);
  EXPECT_NEAR(norm, static_cast<double>(std::sqrt(want)), 1e-11);
}

// Covers fewer elements than one load, slightly more than one block, and unaligned parts of tensors.
TEST_P(AdamW, NormOfAnySize) {
  const auto gradient = cast<float>(normals(70001, 11));
  Buffer<float> g(backend(), gradient);
  for (const size_t n : {1u, 3u, 5u, 1023u, 16383u, 16384u, 16387u, 65537u}) {
    for (const size_t first : {0u, 4u, 1u, 2u, 3u}) {
      long double want = 0;
      for (size_t i = 0; i < n; i++) want += static_cast<long double>(gradient[first + i]) * gradient[first + i];
      double norm = -1;
      ASSERT_EQ(backend().grad_norm(g.get() + first, static_cast<int64_t>(n), &norm), MGRPO_OK);
      EXPECT_NEAR(norm, static_cast<double>(std::sqrt(want)), 1e-11) << n << " elements from " << first;
    }
  }
}

TEST_P(AdamW, NormOfNaNAndInfinity) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0u, 20000u, 20004u}) {
      std::vector<float> gradient(20005, 1);
      gradient[at] = bad;
      Buffer<float> g(backend(), gradient);
      double norm = 0;
      ASSERT_EQ(backend().grad_norm(g.get(), 20005, &norm), MGRPO_OK);
      EXPECT_FALSE(std::isfinite(norm)) << at;
    }
  }
}

TEST(AdamWThreads, SameBits) {
  const size_t n = 300001;
  const auto gradient = cast<float>(normals(n, 9));
  State one = zeros(n, 10), four = one;
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  run(cpu(), one, gradient, kConfig, 2);
  omp_set_num_threads(4);
  run(cpu(), four, gradient, kConfig, 2);
  omp_set_num_threads(before);
  EXPECT_EQ(one.p, four.p);
  EXPECT_EQ(one.v, four.v);
}

}  // namespace
