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

// Returns the random number of a row's draw.
double uniform_of(const mgrpo_sampling &s) {
  return mgrpo_philox_uniform(
      mgrpo_philox(static_cast<uint32_t>(s.position), static_cast<uint32_t>(s.position >> 32), 0, 0, s.key[0], s.key[1]));
}

// Length of a row that ends within a pack, and that a GPU with clusters gives to eight blocks if there are few rows.
constexpr size_t kLong = 8 * 512 * 8 + 7;

// Applies the filters by sorting, as Hugging Face does. All ties at a cut are kept. Returns the kept probabilities (0 = removed) under
// softmax(z / tau), renormalised.
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

// The drawn token is the one at which the cumulative distribution passes the uniform number of the row's Philox block.
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
    const double u = uniform_of(s[r]);
    double sum = 0;
    size_t want = 0;
    while ((sum += p[want]) <= u) want++;
    differing += d.token[r] != static_cast<int32_t>(want);  // a draw within rounding of a boundary may give a neighbour
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

// Draws from one row with filters, and compares the kept tokens and their probabilities.
template <class T>
void expect_filtered(const Backend &on, const std::vector<T> &row, const std::vector<float> &z, mgrpo_sampling s, uint64_t draws) {
  const auto p = oracle(z, s), whole = oracle(z, settings(s.temperature));
  std::vector<T> logits;
  std::vector<mgrpo_sampling> rows;
  for (s.position = 0; s.position < draws; s.position++) {
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(s);
  }
  const auto vocab = static_cast<int64_t>(row.size());
  const Drawn d = draw(on, logits, vocab, vocab, rows);
  ASSERT_EQ(d.status, MGRPO_OK);
  for (size_t r = 0; r < rows.size(); r++) {
    const auto t = static_cast<size_t>(d.token[r]);
    ASSERT_GT(p[t], 0) << "token " << t << " was filtered out";
    ASSERT_NEAR(d.truncated[r], std::log(p[t]), 1e-5);
    ASSERT_NEAR(d.logp[r], std::log(whole[t]), 1e-5);
  }
}

std::vector<float> logits_with_ties(size_t vocab, unsigned seed) {
  auto z = cast<float>(normals(vocab, seed, 2));
  for (size_t v = 0; v < vocab; v += 3) z[v] = std::round(z[v]);
  return z;
}

TEST_P(Sample, FiltersKeepWhatSortingKeeps) {
  const size_t vocab = 500;
  for (unsigned seed = 0; seed < 12; seed++) {
    SCOPED_TRACE(seed);
    const auto z = logits_with_ties(vocab, seed);
    mgrpo_sampling s = settings(0.9);
    s.top_k = std::vector<int32_t>{0, 1, 40, 499, 500, 9000}[seed % 6];
    s.top_p = std::vector<double>{1, 0.9, 0.3, 1e-6}[seed % 4];
    s.min_p = std::vector<double>{0, 0.05, 1}[seed % 3];
    expect_filtered(backend(), z, z, s, backend().is_emulated ? 2 : 300);
  }
}

TEST_P(Sample, FiltersOfLongRows) {
  const auto z = logits_with_ties(kLong, 3);
  std::vector<uint16_t> half;
  std::vector<float> full;
  for (float x : z) {
    half.push_back(to_bf16(x));
    full.push_back(from_bf16(half.back()));
  }
  mgrpo_sampling top_k = settings(0.9), top_p = top_k, min_p = top_k;
  top_k.top_k = 1000;
  top_p.top_p = 0.7;
  min_p.min_p = 0.02;
  for (const mgrpo_sampling &s : {top_k, top_p, min_p}) {
    expect_filtered(backend(), z, z, s, 2);
    expect_filtered(backend(), half, full, s, 2);
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
           [](mgrpo_sampling &s) { s.temperature = -1; }, [](mgrpo_sampling &s) { s.temperature = 1e-9; },
           [](mgrpo_sampling &s) { s.temperature = kInf; }, [](mgrpo_sampling &s) { s.top_p = 1.5; },
           [](mgrpo_sampling &s) { s.min_p = kNaN; }, [](mgrpo_sampling &s) { s.top_k = -1; }}) {
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

// Draws within rounding of a boundary may differ.
TEST_P(Sample, TokensAreTheCPUs) {
  const size_t vocab = kLong, rows = 16;
  std::vector<float> logits;
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) {
    const auto z = cast<float>(normals(vocab, 40 + static_cast<unsigned>(r), 3));
    logits.insert(logits.end(), z.begin(), z.end());
    s.push_back(settings(0.2 * static_cast<double>(r % 8), r));
    s.back().top_k = r % 4 == 1 ? 200 : 0;
    s.back().top_p = r % 4 == 2 ? 0.8 : 1;
    s.back().min_p = r % 4 == 3 ? 0.01 : 0;
  }
  const Drawn here = draw(backend(), logits, vocab, vocab, s), there = draw(cpu(), logits, vocab, vocab, s);
  int differing = 0;
  for (size_t r = 0; r < rows; r++) {
    differing += here.token[r] != there.token[r];
    if (here.token[r] != there.token[r]) continue;
    EXPECT_NEAR(here.logp[r], there.logp[r], 1e-5) << "row " << r;
    EXPECT_NEAR(here.truncated[r], there.truncated[r], 1e-5) << "row " << r;
  }
  EXPECT_LE(differing, 1);
}

