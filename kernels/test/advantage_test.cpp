#include <omp.h>

#include <functional>

#include "backend.h"

namespace {
using namespace conformance;

const mgrpo_convention kPaper{MGRPO_STD_POPULATION, MGRPO_BASELINE_MEAN, 0, 1e-6};

struct Groups {
  std::vector<double> rewards, weights;
  std::vector<int64_t> offsets{0};

  void add(std::vector<double> r, std::vector<double> w = {}) {
    if (w.empty()) w.assign(r.size(), 1);
    rewards.insert(rewards.end(), r.begin(), r.end());
    weights.insert(weights.end(), w.begin(), w.end());
    offsets.push_back(static_cast<int64_t>(rewards.size()));
  }
  size_t count() const { return offsets.size() - 1; }
};

template <class T>
struct ResultOf {
  int32_t status;
  std::vector<T> advantages;
  std::vector<mgrpo_group_stats> stats;
  mgrpo_advantage_error error;
};
using Result = ResultOf<double>;

// Runs the kernel. If `weighted` is false, the weights are null; all weights of the input must then be 1.
template <class T = double>
ResultOf<T> run(const Backend &b, const Groups &in, const mgrpo_convention &convention = kPaper, bool weighted = true) {
  Buffer<T> rewards(b, cast<T>(in.rewards)), advantages(b, in.rewards.size());
  Buffer<double> weights(b, in.weights);
  Buffer<int64_t> offsets(b, in.offsets);
  Buffer<mgrpo_group_stats> stats(b, std::vector<mgrpo_group_stats>(in.count()));
  ResultOf<T> r;
  const int32_t dtype = std::is_same_v<T, float> ? MGRPO_FLOAT32 : MGRPO_FLOAT64;
  r.status = b.group_advantage(rewards.get(), dtype, weighted ? weights.get() : nullptr, offsets.get(), static_cast<int64_t>(in.count()),
                               &convention, advantages.get(), stats.get(), &r.error);
  r.advantages = advantages.values();
  r.stats = stats.values();
  return r;
}

// Computes the definition in long double. A member of weight n counts as n members.
std::vector<double> oracle(const std::vector<double> &rewards, const std::vector<double> &weights) {
  long double w = 0, mean = 0, variance = 0;
  for (size_t i = 0; i < rewards.size(); i++) w += weights[i], mean += static_cast<long double>(weights[i]) * rewards[i];
  mean /= w;
  for (size_t i = 0; i < rewards.size(); i++) variance += weights[i] * (rewards[i] - mean) * (rewards[i] - mean);
  const long double sigma = std::sqrt(variance / w);
  std::vector<double> out;
  for (size_t i = 0; i < rewards.size(); i++)
    out.push_back(weights[i] == 0 || sigma < 1e-6L ? 0 : static_cast<double>((rewards[i] - mean) / sigma));
  return out;
}

class Advantage : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Advantage);

TEST_P(Advantage, RaggedGroupsMatchTheDefinition) {
  Groups in;
  std::vector<double> want;
  std::mt19937 generator(1);
  for (unsigned g = 0; g < 300; g++) {
    const size_t n = 1 + generator() % 40;
    auto rewards = normals(n, g);
    std::vector<double> weights;
    for (size_t i = 0; i < n; i++) weights.push_back(static_cast<double>(generator() % 4));
    weights[0] = 1;
    const auto expected = oracle(rewards, weights);
    want.insert(want.end(), expected.begin(), expected.end());
    in.add(rewards, weights);
  }
  const Result r = run(backend(), in);
  ASSERT_EQ(r.status, MGRPO_OK);
  expect_near(r.advantages, want, 1e-9, "advantage");
}

