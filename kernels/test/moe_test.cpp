#include "mgrpo/moe.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "layer_testing.h"
#include "mgrpo/linear.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kTolerance = 32 * kEpsilon;

class Moe : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Moe);

struct Choice {
  Ints expert;
  Floats weight;
  Ints differs;  // if requested
};

Choice route(const Backend &b, const Floats &logits, int64_t experts, int64_t k, bool normalise, const Ints *given = nullptr) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / experts;
  Buffer<float> z(b, logits), weight(b, tokens * k);
  Buffer<int32_t> fixed(b, given != nullptr ? *given : Ints{}), expert(b, tokens * k), differs(b, given != nullptr ? tokens : 0);
  EXPECT_EQ(b.moe_route(z.get(), given != nullptr ? fixed.get() : nullptr, expert.get(), weight.get(),
                        given != nullptr ? differs.get() : nullptr, tokens, experts, k, normalise),
            MGRPO_OK);
  return {expert.values(), weight.values(), differs.values()};
}

// Returns the k largest in descending order, ties by index, directly from the definition.
Ints largest(const float *logits, int64_t experts, int64_t k) {
  Ints order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  order.resize(k);
  return order;
}

std::vector<double> softmax(const std::vector<double> &logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (double z : logits) {
    p.push_back(std::exp(z - top));
    sum += p.back();
  }
  for (double &v : p) v /= sum;
  return p;
}

std::vector<double> weights_of(const std::vector<double> &logits, const int32_t *expert, int64_t k, bool normalise) {
  const auto p = softmax(logits);
  std::vector<double> w;
  double sum = 0;
  for (int64_t j = 0; j < k; j++) {
    w.push_back(p[expert[j]]);
    sum += w.back();
  }
  if (normalise)
    for (double &v : w) v /= sum;
  return w;
}

std::vector<double> row_of(const Floats &values, int64_t row, int64_t n) { return doubles(part(values, row * n, n)); }

TEST_P(Moe, ChoiceAndWeightsMatchFloat64) {
  for (auto [experts, k] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {8, 2}, {7, 7}, {128, 8}, {67, 64}})
    for (bool normalise : {false, true}) {
      const int64_t tokens = 70;
      const Floats logits = normal(tokens * experts, static_cast<unsigned>(experts), 3);
      const Choice got = route(backend(), logits, experts, k, normalise);
      std::vector<double> want;
      for (int64_t t = 0; t < tokens; t++) {
        const Ints order = largest(logits.data() + t * experts, experts, k);
        ASSERT_EQ(Ints(got.expert.begin() + t * k, got.expert.begin() + (t + 1) * k), order) << "token " << t;
        for (double w : weights_of(row_of(logits, t, experts), order.data(), k, normalise)) want.push_back(w);
      }
      EXPECT_TRUE(close_to(got.weight, want, kTolerance, 1e-30));
    }
}

TEST_P(Moe, TiesGoToTheLowerIndex) {
  const Floats logits{1, 2, 2, 1, 2, 0, 0, 0, 0, 0, -0.0f, 0, -1, 0, -0.0f};
  const Choice got = route(backend(), logits, 5, 3, true);
  EXPECT_EQ(got.expert, (Ints{1, 2, 4, 0, 1, 2, 0, 1, 3}));
  EXPECT_TRUE(close_to(got.weight, std::vector<double>(9, 1.0 / 3), kTolerance, 0));
}

TEST_P(Moe, FarLogitsNeitherOverflowNorVanish) {
  const Floats logits{3e38f, -3e38f, 0, 1, -200, -201, -202, -203};
  const Ints given{1, 2, 2, 3};  // far below the largest
  const Choice got = route(backend(), logits, 4, 2, true, &given);
  EXPECT_TRUE(close_to(part(got.weight, 0, 2), {0, 1}, kTolerance, 0));
  const double e = std::exp(-1.0);
  EXPECT_TRUE(close_to(part(got.weight, 2, 2), {1 / (1 + e), e / (1 + e)}, kTolerance, 0));
}

