#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace conformance;
using namespace nn_testing;

namespace {

constexpr double kTolerance = 4 * kEpsilon;  // of |x[i]| + |x[i + hd/2]|

class Rope : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Rope);

struct Case {
  int64_t heads, hd, rotary;
};
const Case kCases[] = {{1, 2, 2}, {3, 6, 6}, {4, 16, 16}, {2, 24, 24}, {9, 64, 64}, {2, 128, 128}, {3, 16, 12}, {2, 96, 32}, {1, 5, 4}, {2, 7, 2}};
constexpr int64_t kMaxPos = 50;

struct Tables {
  Floats cos, sin;
};

Tables tables(int64_t rotary) {
  Tables t;
  for (int64_t p = 0; p < kMaxPos; p++)
    for (int64_t i = 0; i < rotary / 2; i++) {
      const double angle = p * std::pow(10000.0, -2.0 * i / rotary);
      t.cos.push_back(static_cast<float>(std::cos(angle)));
      t.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  return t;
}

// Rotates x [rows of pos, heads, hd].
Floats rope(const Backend &b, const Floats &x, const Tables &t, const Ints &pos, int64_t hd, bool inverse = false,
            int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  const int64_t rows = static_cast<int64_t>(pos.size()), n = static_cast<int64_t>(x.size());
  const int64_t rotary = static_cast<int64_t>(t.cos.size()) / kMaxPos * 2;
  Array X(b, dtype, x, aligned), y(b, dtype, n, aligned);
  Buffer<float> c(b, t.cos), s(b, t.sin);
  Buffer<int32_t> p(b, pos);
  EXPECT_EQ(b.rope(X.get(), c.get(), s.get(), p.get(), dtype, y.get(), rows, n / rows / hd, hd, rotary, kMaxPos, inverse), MGRPO_OK);
  EXPECT_EQ(b.rope(X.get(), c.get(), s.get(), p.get(), dtype, X.get(), rows, n / rows / hd, hd, rotary, kMaxPos, inverse), MGRPO_OK);
  EXPECT_TRUE(same_bits(X.values(), y.values())) << "in place";
  return y.values();
}

TEST_P(Rope, RotatesPairsByThePositionsAngle) {
  const Ints pos{0, 49, 3, 3, 17};
  const int64_t rows = static_cast<int64_t>(pos.size());
  for (auto [heads, hd, rotary] : kCases) {
    const Tables t = tables(rotary);
    const Floats x = normal(rows * heads * hd, 1), y = rope(backend(), x, t, pos, hd);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t h = 0; h < heads; h++) {
        const int64_t head = (r * heads + h) * hd;
        EXPECT_TRUE(same_bits(part(y, head + rotary, hd - rotary), part(x, head + rotary, hd - rotary)));
        for (int64_t i = 0; i < rotary / 2; i++) {
          const int64_t at = head + i;
          const double a = x[at], b = x[at + rotary / 2];
          const double c = t.cos[pos[r] * rotary / 2 + i], s = t.sin[pos[r] * rotary / 2 + i];
          const double bound = kTolerance * (std::fabs(a) + std::fabs(b));
          ASSERT_NEAR(y[at], a * c - b * s, bound);
          ASSERT_NEAR(y[at + rotary / 2], b * c + a * s, bound);
        }
      }
    EXPECT_TRUE(close_to(rope(backend(), y, t, pos, hd, true), doubles(x), 0, 32 * kEpsilon));
  }
}

TEST_P(Rope, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 900, heads = 9, hd = 64, row = heads * hd;
  const Tables t = tables(hd);
  const Floats x = normal(rows * row, 2);
  Ints pos;
  for (int64_t r = 0; r < rows; r++) pos.push_back(static_cast<int32_t>(r * 7 % kMaxPos));
  Floats all;
  with_threads(3, [&] { all = rope(backend(), x, t, pos, hd); });
  for (int64_t r : {0, 299, 300, 899})
    EXPECT_TRUE(same_bits(rope(backend(), part(x, r * row, row), t, {pos[r]}, hd, false, MGRPO_FLOAT32, true), part(all, r * row, row)));
}

TEST_P(Rope, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 alone";
  for (auto [heads, hd, rotary] : kCases)
    for (bool aligned : {false, true}) {
      const Tables t = tables(rotary);
      const Ints pos{7, 49, 0};
      const Floats x = rounded_to_bf16(normal(3 * heads * hd, 3));
      EXPECT_TRUE(same_bits(rope(backend(), x, t, pos, hd, false, MGRPO_BFLOAT16, aligned), rounded_to_bf16(rope(backend(), x, t, pos, hd))));
    }
}

TEST_P(Rope, EmptyAndInvalid) {
  const Tables t = tables(4);
  Array x(backend(), MGRPO_FLOAT32, normal(8, 4)), y(backend(), MGRPO_FLOAT32, 8);
  Buffer<float> c(backend(), t.cos), s(backend(), t.sin);
  const auto run = [&](Ints pos, int64_t heads, int64_t hd, int64_t max_pos = kMaxPos, int64_t rotary = 4) {
    Buffer<int32_t> p(backend(), pos);
    return backend().rope(x.get(), c.get(), s.get(), p.get(), MGRPO_FLOAT32, y.get(), static_cast<int64_t>(pos.size()), heads, hd, rotary,
                          max_pos, 0);
  };
  EXPECT_EQ(run({}, 1, 4), MGRPO_OK);
  EXPECT_EQ(run({0}, 1, 4, kMaxPos, 3), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, 1, 4, kMaxPos, -2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, 1, 4, kMaxPos, 6), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, -1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, int64_t{1} << 58, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, 1, 4, int64_t{1} << 58), MGRPO_INVALID_ARGUMENT);
  Buffer<int32_t> zero(backend(), Ints{0});
  EXPECT_EQ(backend().rope(x.get(), c.get(), nullptr, zero.get(), MGRPO_FLOAT32, y.get(), 1, 1, 4, 4, kMaxPos, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(y.unwritten());
}

TEST_P(Rope, PositionOutsideTheTable) {
  const Tables t = tables(4);
  const Floats x = normal(8, 5);
  for (int32_t outside : {-1, 50, INT32_MAX, INT32_MIN}) {
    Array X(backend(), MGRPO_FLOAT32, x), y(backend(), MGRPO_FLOAT32, 8);
    Buffer<float> c(backend(), t.cos), s(backend(), t.sin);
    Buffer<int32_t> pos(backend(), Ints{3, outside});
    const int32_t status = backend().rope(X.get(), c.get(), s.get(), pos.get(), MGRPO_FLOAT32, y.get(), 2, 1, 4, 4, kMaxPos, 0);
    if (backend().refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(y.unwritten());
      continue;
    }
    ASSERT_EQ(status, MGRPO_OK);
    EXPECT_TRUE(same_bits(part(y.values(), 0, 4), rope(backend(), part(x, 0, 4), t, {3}, 4)));
    for (float v : part(y.values(), 4, 4)) EXPECT_TRUE(std::isnan(v));
  }
}

}  // namespace
