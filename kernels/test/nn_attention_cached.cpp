#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

constexpr double kTolerance = 64 * kEpsilon;  // of the largest value
constexpr float kScale = 0.3f;

struct Cache {
  int64_t slots, heads, kv_heads, max_len, hd;
  Floats k, v;

  Cache(int64_t slots, int64_t heads, int64_t kv_heads, int64_t max_len, int64_t hd)
      : slots(slots), heads(heads), kv_heads(kv_heads), max_len(max_len), hd(hd),
        k(normal(slots * kv_heads * max_len * hd, 1)), v(normal(slots * kv_heads * max_len * hd, 2)) {}

  int64_t row() const { return heads * hd; }
  int32_t attend(const float *q, const Ints &slot, const Ints &length, float *out) const {
    return mgrpo_attention_cached_cpu(q, k.data(), v.data(), slot.data(), length.data(), out,
                                      static_cast<int64_t>(slot.size()), slots, heads, kv_heads, max_len, hd, kScale);
  }
  std::vector<double> oracle(const Floats &q, const Ints &slot, const Ints &length) const {
    std::vector<double> out(q.size(), 0.0);
    for (size_t r = 0; r < slot.size(); r++)
      for (int64_t h = 0; h < heads; h++) {
        const int64_t at = (static_cast<int64_t>(r) * heads + h) * hd;
        const int64_t base = (slot[r] * kv_heads + h / (heads / kv_heads)) * max_len * hd;
        std::vector<double> weight;
        double sum = 0;
        for (int64_t j = 0; j < length[r]; j++) {
          double score = 0;
          for (int64_t c = 0; c < hd; c++) score += static_cast<double>(q[at + c]) * k[base + j * hd + c];
          weight.push_back(std::exp(score * kScale));
          sum += weight.back();
        }
        for (int64_t j = 0; j < length[r]; j++)
          for (int64_t c = 0; c < hd; c++) out[at + c] += weight[j] / sum * v[base + j * hd + c];
      }
    return out;
  }
};

struct Shape {
  int64_t heads, kv_heads, hd;
};
const Shape kShapes[] = {{1, 1, 1}, {4, 2, 16}, {6, 2, 24}, {3, 3, 32}, {9, 3, 64}, {2, 1, 128}, {20, 1, 20}};

TEST(AttentionCached, MatchesFloat64) {
  for (auto [heads, kv_heads, hd] : kShapes) {
    const Cache cache(5, heads, kv_heads, 150, hd);
    const Ints slot{3, 0, 0, 0, 4, 4, 1, 3}, length{1, 64, 65, 7, 150, 129, 0, 63};
    const Floats q = normal(8 * cache.row(), 3);
    Guarded out(8 * cache.row());
    ASSERT_EQ(cache.attend(q.data(), slot, length, out.begin()), MGRPO_OK);
    EXPECT_TRUE(close_to(out.values(), cache.oracle(q, slot, length), 0, 4 * kTolerance)) << hd;
  }
}

TEST(AttentionCached, PrefillInOneCallEqualsTokenByTokenAndPackedAttention) {
  for (auto [heads, kv_heads, hd] : kShapes) {
    const int32_t tokens = 140;
    Cache cache(2, heads, kv_heads, tokens, hd);
    const Floats q = normal(tokens * cache.row(), 4), k = normal(tokens * kv_heads * hd, 5),
                 v = normal(tokens * kv_heads * hd, 6);
    Ints slot(tokens, 1), pos, length;
    for (int32_t t = 0; t < tokens; t++) pos.push_back(t), length.push_back(t + 1);
    for (auto [to, from] : {std::pair<Floats *, const Floats *>{&cache.k, &k}, {&cache.v, &v}})
      ASSERT_EQ(mgrpo_cache_write_cpu(to->data(), from->data(), slot.data(), pos.data(), tokens, 2, kv_heads, tokens,
                                      hd),
                MGRPO_OK);
    Guarded prefill(tokens * cache.row()), step(cache.row()), packed(tokens * cache.row()), lse(tokens * heads);
    with_threads(2, [&] { cache.attend(q.data(), slot, length, prefill.begin()); });
    for (int32_t t = 0; t < tokens; t++) {
      cache.attend(&q[t * cache.row()], {1}, {t + 1}, step.begin());
      ASSERT_TRUE(same_bits(step.begin(), prefill.begin() + t * cache.row(), cache.row())) << "token " << t;
    }
    mgrpo_attention_packed_cpu(q.data(), k.data(), v.data(), Ints{0, tokens}.data(), nullptr, 1, packed.begin(),
                               lse.begin(), heads, kv_heads, hd, kScale);
    EXPECT_TRUE(same_bits(packed.begin(), prefill.begin(), tokens * cache.row()));
  }
}