TEST_P(Advantage, EmptySingletonAndIdenticalGroups) {
  Groups in;
  in.add({});
  in.add({0.7});
  in.add({0.1, 0.1, 0.1});
  in.add({1, 5, 1}, {1, 0, 2});
  in.add({3, 4}, {0, 0});
  in.add({0, 1});
  const Result r = run(backend(), in);
  ASSERT_EQ(r.status, MGRPO_OK);
  const std::vector<double> want{0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 1};
  EXPECT_EQ(r.advantages, want);
  const int degenerate[] = {0, 1, 1, 1, 0, 0}, empty[] = {1, 0, 0, 0, 1, 0};
  for (size_t g = 0; g < in.count(); g++) {
    EXPECT_EQ(r.stats[g].degenerate, degenerate[g]) << g;
    EXPECT_EQ(r.stats[g].empty, empty[g]) << g;
  }
  EXPECT_EQ(r.stats[3].mean, 1);
  EXPECT_EQ(r.stats[3].weight_sum, 3);
}

TEST_P(Advantage, NoGroupsAtAll) { EXPECT_EQ(run(backend(), Groups{}).status, MGRPO_OK); }

TEST_P(Advantage, SmallDeviationsSurviveALargeMean) {
  Groups in;
  in.add({1e8, -1e8, 1, 0, 0, 0, 0});
  in.add({1e8 + 1, 1e8 - 1});
  const Result r = run(backend(), in);
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_NEAR(r.stats[0].mean, 1.0 / 7, 1e-12);
  EXPECT_NEAR(r.advantages[7], 1, 1e-9);
}

TEST_P(Advantage, MultiplicityEqualsCopies) {
  Groups weighted, copied;
  weighted.add({1, 0, 0.5}, {2, 1, 1});
  copied.add({1, 1, 0, 0.5});
  for (const mgrpo_convention &c : {kPaper, mgrpo_convention{MGRPO_STD_SAMPLE, MGRPO_BASELINE_MEAN, 1e-6, 0},
                                    mgrpo_convention{MGRPO_STD_NONE, MGRPO_BASELINE_LEAVE_ONE_OUT, 0, 0}}) {
    const Result a = run(backend(), weighted, c), b = run(backend(), copied, c);
    EXPECT_NEAR(a.advantages[0], b.advantages[0], 1e-14);
    EXPECT_NEAR(a.advantages[1], b.advantages[2], 1e-14);
    EXPECT_NEAR(a.advantages[2], b.advantages[3], 1e-14);
  }
}

const mgrpo_convention kConventions[]{kPaper,
                                      {MGRPO_STD_POPULATION, MGRPO_BASELINE_MEAN, 1e-4, 0},
                                      {MGRPO_STD_POPULATION, MGRPO_BASELINE_LEAVE_ONE_OUT, 0, 0.3},
                                      {MGRPO_STD_SAMPLE, MGRPO_BASELINE_MEAN, 1e-6, 0},
                                      {MGRPO_STD_SAMPLE, MGRPO_BASELINE_LEAVE_ONE_OUT, 1e-6, 1e-6},
                                      {MGRPO_STD_NONE, MGRPO_BASELINE_MEAN, 0, 1e-6},
                                      {MGRPO_STD_NONE, MGRPO_BASELINE_LEAVE_ONE_OUT, 0, 0},
                                      {MGRPO_STD_SAMPLE, MGRPO_BASELINE_LEAVE_ONE_OUT_STD, 1e-6, 0}};

// Rewards that differ only by rounding are equal under every convention, e.g. partial credits summed in another order.
template <class T>
void expect_equal_rewards(const Backend &b, const mgrpo_convention &c, const std::vector<double> &rewards) {
  Groups in;
  in.add({0, 1, 0, 1});
  in.add(rewards);
  in.add({0, 1, 1});
  in.add(rewards, std::vector<double>(rewards.size(), 1));
  in.add({1, 0});
  for (bool weighted : {false, true}) {
    const ResultOf<T> r = run<T>(b, in, c, weighted);
    ASSERT_EQ(r.status, MGRPO_OK);
    for (size_t g : {1, 3}) {
      EXPECT_EQ(r.stats[g].degenerate, 1);
      EXPECT_EQ(r.stats[g].std_population, 0);
      EXPECT_NEAR(r.stats[g].mean, rewards[0], 1e-6 * std::abs(rewards[0]));
      for (int64_t i = in.offsets[g]; i < in.offsets[g + 1]; i++) EXPECT_EQ(r.advantages[i], 0) << rewards[0] << " " << i;
    }
    EXPECT_EQ(r.stats[0].degenerate + r.stats[2].degenerate + r.stats[4].degenerate, 0);
  }
}