TEST_P(Moe, GivenExpertsAreTakenAndCompared) {
  const int64_t experts = 6, k = 2;
  const Floats logits{5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5};
  const Ints given{0, 1, 1, 0, 0, 3, -1, 0};
  for (bool normalise : {false, true}) {
    const Choice got = route(backend(), logits, experts, k, normalise, &given);
    EXPECT_EQ(got.expert, (Ints{0, 1, 1, 0, 0, 3, 5, 4}));
    EXPECT_EQ(got.differs, (Ints{0, 0, 1, 0})) << "the order does not matter, and a token without given experts never differs";
    std::vector<double> want;
    for (int64_t t = 0; t < 4; t++)
      for (double w : weights_of(row_of(logits, t, experts), got.expert.data() + t * k, k, normalise)) want.push_back(w);
    EXPECT_TRUE(close_to(got.weight, want, kTolerance, 0));
  }
}

TEST_P(Moe, NumbersThatAreNotFiniteSpreadToTheirTokenAlone) {
  for (float bad : {NAN, INFINITY, -INFINITY})
    for (bool normalise : {false, true}) {
      Floats logits = normal(3 * 5, 7);
      const Choice clean = route(backend(), logits, 5, 2, normalise);
      logits[5 + 3] = bad;
      const Choice got = route(backend(), logits, 5, 2, normalise);
      for (int64_t i = 0; i < 6; i++) {
        EXPECT_TRUE(got.expert[i] >= 0 && got.expert[i] < 5);
        if (i / 2 == 1)
          EXPECT_TRUE(std::isnan(got.weight[i]));
        else
          EXPECT_EQ(got.weight[i], clean.weight[i]);
      }
      EXPECT_NE(got.expert[2], got.expert[3]);
    }
}

TEST_P(Moe, TokenDoesNotDependOnItsCompany) {
  const int64_t tokens = 300, experts = 16, k = 4;
  const Floats logits = normal(tokens * experts, 8);
  Choice all;
  with_threads(3, [&] { all = route(backend(), logits, experts, k, true); });
  for (int64_t t : {0, 1, 150, 299}) {
    const Choice one = route(backend(), part(logits, t * experts, experts), experts, k, true);
    EXPECT_EQ(one.expert, Ints(all.expert.begin() + t * k, all.expert.begin() + (t + 1) * k));
    EXPECT_TRUE(same_bits(one.weight, part(all.weight, t * k, k)));
  }
}

// Differentiates the sum over tokens of dweight . weight + dprob . softmax by central differences in float64.
TEST_P(Moe, RouteBackwardMatchesCentralDifferences) {
  for (auto [experts, k] : {std::pair<int64_t, int64_t>{1, 1}, {5, 2}, {6, 6}, {33, 8}})
    for (bool normalise : {false, true})
      for (bool balanced : {false, true}) {
        const int64_t tokens = 9;
        const Floats logits = normal(tokens * experts, 9), dweight = normal(tokens * k, 10), dprob = normal(experts, 11);
        const Ints expert = route(backend(), logits, experts, k, normalise).expert;
        Buffer<float> dw(backend(), dweight), z(backend(), logits), dp(backend(), dprob), got(backend(), logits.size());
        Buffer<int32_t> chosen(backend(), expert);
        ASSERT_EQ(backend().moe_route_bwd(dw.get(), z.get(), chosen.get(), balanced ? dp.get() : nullptr, got.get(), tokens, experts, k,
                                          normalise),
                  MGRPO_OK);
        std::vector<double> want;
        for (int64_t t = 0; t < tokens; t++) {
          const auto value = [&](const std::vector<double> &at) {
            double sum = 0;
            const auto w = weights_of(at, expert.data() + t * k, k, normalise), p = softmax(at);
            for (int64_t j = 0; j < k; j++) sum += w[j] * dweight[t * k + j];
            for (int64_t e = 0; balanced && e < experts; e++) sum += p[e] * dprob[e];
            return sum;
          };
          for (int64_t e = 0; e < experts; e++) {
            auto up = row_of(logits, t, experts), down = up;
            up[e] += 1e-5, down[e] -= 1e-5;
            want.push_back((value(up) - value(down)) / 2e-5);
          }
        }
        EXPECT_TRUE(close_to(got.values(), want, 1e-5, 2e-7)) << experts << " experts, " << k;
      }
}

