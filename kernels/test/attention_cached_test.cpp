#include <algorithm>

#include "layer_testing.h"
#include "mgrpo/attention.h"
#include "mgrpo/heads.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kTolerance = 256 * kEpsilon;  // relative to the largest value
constexpr float kScale = 0.3f;

class AttentionCached : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(AttentionCached);

struct Cache {
  int64_t slots, heads, kv_heads, max_len, hd;
  Floats k, v;  // [slots, kv_heads, max_len, hd]
  int32_t dtype = MGRPO_FLOAT32;
  bool aligned = false;
  int64_t window = 0, block = 16;
  Floats sinks;  // by head; if empty, there are no sinks

  Cache(int64_t slots, int64_t heads, int64_t kv_heads, int64_t max_len, int64_t hd)
      : slots(slots),
        heads(heads),
        kv_heads(kv_heads),
        max_len(max_len),
        hd(hd),
        k(normal(slots * kv_heads * max_len * hd, 1)),
        v(normal(slots * kv_heads * max_len * hd, 2)) {}

  int64_t row() const { return heads * hd; }
  int32_t status(const Backend &b, const Floats &q, const Ints &slot, const Ints &length, Array &out) const {
    return status(b, q, slot, length, out, Table(slots, max_len, block));
  }
  int32_t status(const Backend &b, const Floats &q, const Ints &slot, const Ints &length, Array &out, const Table &table) const {
    const auto in_blocks = [&](const Floats &x) { return table.in_blocks(x, kv_heads, max_len, hd); };
    return status(b, q, slot, length, out, table, in_blocks(k), in_blocks(v));
  }
  int32_t status(const Backend &b, const Floats &q, const Ints &slot, const Ints &length, Array &out, const Table &table,
                 const Floats &k_blocks, const Floats &v_blocks) const {
    Array Q(b, dtype, q, aligned), K(b, dtype, k_blocks, aligned), V(b, dtype, v_blocks, aligned);
    Buffer<int32_t> s(b, slot), l(b, length), t(b, table.entries);
    Buffer<float> terms(b, sinks);
    return b.attention_cached(Q.get(), K.get(), V.get(), table.pages(t.get(), kv_heads, hd), s.get(), l.get(),
                              sinks.empty() ? nullptr : terms.get(), dtype, out.get(), static_cast<int64_t>(slot.size()), heads, kScale,
                              window);
  }
  int64_t first(int64_t length) const { return window > 0 && length > window ? length - window : 0; }
  Floats attend(const Backend &b, const Floats &q, const Ints &slot, const Ints &length) const {
    Array out(b, dtype, static_cast<int64_t>(q.size()), aligned);
    EXPECT_EQ(status(b, q, slot, length, out), MGRPO_OK);
    return out.values();
  }
  std::vector<double> oracle(const Floats &q, const Ints &slot, const Ints &length) const {
    std::vector<double> out(q.size(), 0.0);
    for (size_t r = 0; r < slot.size(); r++)
      for (int64_t h = 0; h < heads; h++) {
        const int64_t at = (static_cast<int64_t>(r) * heads + h) * hd;
        const int64_t base = (slot[r] * kv_heads + h / (heads / kv_heads)) * max_len * hd;
        std::vector<double> weight;
        double sum = sinks.empty() ? 0 : std::exp(static_cast<double>(sinks[h]));
        for (int64_t j = first(length[r]); j < length[r]; j++) {
          double score = 0;
          for (int64_t c = 0; c < hd; c++) score += static_cast<double>(q[at + c]) * k[base + j * hd + c];
          weight.push_back(std::exp(score * kScale));
          sum += weight.back();
        }
        for (int64_t j = first(length[r]); j < length[r]; j++)
          for (int64_t c = 0; c < hd; c++) out[at + c] += weight[j - first(length[r])] / sum * v[base + j * hd + c];
      }
    return out;
  }
};

struct Shape {
  int64_t heads, kv_heads, hd;
};
const Shape kShapes[] = {{1, 1, 1}, {4, 2, 16}, {6, 2, 24}, {3, 3, 32}, {9, 3, 64}, {2, 1, 128}, {20, 1, 20}, {7, 1, 256}};

