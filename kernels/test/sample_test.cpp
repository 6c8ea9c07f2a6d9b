#include <omp.h>

#include <algorithm>
#include <numeric>

#include "backend.h"

namespace {
using namespace conformance;

mgrpo_sampling settings(double temperature, uint64_t position = 0) {
  return {.temperature = temperature, .top_p = 1, .min_p = 0, .top_k = 0, .key = {11, 22}, .position = position};
}

struct Drawn {
  int32_t status;
  int64_t bad;
  std::vector<int32_t> token;
  std::vector<float> logp, truncated;
};

template <class T = float>
Drawn draw(const Backend &b, const std::vector<T> &logits, int64_t vocab, int64_t ld, const std::vector<mgrpo_sampling> &rows) {
  Buffer<T> z(b, logits);
  Buffer<int32_t> token(b, rows.size());
  Buffer<float> logp(b, rows.size()), truncated(b, rows.size());
  Drawn d;
  d.status = b.sample(z.get(), sizeof(T) == 4 ? MGRPO_FLOAT32 : MGRPO_BFLOAT16, static_cast<int64_t>(rows.size()), vocab, ld, rows.data(),
                      token.get(), logp.get(), truncated.get(), &d.bad);
  d.token = token.values();
  d.logp = logp.values();
  d.truncated = truncated.values();
  return d;
}

// The filters by sorting, as Hugging Face applies them; ties at a cut are all kept. Returns the kept probabilities
// (0 = removed) under softmax(z / tau), renormalised.
std::vector<double> oracle(const std::vector<float> &z, const mgrpo_sampling &s) {
  const double tau = s.temperature == 0 ? 1 : s.temperature, max = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (float x : z) p.push_back(std::exp((x - max) / tau));
  std::vector<size_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return z[a] > z[b]; });
  if (s.top_k > 0 && s.top_k < static_cast<int32_t>(z.size())) {
    const float least = z[order[static_cast<size_t>(s.top_k) - 1]];
    for (size_t v = 0; v < z.size(); v++) p[v] *= z[v] >= least;
  }
  if (s.top_p > 0 && s.top_p < 1) {
    const double budget = s.top_p * std::accumulate(p.begin(), p.end(), 0.0);
    double before = 0;  // mass of strictly larger logits
    for (size_t i = 0; i < order.size();) {
      double tied = 0;
      size_t j = i;
      for (; j < order.size() && z[order[j]] == z[order[i]]; j++) {
        tied += p[order[j]];
        if (before >= budget) p[order[j]] = 0;
      }
      before += tied;
      i = j;
    }
  }
  for (double &x : p) x *= x >= s.min_p;
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double &x : p) x /= sum;
  return p;
}

class Sample : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Sample);

// The token at which the cumulative distribution passes the uniform of the row's Philox block.
TEST_P(Sample, InvertsTheDistributionInTokenOrder) {
  const size_t rows = 200, vocab = 1000;
  const auto logits = cast<float>(normals(rows * vocab, 1, 3));
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) s.push_back(settings(0.5 + 0.01 * static_cast<double>(r), r << 31));
  const Drawn d = draw(backend(), logits, vocab, vocab, s);
  ASSERT_EQ(d.status, MGRPO_OK);
  int differing = 0;
  for (size_t r = 0; r < rows; r++) {
    const std::vector<float> z(logits.begin() + static_cast<int64_t>(r * vocab), logits.begin() + static_cast<int64_t>((r + 1) * vocab));
    const auto p = oracle(z, s[r]);
    const uint64_t at = s[r].position;
    const double u = mgrpo_philox_uniform(mgrpo_philox(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0, 11, 22));
    double sum = 0;
    size_t want = 0;
    while ((sum += p[want]) <= u) want++;
    differing += d.token[r] != static_cast<int32_t>(want);  // a draw within rounding of a boundary may fall to a neighbour
    ASSERT_NEAR(d.logp[r], std::log(p[static_cast<size_t>(d.token[r])]), 2e-5);
    ASSERT_EQ(d.truncated[r], d.logp[r]);
  }
  EXPECT_LE(differing, 1);
}