TEST_P(Sample, FewerPossibleTokensThanTopKAreAllKept) {
  std::vector<float> z(300, -std::numeric_limits<float>::infinity());
  z[7] = -1;
  z[200] = 2;
  std::vector<uint16_t> half;
  for (float x : z) half.push_back(to_bf16(x));
  mgrpo_sampling s = settings(1);
  s.top_k = 5;
  expect_filtered(backend(), z, z, s, 20);
  expect_filtered(backend(), half, z, s, 20);
}

// The number of blocks per row depends on the number of rows: eight, four, two or one on 132 multiprocessors. If one logit is large, its
// log-prob is near 0 and shows the last bits of the sum of all others.
TEST_P(Sample, BlocksOfARowChangeNoBit) {
  const size_t vocab = kLong, ld = vocab + 6, kinds = 16;
  std::vector<mgrpo_sampling> kind(kinds, settings(0));
  std::fill(kind.begin(), kind.begin() + 4, settings(1, 7));
  kind[1].top_k = 100;
  kind[2].top_p = 0.9;
  kind[3].min_p = 0.1;
  std::vector<std::vector<float>> z;
  std::vector<Drawn> alone;
  for (unsigned k = 0; k < kinds; k++) {
    z.push_back(cast<float>(normals(ld, 20 + k, 3)));
    if (k >= 4) z[k][k * 1000] = 20;
    alone.push_back(draw(backend(), z[k], vocab, ld, {kind[k]}));
  }
  for (size_t rows : {34, 67, 133}) {
    std::vector<float> logits;
    std::vector<mgrpo_sampling> s;
    for (size_t r = 0; r < rows; r++) {
      const size_t k = r < kinds ? r : 0;
      logits.insert(logits.end(), z[k].begin(), z[k].end());
      s.push_back(kind[k]);
    }
    const Drawn together = draw(backend(), logits, vocab, ld, s);
    ASSERT_EQ(together.status, MGRPO_OK);
    for (size_t r = 0; r < rows; r++) {
      const Drawn &one = alone[r < kinds ? r : 0];
      ASSERT_EQ(one.token[0], together.token[r]) << rows << " rows, row " << r;
      ASSERT_EQ(one.logp[0], together.logp[r]) << rows << " rows, row " << r;
      ASSERT_EQ(one.truncated[0], together.truncated[r]) << rows << " rows, row " << r;
    }
  }
}

// Equal tokens between impossible ones: every sum is exact, and so is every draw.
TEST_P(Sample, DrawsExactlyWhereSumsAreExact) {
  const double inf = std::numeric_limits<double>::infinity();
  for (size_t vocab : {1, 2, 3, 5, 7, 127, 128, 129, 511, 1025, 4099, 8 * 4096 + 1}) {
    const size_t first = vocab / 3, count = vocab - 2 * first, ld = vocab + 3;
    std::vector<double> z(ld, kNaN);  // the values after a row are not read
    for (size_t v = 0; v < vocab; v++) z[v] = v < first || v >= first + count ? -inf : -3;
    // Two arbitrary draws, and of many draws the nearest ones to 0 and to 1.
    std::vector<mgrpo_sampling> s{settings(0.7, 0), settings(0.7, 1), settings(0.7, 2), settings(0.7, 3)};
    for (uint64_t at = 4; at < 50000; at++) {
      const mgrpo_sampling now = settings(0.7, at);
      if (uniform_of(now) < uniform_of(s[2])) s[2] = now;
      if (uniform_of(now) > uniform_of(s[3])) s[3] = now;
    }
    std::vector<float> logits;
    std::vector<uint16_t> half;
    for (size_t r = 0; r < s.size(); r++)
      for (double x : z) {
        logits.push_back(static_cast<float>(x));
        half.push_back(to_bf16(static_cast<float>(x)));
      }
    for (const Drawn &d : {draw(backend(), logits, vocab, ld, s), draw(backend(), half, vocab, ld, s)}) {
      ASSERT_EQ(d.status, MGRPO_OK) << vocab;
      for (size_t r = 0; r < s.size(); r++) {
        EXPECT_EQ(d.token[r], static_cast<int32_t>(first + static_cast<size_t>(uniform_of(s[r]) * static_cast<double>(count))))
            << vocab << " row " << r;
        EXPECT_NEAR(d.logp[r], -std::log(static_cast<double>(count)), 1e-6 * vocab);
      }
    }
  }
}