TEST_P(AttentionCached, MatchesFloat64) {
  for (auto [heads, kv_heads, hd] : kShapes) {
    Cache cache(5, heads, kv_heads, 150, hd);
    const Ints slot{3, 0, 0, 0, 4, 4, 1, 3}, length{1, 64, 65, 7, 150, 129, 0, 63};
    const Floats q = normal(8 * cache.row(), 3), out = cache.attend(backend(), q, slot, length);
    EXPECT_TRUE(close_to(out, cache.oracle(q, slot, length), 0, kTolerance)) << hd;
    cache.aligned = true;
    EXPECT_TRUE(same_bits(cache.attend(backend(), q, slot, length), out)) << hd;
  }
}

int64_t widest_head(const Backend &b) { return b.name == "cpu" ? 512 : 256; }

TEST_P(AttentionCached, WidestHeadMatchesFloat64) {
  const Cache cache(3, 4, 2, 150, widest_head(backend()));
  const Ints slot{2, 0, 0, 1}, length{150, 64, 65, 7};
  const Floats q = normal(4 * cache.row(), 3);
  EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), 0, kTolerance));
}

TEST_P(AttentionCached, WindowMatchesFloat64) {
  for (auto [heads, kv_heads, hd] : kShapes)
    for (int64_t window : {1, 7, 63, 64, 100, 1000}) {
      Cache cache(5, heads, kv_heads, 150, hd);
      cache.window = window;
      const Ints slot{3, 0, 0, 0, 4, 4, 1, 3}, length{1, 64, 65, 7, 150, 129, 0, 63};
      const Floats q = normal(8 * cache.row(), 3);
      EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), 0, kTolerance)) << hd << ", " << window;
    }
}

TEST_P(AttentionCached, LongRows) {
  Cache cache(2, 2, 1, 8300, 4);  // more parts of 256 keys than a GPU divides a row of this length into
  const Ints slot{0, 1, 0, 1, 1}, length{8300, 8192, 257, 1, 2600};
  const Floats q = normal(5 * cache.row(), 4);
  for (int64_t window : {0, 300, 8200}) {
    cache.window = window;
    EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), 0, kTolerance)) << window;
  }
}

TEST_P(AttentionCached, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (auto [heads, kv_heads, hd] : kShapes)
    for (bool aligned : {false, true}) {
      Cache cache(2, heads, kv_heads, 300, hd);
      cache.k = rounded_to_bf16(cache.k), cache.v = rounded_to_bf16(cache.v);
      cache.dtype = MGRPO_BFLOAT16, cache.aligned = aligned;
      const Ints slot{1, 0, 1}, length{300, 33, 0};
      const Floats q = rounded_to_bf16(normal(3 * cache.row(), 5));
      EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), kBf16Epsilon, kTolerance)) << hd;
    }
}

// Shapes with a code path of their own on tensor cores: query heads per key/value head below, at and above the columns of a product.
const Shape kGrouped[] = {{1, 1, 64},  {6, 2, 64},  {4, 1, 80},   {5, 1, 128}, {14, 2, 64}, {8, 1, 96},  {14, 1, 64}, {28, 2, 128},
                          {16, 1, 96}, {17, 1, 20}, {16, 1, 256}, {8, 2, 256}, {7, 1, 130}, {4, 1, 121}, {12, 1, 3}};

Cache in_bf16(Cache cache) {
  cache.k = rounded_to_bf16(cache.k), cache.v = rounded_to_bf16(cache.v);
  cache.dtype = MGRPO_BFLOAT16;
  return cache;
}

TEST_P(AttentionCached, GroupedHeadsInBf16MatchFloat64) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (auto [heads, kv_heads, hd] : kGrouped) {
    Cache cache = in_bf16(Cache(3, heads, kv_heads, 530, hd));
    const Ints slot{1, 0, 1, 1, 2, 2, 0}, length{530, 33, 0, 1, 128, 129, 17};
    const Floats q = rounded_to_bf16(normal(7 * cache.row(), 5));
    for (int64_t window : {0, 5, 150}) {
      cache.window = window, cache.aligned = true;
      const Floats out = cache.attend(backend(), q, slot, length);
      EXPECT_TRUE(close_to(out, cache.oracle(q, slot, length), kBf16Epsilon, kTolerance)) << heads << ", " << hd << ", " << window;
      cache.aligned = false;
      EXPECT_TRUE(same_bits(cache.attend(backend(), q, slot, length), out)) << heads << ", " << hd << ", " << window << ": unaligned";
    }
  }
}