TEST_P(Sample, FrequenciesFollowTheProbabilities) {
  const std::vector<float> z{0, 1, 2, -std::numeric_limits<float>::infinity(), 0.5f, -1};
  const size_t rows = backend().is_emulated ? 500 : 20000;
  std::vector<float> logits;
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) {
    logits.insert(logits.end(), z.begin(), z.end());
    s.push_back(settings(0.8, r));
  }
  const Drawn d = draw(backend(), logits, 6, 6, s);
  const auto p = oracle(z, s[0]);
  std::vector<double> count(6);
  for (int32_t t : d.token) count[static_cast<size_t>(t)]++;
  EXPECT_EQ(count[3], 0);
  double chi2 = 0;
  for (size_t v : {0u, 1u, 2u, 4u, 5u}) chi2 += std::pow(count[v] - p[v] * rows, 2) / (p[v] * rows);
  EXPECT_LT(chi2, 18.5);  // 4 degrees of freedom, p = 0.001
}

TEST_P(Sample, FiltersKeepWhatSortingKeeps) {
  const size_t vocab = 500;
  for (unsigned seed = 0; seed < 12; seed++) {
    auto z = cast<float>(normals(vocab, seed, 2));
    for (size_t v = 0; v < vocab; v += 3) z[v] = std::round(z[v]);  // ties
    mgrpo_sampling s = settings(0.9);
    s.top_k = std::vector<int32_t>{0, 1, 40, 499, 500, 9000}[seed % 6];
    s.top_p = std::vector<double>{1, 0.9, 0.3, 1e-6}[seed % 4];
    s.min_p = std::vector<double>{0, 0.05, 1}[seed % 3];
    const auto p = oracle(z, s);
    std::vector<float> logits;
    std::vector<mgrpo_sampling> rows;
    const uint64_t draws = backend().is_emulated ? 2 : 300;
    for (uint64_t r = 0; r < draws; r++) {
      logits.insert(logits.end(), z.begin(), z.end());
      s.position = r;
      rows.push_back(s);
    }
    const Drawn d = draw(backend(), logits, vocab, vocab, rows);
    ASSERT_EQ(d.status, MGRPO_OK);
    const auto whole = oracle(z, settings(0.9));
    for (size_t r = 0; r < rows.size(); r++) {
      const auto t = static_cast<size_t>(d.token[r]);
      ASSERT_GT(p[t], 0) << "seed " << seed << " token " << t << " was filtered out";
      ASSERT_NEAR(d.truncated[r], std::log(p[t]), 1e-5);
      ASSERT_NEAR(d.logp[r], std::log(whole[t]), 1e-5);
    }
  }
}

TEST_P(Sample, TemperatureZeroTakesTheFirstLargest) {
  const Drawn d = draw(backend(), std::vector<float>{0, 3, 3, 1, -5, -5, -5, -5}, 4, 4, {settings(0), settings(0)});
  ASSERT_EQ(d.status, MGRPO_OK);
  EXPECT_EQ(d.token, (std::vector<int32_t>{1, 0}));
  EXPECT_NEAR(d.logp[0], -std::log(2 + std::exp(-2.0) + std::exp(-3.0)), 1e-6);
  EXPECT_NEAR(d.logp[1], -std::log(4.0), 1e-6);
}

TEST_P(Sample, PaddingIsNeverDrawn) {
  std::vector<float> logits(3 * 8, 1e30f);
  for (size_t r = 0; r < 3; r++)
    for (size_t v = 0; v < 5; v++) logits[r * 8 + v] = 0;
  const Drawn d = draw(backend(), logits, 5, 8, {settings(1, 0), settings(1, 1), settings(0, 2)});
  ASSERT_EQ(d.status, MGRPO_OK);
  for (size_t r = 0; r < 3; r++) {
    EXPECT_LT(d.token[r], 5);
    EXPECT_NEAR(d.logp[r], -std::log(5.0), 1e-6);
  }
}