// The float32 sum of a warp exceeds the exact sum by 1.25 units of 2^-23, and u is nearer to 1. So no running sum exceeds the draw.
TEST_P(Sample, ADrawBeyondEveryRunningSumTakesAPossibleToken) {
  std::vector<float> z(128, -std::numeric_limits<float>::infinity());
  z[0] = 0;
  for (size_t lane : {1, 2, 4, 8, 16}) {
    z[4 * lane] = -24;
    z[4 * lane + 1] = -25;
  }
  const mgrpo_sampling s = settings(1 / std::log(2.0), 24885948);  // exponentials are powers of 2
  ASSERT_GT(uniform_of(s), 1 - 1.2 / (1 << 23));
  const Drawn d = draw(backend(), z, 128, 128, {s});
  EXPECT_NE(d.token[0], 0);
  EXPECT_GT(z[static_cast<size_t>(d.token[0])], -26);  // a possible token
}

// The largest logit is in every part of a row in turn. Its difference to the others overflows.
TEST_P(Sample, TheLargestFloatsAreDrawn) {
  const float most = std::numeric_limits<float>::max();
  for (size_t at : {size_t{0}, size_t{300}, kLong / 2, kLong - 1}) {
    std::vector<float> z(kLong, -most);
    z[at] = most;
    mgrpo_sampling coldest = settings(MGRPO_LEAST_TEMPERATURE), truncated = settings(1);
    truncated.top_k = 5;
    truncated.top_p = 0.5;
    truncated.min_p = 1e-300;
    std::vector<float> logits;
    const std::vector<mgrpo_sampling> s{settings(1), coldest, truncated, settings(0)};
    for (size_t r = 0; r < s.size(); r++) logits.insert(logits.end(), z.begin(), z.end());
    const Drawn d = draw(backend(), logits, kLong, kLong, s);
    ASSERT_EQ(d.status, MGRPO_OK);
    for (size_t r = 0; r < s.size(); r++) {
      EXPECT_EQ(d.token[r], static_cast<int32_t>(at)) << "row " << r;
      EXPECT_EQ(d.logp[r], 0);
      EXPECT_EQ(d.truncated[r], 0);
    }
  }
}

// The bad logit is in every part of a row in turn, also if the tokens around it or all other tokens are impossible.
TEST_P(Sample, FindsOneUnreadableLogit) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const auto &[rest, one] : std::vector<std::pair<float, float>>{{0, 0}, {-inf, -inf}, {-inf, 0}}) {
    for (float bad : {nan, inf}) {
      for (size_t at : {size_t{0}, size_t{517}, kLong / 2, kLong - 1}) {
        std::vector<float> z(3 * kLong, 0.0f);
        std::fill(z.begin() + kLong, z.begin() + 2 * kLong, rest);
        z[kLong + kLong / 3] = one;
        z[kLong + at] = bad;
        const Drawn d = draw(backend(), z, kLong, kLong, std::vector<mgrpo_sampling>(3, settings(1)));
        EXPECT_EQ(d.status, MGRPO_NON_FINITE);
        EXPECT_EQ(d.bad, 1);
        EXPECT_EQ(d.token[1], -1);
        EXPECT_TRUE(std::isnan(d.logp[1]) && std::isnan(d.truncated[1]));
        EXPECT_GE(d.token[0], 0);
        EXPECT_EQ(d.token[2], d.token[0]);
      }
    }
  }
}

TEST_P(Sample, MoreRowsThanAGridDimension) {
  MGRPO_SKIP_EMULATED();
  const size_t rows = 70000;
  std::vector<float> logits;
  std::vector<mgrpo_sampling> s;
  for (uint64_t r = 0; r < rows; r++) {
    logits.insert(logits.end(), {-100, r % 2 ? 0.0f : -100, r % 2 ? -100 : 0.0f});
    s.push_back(settings(1, r));
  }
  const Drawn d = draw(backend(), logits, 3, 3, s);
  ASSERT_EQ(d.status, MGRPO_OK);
  for (size_t r = 0; r < rows; r++) ASSERT_EQ(d.token[r], r % 2 ? 1 : 2) << "row " << r;
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
