#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

constexpr double kTolerance = 4 * kEpsilon;  // of |x[i]| + |x[i + hd/2]|

struct Case {
  int64_t heads, hd;
};
const Case kCases[] = {{1, 2}, {3, 6}, {4, 16}, {2, 24}, {9, 64}, {2, 128}};
constexpr int64_t kMaxPos = 50;

struct Tables {
  Floats cos, sin;
};

Tables tables(int64_t hd) {
  Tables t;
  for (int64_t p = 0; p < kMaxPos; p++)
    for (int64_t i = 0; i < hd / 2; i++) {
      const double angle = p * std::pow(10000.0, -2.0 * i / hd);
      t.cos.push_back(static_cast<float>(std::cos(angle)));
      t.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  return t;
}

TEST(Rope, RotatesPairsByThePositionsAngle) {
  const Ints pos{0, 49, 3, 3, 17};
  const int64_t rows = static_cast<int64_t>(pos.size());
  for (auto [heads, hd] : kCases) {
    const Tables t = tables(hd);
    const Floats x = normal(rows * heads * hd, 1);
    Guarded y(rows * heads * hd);
    ASSERT_EQ(mgrpo_rope_cpu(x.data(), t.cos.data(), t.sin.data(), pos.data(), y.begin(), rows, heads, hd, kMaxPos, 0),
              MGRPO_OK);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < hd / 2; i++) {
          const int64_t at = (r * heads + h) * hd + i;
          const double a = x[at], b = x[at + hd / 2];
          const double c = t.cos[pos[r] * hd / 2 + i], s = t.sin[pos[r] * hd / 2 + i];
          const double bound = kTolerance * (std::fabs(a) + std::fabs(b));
          ASSERT_NEAR(y[at], a * c - b * s, bound);
          ASSERT_NEAR(y[at + hd / 2], b * c + a * s, bound);
        }
    Guarded in_place(x);
    mgrpo_rope_cpu(in_place.begin(), t.cos.data(), t.sin.data(), pos.data(), in_place.begin(), rows, heads, hd,
                   kMaxPos, 0);
    EXPECT_TRUE(same_bits(in_place.begin(), y.begin(), rows * heads * hd));
    Guarded back(rows * heads * hd);
    mgrpo_rope_cpu(y.begin(), t.cos.data(), t.sin.data(), pos.data(), back.begin(), rows, heads, hd, kMaxPos, 1);
    EXPECT_TRUE(close_to(back.values(), std::vector<double>(x.begin(), x.end()), 0, 32 * kEpsilon));
  }
}

TEST(Rope, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 900, heads = 9, hd = 64, row = heads * hd;
  const Tables t = tables(hd);
  const Floats x = normal(rows * row, 2);
  Ints pos;
  for (int64_t r = 0; r < rows; r++) pos.push_back(static_cast<int32_t>(r * 7 % kMaxPos));
  Guarded all(rows * row), one(row);
  with_threads(3, [&] {
    mgrpo_rope_cpu(x.data(), t.cos.data(), t.sin.data(), pos.data(), all.begin(), rows, heads, hd, kMaxPos, 0);
  });
  for (int64_t r : {0, 299, 300, 899}) {
    mgrpo_rope_cpu(&x[r * row], t.cos.data(), t.sin.data(), &pos[r], one.begin(), 1, heads, hd, kMaxPos, 0);
    EXPECT_TRUE(same_bits(one.begin(), all.begin() + r * row, row));
  }
}

TEST(Rope, EmptyAndInvalid) {
  const Tables t = tables(4);
  const Floats x = normal(8, 3);
  Guarded y(8);
  const auto run = [&](Ints pos, int64_t heads, int64_t hd) {
    return mgrpo_rope_cpu(x.data(), t.cos.data(), t.sin.data(), pos.data(), y.begin(),
                          static_cast<int64_t>(pos.size()), heads, hd, kMaxPos, 0);
  };
  EXPECT_EQ(run({}, 1, 4), MGRPO_OK);
  EXPECT_EQ(run({0, 50}, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({-1, 0}, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, 1, 3), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run({0}, -1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_rope_cpu(x.data(), t.cos.data(), nullptr, Ints{0}.data(), y.begin(), 1, 1, 4, kMaxPos, 0),
            MGRPO_INVALID_ARGUMENT);
  for (float v : y.values()) EXPECT_TRUE(std::isnan(v)) << "written in spite of the error";
}

}  // namespace