TEST_P(Advantage, RoundingHasNoSpread) {
  const double a = 0.1 + 0.2, b = 0.3;  // neighbouring numbers
  const double tenth = 0.1, sum = tenth + tenth + tenth + tenth + tenth + tenth + tenth + tenth + tenth + tenth;
  for (const mgrpo_convention &c : kConventions) {
    SCOPED_TRACE(testing::Message() << c.std << " " << c.baseline);
    for (double scale : {1.0, 1e-12, 1e12, -1.0, 1e-200})
      for (const std::vector<double> &rewards : {std::vector<double>{a, b}, {b, a, b, a, a}, {sum, 1, 1}, {-a, -b, -a}}) {
        std::vector<double> scaled;
        for (double r : rewards) scaled.push_back(r * scale);
        expect_equal_rewards<double>(backend(), c, scaled);
      }
    expect_equal_rewards<float>(backend(), c, {0.1f, std::nextafter(0.1f, 1.0f), 0.1f});
  }
}

// Small rewards have a spread, and large rewards have one if they differ by a few thousand units in the last place.
TEST_P(Advantage, SmallSpreadsAreNotRounding) {
  for (const mgrpo_convention &c : kConventions) {
    if (c.sigma_min > 0 || c.eps > 0) continue;
    for (const std::vector<double> &rewards :
         {std::vector<double>{1e-100, 2e-100}, {1, 1 + 1e-11}, {-1e9, -1e9 - 1e-2}, {1e-15, 0, 1e-15}}) {
      Groups in;
      in.add(rewards);
      const Result r = run(backend(), in, c);
      ASSERT_EQ(r.status, MGRPO_OK);
      EXPECT_EQ(r.stats[0].degenerate, 0);
      EXPECT_NE(r.advantages[0], 0);
    }
  }
}

// Nine weights of 1/9 are one unit, although their float64 sum is more than 1.
TEST_P(Advantage, OneUnitOfWeightIsDegenerate) {
  const mgrpo_convention leave_one_out{MGRPO_STD_NONE, MGRPO_BASELINE_LEAVE_ONE_OUT, 0, 0},
      sample{MGRPO_STD_SAMPLE, MGRPO_BASELINE_MEAN, 1e-4, 0};
  for (const mgrpo_convention &c : {leave_one_out, sample})
    for (size_t n : {3, 8, 9, 11, 18, 21, 25, 100}) {
      Groups in;
      std::vector<double> rewards(n);
      rewards[0] = 1;
      const double weight = 1.0 / static_cast<double>(n);
      for (int g = 0; g < 3; g++) {
        in.add(rewards, std::vector<double>(n, weight));
        in.add(rewards, std::vector<double>(n, static_cast<float>(weight)));
      }
      const Result r = run(backend(), in, c);
      ASSERT_EQ(r.status, MGRPO_OK);
      for (const mgrpo_group_stats &s : r.stats) EXPECT_EQ(s.degenerate, 1) << n;
      for (double a : r.advantages) EXPECT_EQ(a, 0) << n;
    }
}

TEST_P(Advantage, LeaveOneOutStdDividesByNoRounding) {
  const mgrpo_convention convention{MGRPO_STD_SAMPLE, MGRPO_BASELINE_LEAVE_ONE_OUT_STD, 1e-6, 0};
  Groups in;
  in.add({0.6, 0.3, 0.1 + 0.2, 0.3});
  in.add({0.6, 0.3, 0.3, 0.3});
  in.add({1, 1e-17, 0, 0});  // 1e-17 is equal to 0 in a group with rewards of 1
  const Result r = run(backend(), in, convention);
  ASSERT_EQ(r.status, MGRPO_OK);
  EXPECT_NEAR(r.advantages[0], 0.3, 1e-15);
  for (size_t i = 0; i < 4; i++) EXPECT_NEAR(r.advantages[i], r.advantages[4 + i], 1e-12) << i;
  EXPECT_NEAR(r.advantages[8], 1, 1e-15);
}