TEST_P(Sample, UnreadableRowsAreNamedAndOthersDrawn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Drawn d = draw(backend(), std::vector<float>{0, 0, -inf, -inf, nan, 0, 0, inf}, 2, 2, std::vector<mgrpo_sampling>(4, settings(1)));
  EXPECT_EQ(d.status, MGRPO_NON_FINITE);
  EXPECT_EQ(d.bad, 1);
  EXPECT_GE(d.token[0], 0);
  for (size_t r : {1u, 2u, 3u}) {
    EXPECT_EQ(d.token[r], -1);
    EXPECT_TRUE(std::isnan(d.logp[r]) && std::isnan(d.truncated[r]));
  }
}

TEST_P(Sample, RejectsSettingsOutOfRange) {
  for (auto edit : std::vector<void (*)(mgrpo_sampling &)>{
           [](mgrpo_sampling &s) { s.temperature = -1; }, [](mgrpo_sampling &s) { s.temperature = 1e-9; }, [](mgrpo_sampling &s) { s.temperature = kInf; },
           [](mgrpo_sampling &s) { s.top_p = 1.5; }, [](mgrpo_sampling &s) { s.min_p = kNaN; }, [](mgrpo_sampling &s) { s.top_k = -1; }}) {
    std::vector<mgrpo_sampling> rows(2, settings(1));
    edit(rows[1]);
    const Drawn d = draw(backend(), std::vector<float>(4), 2, 2, rows);
    EXPECT_EQ(d.status, MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(d.bad, 1);
    EXPECT_EQ(d.token[0], -77);
  }
}

TEST_P(Sample, ARowDependsOnThatRowAlone) {
  const size_t rows = 40, vocab = 1031;
  const auto logits = cast<float>(normals(rows * vocab, 3, 3));
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) {
    s.push_back(settings(1, r));
    s.back().top_p = r % 2 ? 0.9 : 1;
    s.back().top_k = r % 3 ? 0 : 50;
  }
  const Drawn together = draw(backend(), logits, vocab, vocab, s);
  for (size_t r = 0; r < rows; r++) {
    const std::vector<float> z(logits.begin() + static_cast<int64_t>(r * vocab), logits.begin() + static_cast<int64_t>((r + 1) * vocab));
    const Drawn alone = draw(backend(), z, vocab, vocab, {s[r]});
    EXPECT_EQ(alone.token[0], together.token[r]);
    EXPECT_EQ(alone.logp[0], together.logp[r]);
    EXPECT_EQ(alone.truncated[0], together.truncated[r]);
  }
}

TEST_P(Sample, BFloat16EqualsItsFloat32Values) {
  const size_t vocab = 2000;
  std::vector<uint16_t> half;
  std::vector<float> full;
  for (double x : normals(vocab * 4, 4, 2)) {
    half.push_back(to_bf16(static_cast<float>(x)));
    full.push_back(from_bf16(half.back()));
  }
  const std::vector<mgrpo_sampling> s{settings(1, 0), settings(0.5, 1), settings(2, 2), settings(0, 3)};
  const Drawn a = draw(backend(), half, vocab, vocab, s), b = draw(backend(), full, vocab, vocab, s);
  EXPECT_EQ(a.token, b.token);
  expect_near(a.logp, cast<double>(b.logp), 1e-6, "logp");
}

TEST(SampleThreads, SameBits) {
  const size_t rows = 64, vocab = 4097;
  const auto logits = cast<float>(normals(rows * vocab, 5, 3));
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) s.push_back(settings(1, r));
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Drawn one = draw(cpu(), logits, vocab, vocab, s);
  omp_set_num_threads(3);
  const Drawn three = draw(cpu(), logits, vocab, vocab, s);
  omp_set_num_threads(before);
  EXPECT_EQ(one.token, three.token);
  EXPECT_EQ(one.logp, three.logp);
}

}  // namespace