struct Order {
  Ints first, source, place;
};

Order sorted(const Backend &b, const Ints &expert, int64_t experts) {
  const int64_t entries = static_cast<int64_t>(expert.size());
  Buffer<int32_t> e(b, expert), first(b, experts + 1), source(b, entries), place(b, entries);
  EXPECT_EQ(b.moe_sort(e.get(), first.get(), source.get(), place.get(), entries, experts), MGRPO_OK);
  return {first.values(), source.values(), place.values()};
}

Ints some_experts(int64_t entries, int64_t experts, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int32_t> draw(0, static_cast<int32_t>(experts - 1));
  Ints out(entries);
  for (int32_t &e : out) e = draw(generator);
  return out;
}

TEST_P(Moe, SortIsStable) {
  for (auto [entries, experts] : {std::pair<int64_t, int64_t>{0, 3}, {1, 1}, {7, 40}, {1000, 16}, {513, 300}, {256, 1}, {3000, 1100}}) {
    const Ints expert = some_experts(entries, experts, 12);
    const Order got = sorted(backend(), expert, experts);
    Ints source(entries), first(experts + 1);
    std::iota(source.begin(), source.end(), 0);
    std::stable_sort(source.begin(), source.end(), [&](int32_t a, int32_t b) { return expert[a] < expert[b]; });
    for (int32_t e : expert) first[e + 1]++;
    std::partial_sum(first.begin(), first.end(), first.begin());
    EXPECT_EQ(got.source, source);
    EXPECT_EQ(got.first, first);
    for (int64_t s = 0; s < entries; s++) EXPECT_EQ(got.place[got.source[s]], s);
  }
}

TEST_P(Moe, SortOfManyEntries) {
  MGRPO_SKIP_EMULATED();
  const Ints expert = some_experts(200'000, 128, 13);
  const Order got = sorted(backend(), expert, 128);
  for (size_t s = 1; s < expert.size(); s++) {
    const int32_t a = got.source[s - 1], b = got.source[s];
    ASSERT_TRUE(expert[a] < expert[b] || (expert[a] == expert[b] && a < b));
  }
}

TEST_P(Moe, GatherAndCombineAreEachOthersTranspose) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t d : {1, 7, 64, 300})
      for (int64_t k : {1, 3}) {
        const int64_t tokens = 11, experts = 4, entries = tokens * k;
        const Floats x = rounded_to_bf16(normal(tokens * d, 14)), y = rounded_to_bf16(normal(entries * d, 15)),
                     weight = normal(entries, 16);
        const Order o = sorted(backend(), some_experts(entries, experts, 17), experts);
        Buffer<int32_t> source(backend(), o.source), place(backend(), o.place);
        Array from(backend(), dtype, x), gathered(backend(), dtype, entries * d), rows(backend(), dtype, y),
            out(backend(), dtype, tokens * d), plain(backend(), dtype, tokens * d);
        Buffer<float> w(backend(), weight);
        ASSERT_EQ(backend().moe_gather(from.get(), source.get(), dtype, gathered.get(), tokens, k, d), MGRPO_OK);
        ASSERT_EQ(backend().moe_combine(rows.get(), place.get(), w.get(), dtype, out.get(), tokens, k, d), MGRPO_OK);
        ASSERT_EQ(backend().moe_combine(rows.get(), place.get(), nullptr, dtype, plain.get(), tokens, k, d), MGRPO_OK);
        const Floats got = gathered.values();
        for (int64_t s = 0; s < entries; s++) EXPECT_TRUE(same_bits(part(got, s * d, d), part(x, o.source[s] / k * d, d)));
        std::vector<double> want, sum;
        for (int64_t t = 0; t < tokens; t++)
          for (int64_t i = 0; i < d; i++) {
            want.push_back(0), sum.push_back(0);
            for (int64_t j = 0; j < k; j++) {
              const double v = y[o.place[t * k + j] * d + i];
              want.back() += weight[t * k + j] * v, sum.back() += v;
            }
          }
        const double relative = dtype == MGRPO_FLOAT32 ? kTolerance : kBf16Epsilon;
        EXPECT_TRUE(close_to(out.values(), want, relative, 1e-5));
        EXPECT_TRUE(close_to(plain.values(), sum, relative, 1e-5));
      }
  }
}