TEST_P(Advantage, LeaveOneOutStdDividesByTheOthers) {
  Groups in;
  in.add({1, 0, 0, 1});
  in.add({1, 0, 0, 0});
  in.add({1, 0});
  const Result r = run(backend(), in, {MGRPO_STD_SAMPLE, MGRPO_BASELINE_LEAVE_ONE_OUT_STD, 1e-6, 0});
  ASSERT_EQ(r.status, MGRPO_OK);
  const double s = std::sqrt(1.0 / 3), a = (2.0 / 3) / (s + 1e-6), b = (1.0 / 3) / (s + 1e-6);
  expect_near(r.advantages, {a, -a, -a, a, 1, -b, -b, -b, 1, -1}, 1e-12, "advantage");
}

TEST_P(Advantage, RefusalsNameTheFirstMember) {
  const auto refused = [&](std::vector<double> rewards, std::vector<double> weights, const mgrpo_convention &c = kPaper) {
    Groups in;
    in.add({0, 1});
    in.add(rewards, weights);
    in.add({kNaN});
    return run(backend(), in, c);
  };
  for (const auto &[rewards, weights, code, index] : std::vector<std::tuple<std::vector<double>, std::vector<double>, int32_t, int64_t>>{
           {{0, kInf, kNaN}, {}, MGRPO_ADVANTAGE_NON_FINITE_REWARD, 1},
           {{0, 1, kNaN}, {1, 1, 0}, MGRPO_ADVANTAGE_NON_FINITE_REWARD, 2},
           {{0, 1}, {1, -1}, MGRPO_ADVANTAGE_BAD_WEIGHT, 1},
           {{0, 1}, {kNaN, 1}, MGRPO_ADVANTAGE_BAD_WEIGHT, 0},
           {{1e308, -1e308}, {}, MGRPO_ADVANTAGE_NON_FINITE_VALUE, -1}}) {
    const Result r = refused(rewards, weights);
    EXPECT_EQ(r.status, MGRPO_REFUSED);
    EXPECT_EQ(r.error.code, code);
    EXPECT_EQ(r.error.group, 1);
    EXPECT_EQ(r.error.index, index);
  }
  const Result two = refused({0, 1}, {2, 1}, {MGRPO_STD_SAMPLE, MGRPO_BASELINE_LEAVE_ONE_OUT_STD, 1e-6, 0});
  EXPECT_EQ(two.error.code, MGRPO_ADVANTAGE_BAD_WEIGHT);
}

// Returns groups of 0 to 70 members: identical, all 0 or 1, with sums that lose small terms, near the limits of the range, and identical
// with an infinite sum. If `weighted`, some members and some whole groups have weight 0. If `unit`, the weights are 0 or 1.
Groups all_kinds(unsigned groups, bool weighted, bool unit, double largest) {
  Groups in;
  std::mt19937 generator(9);
  for (unsigned g = 0; g < groups; g++) {
    const size_t n = generator() % (g % 5 ? 17 : 71);
    auto rewards = normals(n, g, g % 11 == 3 ? 1e18 : g % 11 == 4 ? 1e-30 : 1);
    for (double &r : rewards) {
      if (g % 7 == 1) r = g % 3 == 0 ? largest : 0.1;
      if (g % 7 == 2) r = r > 0;
      if (g % 7 == 3) r = std::round(r) * 1e12 + r;
    }
    std::vector<double> weights(n, 1);
    for (double &w : weights)
      if (weighted) w = g % 13 == 5 ? 0 : generator() % (unit ? 2 : 4);
    in.add(rewards, weights);
  }
  return in;
}