TEST(AttentionCached, RowDoesNotDependOnItsCompany) {
  const Cache cache(6, 6, 2, 200, 24);
  Ints slot, length;
  for (int32_t r = 0; r < 40; r++) slot.push_back(r / 3 * 5 % 6), length.push_back(1 + r * 67 % 200);
  const Floats q = normal(40 * cache.row(), 7);
  Guarded all(40 * cache.row());
  with_threads(3, [&] { cache.attend(q.data(), slot, length, all.begin()); });
  for (size_t first : {0, 1, 5, 20, 39})
    for (size_t count : {1, 2, 5, 20}) {
      if (first + count > 40) continue;
      Guarded some(static_cast<int64_t>(count) * cache.row());
      with_threads(1, [&] {
        cache.attend(&q[first * cache.row()], Ints(&slot[first], &slot[first] + count),
                     Ints(&length[first], &length[first] + count), some.begin());
      });
      ASSERT_TRUE(same_bits(some.begin(), all.begin() + first * cache.row(), count * cache.row()))
          << count << " rows from " << first;
    }
}

TEST(AttentionCached, WhatLiesBeyondTheLengthDoesNotMatter) {
  Cache cache(1, 4, 2, 130, 24);
  const Ints slot{0, 0, 0, 0}, length{3, 66, 65, 70};
  const Floats q = normal(4 * cache.row(), 8);
  Guarded clean(4 * cache.row()), dirty(4 * cache.row());
  cache.attend(q.data(), slot, length, clean.begin());
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = (h * 130 + 66) * 24; i < (h + 1) * 130 * 24; i++) cache.k[i] = cache.v[i] = NAN;
  cache.attend(q.data(), slot, length, dirty.begin());
  EXPECT_TRUE(same_bits(clean.begin(), dirty.begin(), 3 * cache.row()));
  EXPECT_TRUE(std::isnan(dirty[3 * cache.row()]));
}

TEST(AttentionCached, EmptyAndInvalid) {
  const Cache cache(2, 4, 2, 8, 16);
  const Floats q = normal(cache.row(), 9);
  Guarded out(cache.row());
  EXPECT_EQ(cache.attend(nullptr, {}, {}, nullptr), MGRPO_OK);
  EXPECT_EQ(cache.attend(q.data(), {2}, {1}, out.begin()), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(cache.attend(q.data(), {-1}, {1}, out.begin()), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(cache.attend(q.data(), {0}, {9}, out.begin()), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(cache.attend(q.data(), {0}, {-1}, out.begin()), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(cache.attend(nullptr, {0}, {1}, out.begin()), MGRPO_INVALID_ARGUMENT);
  const Ints slot{0}, length{1};
  const auto with = [&](int64_t heads, int64_t kv_heads, int64_t hd) {
    return mgrpo_attention_cached_cpu(q.data(), cache.k.data(), cache.v.data(), slot.data(), length.data(),
                                      out.begin(), 1, 1, heads, kv_heads, 8, hd, kScale);
  };
  EXPECT_EQ(with(3, 2, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(4, 0, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(4, -2, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(1, 1, 257), MGRPO_INVALID_ARGUMENT);
  for (float v : out.values()) EXPECT_TRUE(std::isnan(v)) << "written in spite of the error";
  ASSERT_EQ(cache.attend(q.data(), {1}, {0}, out.begin()), MGRPO_OK);
  EXPECT_EQ(out.values(), Floats(cache.row(), 0.0f));
}

TEST(CacheWrite, PutsRowsInTheirPlaces) {
  const int64_t slots = 3, kv_heads = 2, max_len = 4, hd = 5;
  const Ints slot{2, 0, 2, 2}, pos{3, 0, 1, 3};
  const Floats x = normal(4 * kv_heads * hd, 10);
  const Floats before = normal(slots * kv_heads * max_len * hd, 11);
  Floats want = before;
  for (size_t r = 0; r < slot.size(); r++)
    for (int64_t h = 0; h < kv_heads; h++)
      for (int64_t c = 0; c < hd; c++)
        want[((slot[r] * kv_heads + h) * max_len + pos[r]) * hd + c] = x[(r * kv_heads + h) * hd + c];
  Guarded cache(before);
  const auto write = [&](const Ints &s, const Ints &p) {
    return mgrpo_cache_write_cpu(cache.begin(), x.data(), s.data(), p.data(), static_cast<int64_t>(s.size()), slots,
                                 kv_heads, max_len, hd);
  };
  EXPECT_EQ(write({}, {}), MGRPO_OK);
  EXPECT_EQ(write({0, 3}, {0, 0}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(write({0, -1}, {0, 0}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(write({0, 0}, {0, 4}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(write({0, 0}, {0, -1}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_cache_write_cpu(nullptr, x.data(), slot.data(), pos.data(), 4, slots, kv_heads, max_len, hd),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(cache.values(), before);
  EXPECT_EQ(write(slot, pos), MGRPO_OK);
  EXPECT_EQ(cache.values(), want);
}

}  // namespace