TEST_P(AttentionCached, LongRowsInBf16) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  Cache cache = in_bf16(Cache(2, 4, 1, 5000, 8));  // hd is too small for whole packs of a tile; in `wide` it is large enough
  Cache wide = in_bf16(Cache(1, 5, 1, 4300, 64));
  wide.aligned = true;
  for (int64_t window : {0, 2300}) {
    cache.window = wide.window = window;
    const Ints slot{0, 1, 0, 1}, length{5000, 257, 1, 2600}, first{0, 0}, lengths{4300, 2049};
    const Floats q = rounded_to_bf16(normal(4 * cache.row(), 4)), wide_q = rounded_to_bf16(normal(2 * wide.row(), 5));
    EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), kBf16Epsilon, kTolerance)) << window;
    EXPECT_TRUE(close_to(wide.attend(backend(), wide_q, first, lengths), wide.oracle(wide_q, first, lengths), kBf16Epsilon, kTolerance))
        << window;
  }
}

// Each warp of a GPU processes more than 32 tiles of each part.
TEST_P(AttentionCached, VeryLongRowInBf16) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  Cache cache = in_bf16(Cache(1, 1, 1, 140'000, 64));
  cache.aligned = true;
  for (int64_t j = 0; j < 140'000; j++) cache.v[j * 64] = 1 + static_cast<float>(j / 16 % 8);  // by tile
  const Floats q = rounded_to_bf16(normal(cache.row(), 5, 0.1f));
  EXPECT_TRUE(close_to(cache.attend(backend(), q, {0}, {140'000}), cache.oracle(q, {0}, {140'000}), kBf16Epsilon, kTolerance));
}

// With many rows, fewer blocks share the parts of a row than if it were alone.
TEST_P(AttentionCached, LongRowsDoNotDependOnTheirCompany) {
  for (bool bf16 : {false, true}) {
    if (bf16 && !has_bf16(backend())) continue;
    Cache cache(1, 8, 8, 2700, 8);
    if (bf16) cache = in_bf16(cache);
    Ints slot(80, 0), length(80, 1);
    length[7] = 2600, length[79] = 2100;
    for (auto *x : {&cache.k, &cache.v})  // keys after the longest row
      for (int64_t h = 0; h < 8; h++) std::fill_n(&(*x)[(h * 2700 + 2600) * 8], 100 * 8, NAN);
    Floats q = normal(80 * cache.row(), 4);
    if (bf16) q = rounded_to_bf16(q);
    const Floats all = cache.attend(backend(), q, slot, length);
    EXPECT_TRUE(close_to(all, cache.oracle(q, slot, length), bf16 ? kBf16Epsilon : 0, kTolerance)) << bf16;
    for (int64_t r : {0, 7, 79})
      EXPECT_TRUE(same_bits(cache.attend(backend(), part(q, r * cache.row(), cache.row()), {0}, {length[static_cast<size_t>(r)]}),
                            part(all, r * cache.row(), cache.row())))
          << r << ", " << bf16;
  }
}

// A row can have 64 parts in a table of this width. The parts of all rows exceed the space of one launch on a GPU.
TEST_P(AttentionCached, RowsOfSeveralLaunches) {
  const int64_t rows = 20;
  const Cache cache(1, 64, 1, 16400, 256);
  Ints slot(rows, 0), length;
  for (int32_t r = 0; r < rows; r++) length.push_back(r % 10 == 9 ? 300 : 1 + r);
  const Floats q = normal(rows * cache.row(), 4), all = cache.attend(backend(), q, slot, length);
  EXPECT_TRUE(close_to(all, cache.oracle(q, slot, length), 0, kTolerance));
  for (int64_t r : {0, 9, 10, 19})
    EXPECT_TRUE(same_bits(cache.attend(backend(), part(q, r * cache.row(), cache.row()), {0}, {length[static_cast<size_t>(r)]}),
                          part(all, r * cache.row(), cache.row())))
        << r;
}

TEST_P(AttentionCached, WhatIsNotSeenDoesNotMatterInBf16) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (int64_t block : {1, 8, 16, 64}) {
    Cache cache = in_bf16(Cache(2, 8, 2, 150, 64));
    cache.window = 70, cache.block = 256, cache.aligned = true;
    const Ints slot{0, 1, 0, 1}, length{150, 100, 90, 81};
    const Floats q = rounded_to_bf16(normal(4 * cache.row(), 6)), clean = cache.attend(backend(), q, slot, length);
    cache.block = block;
    for (int64_t r = 0; r < 4; r++)
      EXPECT_TRUE(same_bits(cache.attend(backend(), part(q, r * cache.row(), cache.row()), {slot[r]}, {length[r]}),
                            part(clean, r * cache.row(), cache.row())))
          << "row " << r << " alone, blocks of " << block;
    for (auto *x : {&cache.k, &cache.v})  // no row sees the second sequence before 11 or from 100 on
      for (int64_t h = 2; h < 4; h++)
        for (int64_t j = 0; j < 150; j++)
          if (j < 11 || j >= 100) std::fill_n(&(*x)[(h * 150 + j) * 64], 64, NAN);
    EXPECT_TRUE(same_bits(cache.attend(backend(), q, slot, length), clean)) << block;
    cache.k[(2 * 150 + 60) * 64 + 63] = NAN;  // a key of the second sequence's first key/value head
    const Floats dirty = cache.attend(backend(), q, slot, length);
    for (int64_t r = 0; r < 4; r++)
      for (int64_t i = 0; i < cache.row(); i++) {
        const float got = dirty[r * cache.row() + i];
        if (slot[r] == 1 && i < 4 * 64)
          ASSERT_TRUE(std::isnan(got)) << r << ", " << i;
        else
          ASSERT_EQ(got, clean[r * cache.row() + i]) << r << ", " << i;
      }
  }
}

TEST_P(AttentionCached, TableOutsideTheCacheInBf16) {
  const Backend &b = backend();
  if (!has_bf16(b) || b.refuses_places) GTEST_SKIP() << "float32 only, or places are refused";
  Cache cache = in_bf16(Cache(2, 4, 1, 64, 64));
  cache.aligned = true;
  const Floats q = rounded_to_bf16(normal(4 * cache.row(), 10));
  const Ints slot{0, 1, 2, 0}, length{64, 64, 3, 65};
  Table table(2, 64, 16);
  const Floats keys = table.in_blocks(cache.k, 1, 64, 64), values = table.in_blocks(cache.v, 1, 64, 64);
  table.entries[5] = -1;
  Array out(b, cache.dtype, 4 * cache.row(), true);
  ASSERT_EQ(cache.status(b, q, slot, length, out, table, keys, values), MGRPO_OK);
  EXPECT_TRUE(same_bits(part(out.values(), 0, cache.row()), cache.attend(b, part(q, 0, cache.row()), {0}, {64})));
  for (float v : part(out.values(), cache.row(), 3 * cache.row())) ASSERT_TRUE(std::isnan(v));
}

using Halves = std::vector<uint16_t>;

Halves halves(const Floats &x) {
  Halves all;
  for (float v : x) all.push_back(to_bf16(v));
  return all;
}

// The CPU reads a cache of bf16 for queries of float.
TEST(HalfCache, GivesTheBitsOfItsFloats) {
  for (auto [heads, kv_heads, hd] : kShapes)
    for (int64_t window : {0, 70})
      for (bool with_sinks : {false, true}) {
        Cache cache(3, heads, kv_heads, 150, hd);
        cache.k = rounded_to_bf16(cache.k), cache.v = rounded_to_bf16(cache.v), cache.window = window;
        if (with_sinks) cache.sinks = normal(heads, 11, 2);
        Ints slot{2, 0, 0, 1}, length{1, 64, 0, 131};
        for (int32_t t = 1; t <= 150; t++) slot.push_back(2), length.push_back(t);
        const int64_t rows = static_cast<int64_t>(slot.size());
        const Floats q = normal(rows * cache.row(), 3), want = cache.attend(cpu(), q, slot, length);
        const Table table(3, 150, cache.block);
        const Halves k = halves(table.in_blocks(cache.k, kv_heads, 150, hd)), v = halves(table.in_blocks(cache.v, kv_heads, 150, hd));
        Guarded out(rows * cache.row());
        ASSERT_EQ(mgrpo_attention_cached_cpu(q.data(), k.data(), v.data(), MGRPO_BFLOAT16, table.pages(table.entries.data(), kv_heads, hd),
                                             slot.data(), length.data(), with_sinks ? cache.sinks.data() : nullptr, out.begin(), rows,
                                             heads, kScale, window),
                  MGRPO_OK);
        EXPECT_TRUE(same_bits(out.values(), want)) << hd << ", " << window;
      }
}

TEST(HalfCache, OtherTypesAreInvalid) {
  const Cache cache(1, 1, 1, 16, 4);
  const Floats q = normal(4, 3);
  const Table table(1, 16, 16);
  const Ints slot{0}, length{16};
  Guarded out(4);
  for (int32_t dtype : {0, 5, int32_t{MGRPO_FLOAT64}})
    EXPECT_EQ(mgrpo_attention_cached_cpu(q.data(), cache.k.data(), cache.v.data(), dtype, table.pages(table.entries.data(), 1, 4),
                                         slot.data(), length.data(), nullptr, out.begin(), 1, 1, kScale, 0),
              MGRPO_INVALID_ARGUMENT);
}

void prefill_in_one_call(const Backend &backend, int64_t window, bool with_sinks = false) {
  for (auto [heads, kv_heads, hd] : kShapes) {
    const int32_t tokens = 140;
    Cache cache(2, heads, kv_heads, tokens, hd);
    cache.window = window;
    if (with_sinks) cache.sinks = normal(heads, 11, 2);
    const float *sinks_or_null = with_sinks ? cache.sinks.data() : nullptr;
    const Floats q = normal(tokens * cache.row(), 4), k = normal(tokens * kv_heads * hd, 5), v = normal(tokens * kv_heads * hd, 6);
    Ints slot(tokens, 1), pos, length;
    for (int32_t t = 0; t < tokens; t++) pos.push_back(t), length.push_back(t + 1);
    const Table table(2, tokens, cache.block);
    const int64_t elements = table.blocks * kv_heads * table.block * hd, width = (heads + 2 * kv_heads) * hd;
    Floats qkv;
    for (int64_t t = 0; t < tokens; t++) {
      qkv.insert(qkv.end(), &q[t * cache.row()], &q[t * cache.row()] + cache.row());
      for (const Floats *x : {&k, &v}) qkv.insert(qkv.end(), &(*x)[t * kv_heads * hd], &(*x)[t * kv_heads * hd] + kv_heads * hd);
    }
    ASSERT_EQ(static_cast<int64_t>(qkv.size()), tokens * width);
    Array product(backend, MGRPO_FLOAT32, qkv), queries(backend, MGRPO_FLOAT32, tokens * cache.row()),
        in_k(backend, MGRPO_FLOAT32, elements), in_v(backend, MGRPO_FLOAT32, elements);
    Buffer<int32_t> s(backend, slot), p(backend, pos), t(backend, table.entries);
    mgrpo_heads layout{};
    layout.heads = heads, layout.kv_heads = kv_heads, layout.hd = hd, layout.pos = p.get();
    ASSERT_EQ(backend.cache_heads(product.get(), layout, MGRPO_FLOAT32, queries.get(), in_k.get(), in_v.get(),
                                  table.pages(t.get(), kv_heads, hd), s.get(), tokens),
              MGRPO_OK);
    ASSERT_TRUE(same_bits(queries.values(), q));
    const Floats keys = in_k.values(), values = in_v.values();
    const auto attend = [&](const Floats &q, const Ints &slot, const Ints &length) {
      Array out(backend, MGRPO_FLOAT32, static_cast<int64_t>(q.size()));
      EXPECT_EQ(cache.status(backend, q, slot, length, out, table, keys, values), MGRPO_OK);
      return out.values();
    };
    Floats prefill;
    with_threads(2, [&] { prefill = attend(q, slot, length); });
    for (int32_t t = 0; t < tokens; t += backend.is_emulated ? 13 : 1) {
      const Floats step = attend(part(q, t * cache.row(), cache.row()), {1}, {t + 1});
      ASSERT_TRUE(same_bits(step, part(prefill, t * cache.row(), cache.row()))) << "token " << t;
    }
    if (&backend != &cpu()) continue;
    Guarded packed(tokens * cache.row()), lse(tokens * heads);
    mgrpo_attention_packed_cpu(q.data(), k.data(), v.data(), Ints{0, tokens}.data(), nullptr, 1, sinks_or_null, packed.begin(), lse.begin(),
                               heads, kv_heads, hd, kScale, window);
    EXPECT_TRUE(same_bits(packed.values(), prefill));
  }
}

TEST_P(AttentionCached, PrefillInOneCallEqualsTokenByTokenAndPackedAttention) { prefill_in_one_call(backend(), 0); }

TEST_P(AttentionCached, PrefillOfAWindowInOneCallEqualsTokenByTokenAndPackedAttention) {
  for (int64_t window : {5, 70}) prefill_in_one_call(backend(), window);
}

TEST_P(AttentionCached, PrefillWithSinksInOneCallEqualsTokenByTokenAndPackedAttention) {
  for (int64_t window : {0, 5, 70}) prefill_in_one_call(backend(), window, true);
}

TEST_P(AttentionCached, SinksMatchFloat64) {
  for (auto [heads, kv_heads, hd] : kShapes)
    for (int64_t window : {0, 7, 100}) {
      Cache cache(5, heads, kv_heads, 150, hd);
      cache.window = window, cache.sinks = normal(heads, 11, 2);
      const Ints slot{3, 0, 0, 0, 4, 4, 1, 3}, length{1, 64, 65, 7, 150, 129, 0, 63};
      const Floats q = normal(8 * cache.row(), 3);
      EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), 0, kTolerance)) << hd << ", " << window;
    }
}