// On a GPU a token may have fewer rows than others. Packed attention uses this to add up the gradients of shared rows.
TEST_P(Moe, CombineLeavesOutWhatHasNoPlace) {
  if (backend().refuses_places) return;
  const int64_t tokens = 5, k = 3, d = 33;
  const Ints place{0, 4, 6, 1, -1, -1, 2, 5, -1, 3, -1, -1, -1, -1, -1};
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    const Floats x = rounded_to_bf16(normal(tokens * k * d, 31));
    Array rows(backend(), dtype, x), out(backend(), dtype, tokens * d);
    Buffer<int32_t> places(backend(), place);
    ASSERT_EQ(backend().moe_combine(rows.get(), places.get(), nullptr, dtype, out.get(), tokens, k, d), MGRPO_OK);
    std::vector<double> want(static_cast<size_t>(tokens * d), 0);
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t j = 0; j < k; j++)
        for (int64_t i = 0; i < d && place[t * k + j] >= 0; i++) want[t * d + i] += x[place[t * k + j] * d + i];
    EXPECT_TRUE(close_to(out.values(), want, dtype == MGRPO_FLOAT32 ? kTolerance : kBf16Epsilon, 1e-5));
  }
}

TEST_P(Moe, LinearMatchesFloat64ForRaggedGroups) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (auto [in, out] : {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 200}, {100, 33}}) {
      const Ints first{0, 0, 1, 6, 6, 23, 23};
      const int64_t experts = 6, entries = 23;
      const Floats x = rounded_to_bf16(normal(entries * in, 18)), w = rounded_to_bf16(normal(experts * out * in, 19));
      Array xs(backend(), dtype, x), ws(backend(), dtype, w), y(backend(), dtype, entries * out);
      Buffer<int32_t> bounds(backend(), first);
      ASSERT_EQ(backend().moe_linear(xs.get(), ws.get(), bounds.get(), dtype, y.get(), entries, experts, in, out), MGRPO_OK);
      std::vector<double> want;
      for (int64_t s = 0; s < entries; s++) {
        const int64_t e = s < 1 ? 1 : s < 6 ? 2 : 4;
        for (int64_t j = 0; j < out; j++) {
          want.push_back(0);
          for (int64_t i = 0; i < in; i++) want.back() += static_cast<double>(x[s * in + i]) * w[(e * out + j) * in + i];
        }
      }
      EXPECT_TRUE(close_to(y.values(), want, dtype == MGRPO_FLOAT32 ? kTolerance : kBf16Epsilon, 1e-4));
    }
  }
}

// A row has the same bits as when it is alone, and weights of experts without rows are not read.
TEST_P(Moe, LinearRowsStandAlone) {
  const int64_t experts = 5, in = 72, out = 130, entries = 40;
  const Ints first{0, 3, 3, 20, 40, 40};
  const Floats x = normal(entries * in, 20);
  Floats w = normal(experts * out * in, 21);
  for (int64_t e : {1, 4}) std::fill_n(w.begin() + e * out * in, out * in, NAN);
  const auto run = [&](const Floats &rows, const Ints &bounds) {
    Buffer<float> xs(backend(), rows), ws(backend(), w);
    Buffer<int32_t> f(backend(), bounds);
    const int64_t n = static_cast<int64_t>(rows.size()) / in;
    Array y(backend(), MGRPO_FLOAT32, n * out);
    EXPECT_EQ(backend().moe_linear(xs.get(), ws.get(), f.get(), MGRPO_FLOAT32, y.get(), n, experts, in, out), MGRPO_OK);
    return y.values();
  };
  Floats all, other;
  with_threads(1, [&] { all = run(x, first); });
  with_threads(3, [&] { other = run(x, first); });
  EXPECT_TRUE(same_bits(all, other));
  for (int64_t s : {0, 2, 3, 19, 20, 39}) {
    const Ints alone = s < 3 ? Ints{0, 1, 1, 1, 1, 1} : s < 20 ? Ints{0, 0, 0, 1, 1, 1} : Ints{0, 0, 0, 0, 1, 1};
    EXPECT_TRUE(same_bits(run(part(x, s * in, in), alone), part(all, s * out, out))) << "row " << s;
  }
}