template <class T>
void expect_same_alone(const Backend &b, const Groups &all, const mgrpo_convention &c, bool weighted) {
  const ResultOf<T> together = run<T>(b, all, c, weighted);
  ASSERT_EQ(together.status, MGRPO_OK);
  for (size_t g = 0; g < all.count(); g += &b == &cpu() ? 1 : 41) {
    const auto from = all.offsets[g], to = all.offsets[g + 1];
    Groups one;
    one.add({all.rewards.begin() + from, all.rewards.begin() + to}, {all.weights.begin() + from, all.weights.begin() + to});
    const ResultOf<T> alone = run<T>(b, one, c, weighted);
    ASSERT_EQ(alone.status, MGRPO_OK);
    ASSERT_TRUE(from == to || std::memcmp(alone.advantages.data(), together.advantages.data() + from, sizeof(T) * (to - from)) == 0) << g;
    const mgrpo_group_stats &a = alone.stats[0], &t = together.stats[g];
    ASSERT_EQ(std::make_tuple(a.mean, a.std_population, a.weight_sum, a.degenerate, a.empty),
              std::make_tuple(t.mean, t.std_population, t.weight_sum, t.degenerate, t.empty))
        << g;
  }
}

TEST_P(Advantage, AGroupsBitsDoNotDependOnTheOthers) {
  for (const mgrpo_convention &c : kConventions)
    for (bool weighted : {false, true}) {
      SCOPED_TRACE(testing::Message() << c.std << " " << c.baseline << (weighted ? " weighted" : ""));
      const auto all = [&](double largest) {
        return all_kinds(backend().is_emulated ? 100 : 1500, weighted, c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD, largest);
      };
      expect_same_alone<double>(backend(), all(std::numeric_limits<double>::max()), c, weighted);
      expect_same_alone<float>(backend(), all(std::numeric_limits<float>::max()), c, weighted);
    }
}

// A GPU gives up to 256 members to eight lanes and more to a warp. Groups of both kinds are neighbours here.
TEST_P(Advantage, LargeGroupsAmongSmallOnes) {
  Groups in;
  std::vector<double> want;
  for (size_t n : {257, 3, 1000, 255, 256, 0, 5, 257, 1000}) {
    const auto rewards = normals(n, static_cast<unsigned>(in.count()));
    const std::vector<double> weights(n, 1), expected = n > 0 ? oracle(rewards, weights) : rewards;
    want.insert(want.end(), expected.begin(), expected.end());
    in.add(rewards);
  }
  const Result r = run(backend(), in);
  ASSERT_EQ(r.status, MGRPO_OK);
  expect_near(r.advantages, want, 1e-9, "advantage");
  for (size_t g = 0; g < in.count(); g++) EXPECT_EQ(r.stats[g].weight_sum, static_cast<double>(in.offsets[g + 1] - in.offsets[g])) << g;
}

// Returns the sum of the squares in the order of so many lanes: strided shares, then a tree.
double sum_of_squares(const std::vector<double> &values, size_t lanes) {
  std::vector<double> sums(lanes);
  for (size_t i = 0; i < values.size(); i++) sums[i % lanes] += values[i] * values[i];
  for (size_t by = lanes / 2; by > 0; by /= 2)
    for (size_t i = 0; i < by; i++) sums[i] += sums[i + by];
  return sums[0];
}

// A lane that has a large square loses the small ones, so the sum shows the number of lanes. A CPU has one.
TEST_P(Advantage, LanesDependOnTheNumberOfMembers) {
  const auto sigma = [&](const std::vector<double> &rewards) {
    const size_t lanes = &backend() == &cpu() ? 1 : rewards.size() > 256 ? 32 : 8;
    return std::sqrt(sum_of_squares(rewards, lanes) / static_cast<double>(rewards.size()));
  };
  Groups in;
  for (size_t n : {255, 256, 257, 1000}) {
    std::vector<double> rewards(n);  // with mean 0
    for (size_t i = 0; i < n / 2 * 2; i++) rewards[i] = (i < 8 ? 0x1p27 : 1.25) * (i % 2 == 0 ? 1 : -1);
    ASSERT_NE(sum_of_squares(rewards, 8), sum_of_squares(rewards, 32)) << n;
    in.add(rewards);
  }
  const Result r = run(backend(), in);
  ASSERT_EQ(r.status, MGRPO_OK);
  for (size_t g = 0; g < in.count(); g++) {
    const std::vector<double> rewards(in.rewards.begin() + in.offsets[g], in.rewards.begin() + in.offsets[g + 1]);
    EXPECT_EQ(r.stats[g].mean, 0) << rewards.size();
    EXPECT_EQ(r.stats[g].std_population, sigma(rewards)) << rewards.size();
  }
}