TEST_P(AttentionCached, SinksOfLongRows) {
  for (bool bf16 : {false, true}) {
    if (bf16 && !has_bf16(backend())) continue;
    Cache cache(2, 4, 2, 2700, 16);
    if (bf16) cache.k = rounded_to_bf16(cache.k), cache.v = rounded_to_bf16(cache.v), cache.dtype = MGRPO_BFLOAT16;
    cache.sinks = {6, 8, 0, -5};
    const Ints slot{0, 1, 0, 1}, length{2700, 257, 1, 1400};
    Floats q = normal(4 * cache.row(), 4);
    if (bf16) q = rounded_to_bf16(q);
    const Floats all = cache.attend(backend(), q, slot, length);
    EXPECT_TRUE(close_to(all, cache.oracle(q, slot, length), bf16 ? kBf16Epsilon : 0, kTolerance)) << bf16;
    for (int64_t r : {0, 3})
      EXPECT_TRUE(same_bits(cache.attend(backend(), part(q, r * cache.row(), cache.row()), {slot[r]}, {length[r]}),
                            part(all, r * cache.row(), cache.row())));
    cache.sinks.assign(4, -INFINITY);
    const Floats without = cache.attend(backend(), q, slot, length);
    cache.sinks.clear();
    EXPECT_TRUE(same_bits(without, cache.attend(backend(), q, slot, length))) << "sinks of -Inf, " << bf16;
  }
}