// Experts with one row, with a few, and with more than a block takes at once. Whole vectors and single elements give the same sums.
TEST_P(Moe, LinearBitsDoNotDependOnAlignment) {
  const int64_t experts = 7, in = 528, out = 70, entries = 38;
  const Ints first{0, 1, 1, 3, 7, 12, 21, 38};
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    const Floats x = normal(entries * in, 32), w = normal(experts * out * in, 33);
    Buffer<int32_t> bounds(backend(), first);
    Floats got[2];
    for (bool aligned : {false, true}) {
      Array xs(backend(), dtype, x, aligned), ws(backend(), dtype, w, aligned), y(backend(), dtype, entries * out);
      ASSERT_EQ(backend().moe_linear(xs.get(), ws.get(), bounds.get(), dtype, y.get(), entries, experts, in, out), MGRPO_OK);
      got[aligned] = y.values();
    }
    EXPECT_TRUE(same_bits(got[0], got[1]));
  }
}

// On the CPU the products are bitwise equal to mgrpo_linear_cpu and its bf16 form.
TEST(MoeOnTheCpu, LinearHasTheBitsOfLinear) {
  const int64_t in = 97, out = 101, rows = 6;
  const Ints first{0, 0, rows};
  const Floats x = normal(rows * in, 22), w = normal(2 * out * in, 23);
  Guarded grouped(rows * out), plain(rows * out);
  ASSERT_EQ(mgrpo_moe_linear_cpu(x.data(), w.data(), first.data(), grouped.begin(), rows, 2, in, out), MGRPO_OK);
  ASSERT_EQ(mgrpo_linear_cpu(x.data(), w.data() + out * in, nullptr, plain.begin(), rows, in, out), MGRPO_OK);
  EXPECT_TRUE(same_bits(grouped.values(), plain.values()));
  std::vector<uint16_t> half;
  for (float v : w) half.push_back(to_bf16(v));
  for (int32_t round : {0, 1}) {
    ASSERT_EQ(mgrpo_moe_linear_bf16_cpu(x.data(), half.data(), first.data(), grouped.begin(), rows, 2, in, out, round), MGRPO_OK);
    ASSERT_EQ(mgrpo_linear_bf16_cpu(x.data(), half.data() + out * in, nullptr, plain.begin(), rows, in, out, round), MGRPO_OK);
    EXPECT_TRUE(same_bits(grouped.values(), plain.values()));
  }
}

TEST_P(Moe, WeighMatchesFloat64) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t d : {0, 1, 9, 64, 1500}) {
      const int64_t entries = 13;
      const Floats g = rounded_to_bf16(normal(entries * d, 24)), a = rounded_to_bf16(normal(entries * d, 25)), weight = normal(entries, 26);
      const Order o = sorted(backend(), some_experts(entries, 3, 27), 3);
      Array gs(backend(), dtype, g), as(backend(), dtype, a);
      Buffer<int32_t> source(backend(), o.source);
      Buffer<float> w(backend(), weight), dweight(backend(), entries);
      ASSERT_EQ(backend().moe_weigh(gs.get(), as.get(), source.get(), w.get(), dtype, dweight.get(), entries, d), MGRPO_OK);
      std::vector<double> want(entries), scaled_g, scaled_a;
      for (int64_t s = 0; s < entries; s++)
        for (int64_t i = 0; i < d; i++) {
          const double gradient = g[s * d + i], value = a[s * d + i], by = weight[o.source[s]];
          want[o.source[s]] += gradient * value;
          scaled_g.push_back(gradient * by), scaled_a.push_back(value * by);
        }
      EXPECT_TRUE(close_to(dweight.values(), want, kTolerance, 1e-4));
      const double relative = dtype == MGRPO_FLOAT32 ? kTolerance : kBf16Epsilon;
      EXPECT_TRUE(close_to(gs.values(), scaled_g, relative, 1e-30));
      EXPECT_TRUE(close_to(as.values(), scaled_a, relative, 1e-30));
    }
  }
}