// The first invalid group is named, also if several blocks of groups have one.
TEST_P(Advantage, RefusalsAmongManyNameTheFirst) {
  MGRPO_SKIP_EMULATED();
  const double tiny = std::numeric_limits<double>::denorm_min();
  for (size_t bad : {0, 1023, 1024, 2005}) {
    for (const auto &[rewards, weights, code, convention] :
         std::vector<std::tuple<std::vector<double>, std::vector<double>, int32_t, mgrpo_convention>>{
             {{0, 1, kNaN}, {1, 1, 1}, MGRPO_ADVANTAGE_NON_FINITE_REWARD, kPaper},
             {{kInf, kInf, kInf}, {1, 1, 1}, MGRPO_ADVANTAGE_NON_FINITE_REWARD, kPaper},
             {{0, -kInf, kInf}, {1, 0, 0}, MGRPO_ADVANTAGE_NON_FINITE_REWARD, kPaper},
             {{0, 1, 2}, {1, -1, 3}, MGRPO_ADVANTAGE_BAD_WEIGHT, kPaper},
             {{0, 1, 2}, {1, kInf, 1}, MGRPO_ADVANTAGE_BAD_WEIGHT, kPaper},
             {{1e308, -1e308, 1e308}, {1, 1, 1}, MGRPO_ADVANTAGE_NON_FINITE_VALUE, kPaper},
             {{0, tiny, 0}, {1, 1, 1}, MGRPO_ADVANTAGE_NON_FINITE_VALUE, {MGRPO_STD_POPULATION, MGRPO_BASELINE_MEAN, 0, 0}}}) {
      Groups in;
      for (unsigned g = 0; g < 5000; g++)
        if (g == bad || g == bad + 1 || g == 4000)
          in.add(rewards, weights);
        else
          in.add(normals(1 + g % 9, g));
      const Result r = run(backend(), in, convention);
      EXPECT_EQ(r.status, MGRPO_REFUSED) << code;
      EXPECT_EQ(r.error.code, code);
      EXPECT_EQ(r.error.group, static_cast<int64_t>(bad));
    }
  }
}

TEST(AdvantageThreads, SameBits) {
  Groups in;
  for (unsigned g = 0; g < 5000; g++) in.add(normals(8 + g % 5, g));
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Result one = run(cpu(), in);
  omp_set_num_threads(4);
  const Result four = run(cpu(), in);
  omp_set_num_threads(before);
  EXPECT_EQ(one.advantages, four.advantages);
}

TEST_P(Advantage, Float32ReadsAndWritesFloat32WithFloat64Sums) {
  const std::vector<double> rewards = normals(64, 3);
  Buffer<float> in(backend(), cast<float>(rewards)), out(backend(), 64);
  Buffer<int64_t> offsets(backend(), std::vector<int64_t>{0, 64});
  Buffer<mgrpo_group_stats> stats(backend(), std::vector<mgrpo_group_stats>(1));
  mgrpo_advantage_error error;
  EXPECT_EQ(backend().group_advantage(in.get(), MGRPO_BFLOAT16, nullptr, offsets.get(), 1, &kPaper, out.get(), stats.get(), &error),
            MGRPO_INVALID_ARGUMENT);
  ASSERT_EQ(backend().group_advantage(in.get(), MGRPO_FLOAT32, nullptr, offsets.get(), 1, &kPaper, out.get(), stats.get(), &error),
            MGRPO_OK);
  expect_near(out.values(), oracle(cast<double>(cast<float>(rewards)), std::vector<double>(64, 1)), 1e-6, "advantage");
}

}  // namespace