TEST_P(AttentionCached, SinksInBf16MatchFloat64) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (auto [heads, kv_heads, hd] : {Shape{6, 2, 64}, {16, 2, 64}, {5, 1, 128}, {17, 1, 20}, {8, 2, 256}}) {
    Cache cache(3, heads, kv_heads, 310, hd);
    cache.k = rounded_to_bf16(cache.k), cache.v = rounded_to_bf16(cache.v), cache.dtype = MGRPO_BFLOAT16;
    cache.sinks = normal(heads, 11, 2);
    const Ints slot{1, 0, 1, 1, 2, 2, 0}, length{310, 33, 0, 1, 128, 129, 17};
    const Floats q = rounded_to_bf16(normal(7 * cache.row(), 5));
    for (int64_t window : {0, 128}) {
      cache.window = window;
      EXPECT_TRUE(close_to(cache.attend(backend(), q, slot, length), cache.oracle(q, slot, length), kBf16Epsilon, kTolerance))
          << heads << ", " << hd;
    }
  }
}

TEST_P(AttentionCached, SinksFarAboveAndBelowScores) {
  Cache cache(1, 3, 1, 40, 8);
  cache.sinks = {1e4f, 300, -1e4f};
  const Floats q = normal(cache.row(), 3), out = cache.attend(backend(), q, {0}, {40});
  for (int64_t c = 0; c < cache.hd; c++) EXPECT_EQ(out[c], 0.0f);
  for (int64_t c = 0; c < cache.hd; c++) EXPECT_LT(std::fabs(out[cache.hd + c]), 1e-30f);
  cache.sinks = {};
  EXPECT_TRUE(same_bits(part(out, 2 * cache.hd, cache.hd), part(cache.attend(backend(), q, {0}, {40}), 2 * cache.hd, cache.hd)));
}