TEST_P(Moe, EmptyAndInvalid) {
  const Backend &b = backend();
  Buffer<float> f(b, Floats(8, 1.0f));
  Buffer<int32_t> i(b, Ints(8, 0)), first(b, Ints{0, 0});
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(b.moe_route(nullptr, nullptr, nullptr, nullptr, nullptr, 0, 4, 2, 0), MGRPO_OK);
  EXPECT_EQ(b.moe_route_bwd(nullptr, nullptr, nullptr, nullptr, nullptr, 0, 4, 2, 0), MGRPO_OK);
  EXPECT_EQ(b.moe_gather(nullptr, nullptr, MGRPO_FLOAT32, nullptr, 0, 2, 4), MGRPO_OK);
  EXPECT_EQ(b.moe_combine(nullptr, nullptr, nullptr, MGRPO_FLOAT32, nullptr, 0, 2, 4), MGRPO_OK);
  EXPECT_EQ(b.moe_linear(nullptr, nullptr, first.get(), MGRPO_FLOAT32, nullptr, 0, 1, 4, 4), MGRPO_OK);
  EXPECT_EQ(b.moe_weigh(nullptr, nullptr, nullptr, nullptr, MGRPO_FLOAT32, nullptr, 0, 4), MGRPO_OK);
  for (auto [experts, k] :
       {std::pair<int64_t, int64_t>{4, 0}, {4, 5}, {0, 0}, {-1, 1}, {100, MGRPO_MOE_MOST_CHOSEN + 1}, {int64_t{1} << 31, 1}})
    EXPECT_EQ(b.moe_route(f.get(), nullptr, i.get(), f.get(), nullptr, 1, experts, k, 0), MGRPO_INVALID_ARGUMENT) << experts << " " << k;
  EXPECT_EQ(b.moe_route(f.get(), nullptr, i.get(), f.get(), nullptr, huge, 4, 2, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_route(nullptr, nullptr, i.get(), f.get(), nullptr, 1, 4, 2, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_sort(nullptr, first.get(), i.get(), i.get(), 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_sort(i.get(), first.get(), i.get(), i.get(), huge, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_gather(f.get(), i.get(), MGRPO_FLOAT32, f.get(), 2, -1, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_combine(f.get(), i.get(), nullptr, MGRPO_FLOAT32, nullptr, 2, 1, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_linear(f.get(), f.get(), nullptr, MGRPO_FLOAT32, f.get(), 1, 1, 1, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.moe_weigh(f.get(), nullptr, i.get(), f.get(), MGRPO_FLOAT32, f.get(), 1, 1), MGRPO_INVALID_ARGUMENT);
}

// Nonexistent or repeated experts are refused if the call can see them, and otherwise give NaN.
TEST_P(Moe, ImpossibleExperts) {
  for (const Ints &bad : {Ints{0, 4}, Ints{2, 2}, Ints{1, -1}, Ints{-2, 1}}) {
    Buffer<float> z(backend(), normal(8, 28)), weight(backend(), 4);
    Ints given{1, 0};
    given.insert(given.end(), bad.begin(), bad.end());
    Buffer<int32_t> fixed(backend(), given), expert(backend(), 4);
    const int32_t status = backend().moe_route(z.get(), fixed.get(), expert.get(), weight.get(), nullptr, 2, 4, 2, 1);
    if (backend().refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_EQ(weight.values(), Floats(4, -77));
      continue;
    }
    ASSERT_EQ(status, MGRPO_OK);
    const Floats w = weight.values();
    EXPECT_TRUE(std::isfinite(w[0]) && std::isfinite(w[1]) && std::isnan(w[2]) && std::isnan(w[3]));
    EXPECT_EQ(expert.values(), (Ints{1, 0, 0, 0}));
  }
}

}  // namespace