TEST_P(AttentionCached, RowDoesNotDependOnItsCompany) {
  for (int64_t window : {0, 19}) {
    Cache cache(6, 6, 2, 200, 24);
    cache.window = window;
    Ints slot, length;
    for (int32_t r = 0; r < 40; r++) slot.push_back(r / 3 * 5 % 6), length.push_back(1 + r * 67 % 200);
    const Floats q = normal(40 * cache.row(), 7);
    Floats all;
    with_threads(3, [&] { all = cache.attend(backend(), q, slot, length); });
    for (size_t first : {0, 1, 5, 20, 39})
      for (size_t count : {1, 2, 5, 20}) {
        if (first + count > 40) continue;
        Floats some;
        with_threads(1, [&] {
          some = cache.attend(backend(), part(q, first * cache.row(), count * cache.row()), Ints(&slot[first], &slot[first] + count),
                              Ints(&length[first], &length[first] + count));
        });
        ASSERT_TRUE(same_bits(some, part(all, first * cache.row(), count * cache.row()))) << count << " rows from " << first;
      }
  }
}

TEST_P(AttentionCached, WhatLiesBeforeTheWindowDoesNotMatter) {
  Cache cache(1, 4, 2, 130, 24);
  cache.window = 20;
  const Ints slot{0, 0, 0, 0}, length{60, 86, 87, 130};
  const Floats q = normal(4 * cache.row(), 8), clean = cache.attend(backend(), q, slot, length);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = h * 130 * 24; i < (h * 130 + 66) * 24; i++) cache.k[i] = cache.v[i] = NAN;
  const Floats dirty = cache.attend(backend(), q, slot, length);
  EXPECT_TRUE(same_bits(part(clean, cache.row(), 3 * cache.row()), part(dirty, cache.row(), 3 * cache.row())));
  for (float v : part(dirty, 0, cache.row())) EXPECT_TRUE(std::isnan(v));
}

TEST_P(AttentionCached, WhatLiesBeyondTheLengthDoesNotMatter) {
  Cache cache(1, 4, 2, 130, 24);
  const Ints slot{0, 0, 0, 0}, length{3, 66, 65, 70};
  const Floats q = normal(4 * cache.row(), 8), clean = cache.attend(backend(), q, slot, length);
  for (int64_t h = 0; h < 2; h++)
    for (int64_t i = (h * 130 + 66) * 24; i < (h + 1) * 130 * 24; i++) cache.k[i] = cache.v[i] = NAN;
  const Floats dirty = cache.attend(backend(), q, slot, length);
  EXPECT_TRUE(same_bits(part(clean, 0, 3 * cache.row()), part(dirty, 0, 3 * cache.row())));
  for (float v : part(dirty, 3 * cache.row(), cache.row())) EXPECT_TRUE(std::isnan(v));
}

TEST_P(AttentionCached, ScoresFarApart) {
  const int64_t length = 300;
  Cache cache(1, 2, 1, length, 8);
  const Floats q(cache.row(), 1.0f);
  for (int64_t j = 0; j < length; j++)  // scores rise by thousands, from far below 0 to far above
    for (int64_t c = 0; c < cache.hd; c++) cache.k[j * cache.hd + c] = static_cast<float>((j - 150) * 1000);
  const Floats out = cache.attend(backend(), q, {0}, {static_cast<int32_t>(length)}),
               last = part(cache.v, (length - 1) * cache.hd, cache.hd);
  for (int64_t h = 0; h < 2; h++) EXPECT_TRUE(same_bits(part(out, h * cache.hd, cache.hd), last));
}

TEST_P(AttentionCached, BlocksDoNotMatter) {
  for (int64_t window : {0, 50}) {
    Cache cache(3, 6, 2, 200, 24);
    cache.window = window;
    const Ints slot{2, 0, 1, 1, 1, 1}, length{200, 33, 70, 71, 72, 73};
    const Floats q = normal(6 * cache.row(), 3);
    cache.block = 256;  // one block per sequence
    const Floats want = cache.attend(backend(), q, slot, length);
    for (int64_t block : {1, 8, 32, 64, 128}) {
      cache.block = block;
      EXPECT_TRUE(same_bits(cache.attend(backend(), q, slot, length), want)) << block << ", " << window;
    }
  }
}

TEST_P(AttentionCached, SequencesShareBlocks) {
  Cache cache(2, 4, 2, 60, 16);
  for (auto *x : {&cache.k, &cache.v})  // the first 32 tokens of both sequences share their blocks
    for (int64_t h = 0; h < 2; h++) std::copy_n(&(*x)[h * 60 * 16], 32 * 16, &(*x)[(2 + h) * 60 * 16]);
  const Ints slot{0, 1, 1}, length{60, 45, 46};
  const Floats q = normal(3 * cache.row(), 3);
  Table table(2, 60, 16);
  table.entries[4] = table.entries[0], table.entries[5] = table.entries[1];
  Array out(backend(), MGRPO_FLOAT32, 3 * cache.row());
  ASSERT_EQ(cache.status(backend(), q, slot, length, out, table), MGRPO_OK);
  EXPECT_TRUE(same_bits(out.values(), cache.attend(backend(), q, slot, length)));
}

TEST_P(AttentionCached, EmptyAndInvalid) {
  const Backend &b = backend();
  const Cache cache(2, 4, 2, 8, 16);
  const Floats q = normal(cache.row(), 9);
  Array out(b, MGRPO_FLOAT32, cache.row());
  EXPECT_EQ(cache.status(b, {}, {}, {}, out), MGRPO_OK);
  Array Q(b, MGRPO_FLOAT32, q), K(b, MGRPO_FLOAT32, cache.k), V(b, MGRPO_FLOAT32, cache.v);
  Buffer<int32_t> slot(b, Ints{0}), length(b, Ints{1}), table(b, Ints{0});
  const auto with = [&](const void *queries, int64_t heads, int64_t kv_heads, int64_t hd, int64_t block = 8, int64_t window = 0) {
    return b.attention_cached(queries, K.get(), V.get(), {table.get(), 1, 1, 1, kv_heads, block, hd}, slot.get(), length.get(), nullptr,
                              MGRPO_FLOAT32, out.get(), 1, heads, kScale, window);
  };
  EXPECT_EQ(with(nullptr, 4, 2, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(Q.get(), 3, 2, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(Q.get(), 4, 0, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(Q.get(), 4, -2, 16), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(Q.get(), 1, 1, widest_head(b) + 1), MGRPO_INVALID_ARGUMENT);
  for (int64_t block : {int64_t{0}, int64_t{-8}, int64_t{6}, int64_t{1} << 60})
    EXPECT_EQ(with(Q.get(), 1, 1, 1, block), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(with(Q.get(), 4, 2, 16, 8, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(out.unwritten());
  EXPECT_EQ(cache.attend(b, q, {1}, {0}), Floats(cache.row(), 0.0f));
}

TEST_P(AttentionCached, PlaceOutsideTheCache) {
  const Backend &b = backend();
  Cache cache(2, 4, 2, 8, 16);
  cache.block = 4;
  const Floats q = normal(2 * cache.row(), 10);
  for (auto [slot, length] : {std::pair{2, 1}, {-1, 1}, {0, 9}, {0, -1}, {INT32_MAX, INT32_MAX}}) {
    Array out(b, MGRPO_FLOAT32, 2 * cache.row());
    const int32_t status = cache.status(b, q, {1, slot}, {8, length}, out);
    if (b.refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(out.unwritten());
      continue;
    }
    ASSERT_EQ(status, MGRPO_OK);
    EXPECT_TRUE(same_bits(part(out.values(), 0, cache.row()), cache.attend(b, part(q, 0, cache.row()), {1}, {8})));
    for (float v : part(out.values(), cache.row(), cache.row())) EXPECT_TRUE(std::isnan(v));
  }
}

TEST_P(AttentionCached, TableOutsideTheCache) {
  const Backend &b = backend();
  Cache cache(2, 4, 2, 40, 16);
  cache.window = 20;
  const Floats q = normal(2 * cache.row(), 10);
  const Ints slot{0, 1}, length{40, 40};
  Table table(2, 40, 8);
  const Floats keys = table.in_blocks(cache.k, 2, 40, 16), values = table.in_blocks(cache.v, 2, 40, 16);
  const auto status = [&](Array &out) { return cache.status(b, q, slot, length, out, table, keys, values); };
  table.entries[5] = -1, table.entries[6] = INT32_MAX;  // blocks of the second sequence, before its window
  Array clean(b, MGRPO_FLOAT32, 2 * cache.row());
  ASSERT_EQ(status(clean), MGRPO_OK);
  EXPECT_TRUE(same_bits(clean.values(), cache.attend(b, q, slot, length)));
  for (int32_t entry : {-1, static_cast<int32_t>(table.blocks), INT32_MAX, INT32_MIN}) {
    table.entries[8] = entry;
    Array out(b, MGRPO_FLOAT32, 2 * cache.row());
    const int32_t got = status(out);
    if (b.refuses_places) {
      EXPECT_EQ(got, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(out.unwritten());
      continue;
    }
    ASSERT_EQ(got, MGRPO_OK);
    EXPECT_TRUE(same_bits(part(out.values(), 0, cache.row()), part(clean.values(), 0, cache.row())));
    for (float v : part(out.values(), cache.row(), cache.row())) EXPECT_TRUE(std::isnan(v));
  }
}

}  // namespace
