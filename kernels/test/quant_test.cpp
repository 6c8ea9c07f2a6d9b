#include "mgrpo/quant.h"

#include <array>

#include "layer_testing.h"
#include "mgrpo/linear.h"

using namespace conformance;
using namespace layer_testing;

namespace {

using Bytes = std::vector<uint8_t>;

// A type, its block size, and the offsets of the block's binary16 scales.
struct Type {
  const char *name;
  int32_t number;
  int64_t length, bytes;
  std::vector<int64_t> scales;
};

const Type kTypes[] = {
    {"Q4_0", MGRPO_Q4_0, 32, 18, {0}},      {"Q4_1", MGRPO_Q4_1, 32, 20, {0, 2}},  {"Q5_0", MGRPO_Q5_0, 32, 22, {0}},
    {"Q5_1", MGRPO_Q5_1, 32, 24, {0, 2}},   {"Q8_0", MGRPO_Q8_0, 32, 34, {0}},     {"Q4_K", MGRPO_Q4_K, 256, 144, {0, 2}},
    {"Q5_K", MGRPO_Q5_K, 256, 176, {0, 2}}, {"Q6_K", MGRPO_Q6_K, 256, 210, {208}},
};

// Returns `count` bits as a number, beginning with bit `at`, lowest bit first.
int bits(const uint8_t *b, int64_t at, int count) {
  int v = 0;
  for (int i = 0; i < count; i++) v |= (b[(at + i) / 8] >> ((at + i) % 8) & 1) << i;
  return v;
}

// Decodes a binary16 by its definition.
double half(const uint8_t *b) {
  const int h = bits(b, 0, 16), exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h >> 15 ? -1 : 1;
  if (exponent == 31) return fraction ? kNaN : sign * kInf;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// Returns weight i of a block, as the layout describes it.
double weight_of(int32_t type, const uint8_t *b, int i) {
  const auto nibble = [=](int64_t at) { return bits(b, 8 * (at + i % 16) + i / 16 * 4, 4); };  // two halves of 16 weights
  const int group = i / 32, j = i % 32;
  const auto scaled = [=](int q) {
    const int64_t at = 8 * (4 + group % 4);
    const int scale = group < 4 ? bits(b, at, 6) : bits(b, at + 64, 4) + 16 * bits(b, at + 6, 2);
    const int minimum = group < 4 ? bits(b, at + 32, 6) : bits(b, at + 68, 4) + 16 * bits(b, at + 38, 2);
    return half(b) * scale * q - half(b + 2) * minimum;
  };
  switch (type) {
    case MGRPO_Q4_0:
      return half(b) * (nibble(2) - 8);
    case MGRPO_Q4_1:
      return half(b) * nibble(4) + half(b + 2);
    case MGRPO_Q5_0:
      return half(b) * (nibble(6) + 16 * bits(b, 16 + i, 1) - 16);
    case MGRPO_Q5_1:
      return half(b) * (nibble(8) + 16 * bits(b, 32 + i, 1)) + half(b + 2);
    case MGRPO_Q8_0:
      return half(b) * static_cast<int8_t>(b[2 + i]);
    case MGRPO_Q4_K:
      return scaled(bits(b, 8 * (16 + group / 2 * 32 + j) + group % 2 * 4, 4));
    case MGRPO_Q5_K:
      return scaled(bits(b, 8 * (48 + group / 2 * 32 + j) + group % 2 * 4, 4) + 16 * bits(b, 8 * (16 + j) + group, 1));
  }
  const int run = group % 4;  // Q6_K: two halves of four runs
  const int low = bits(b, 8 * (64 * (i / 128) + run % 2 * 32 + j) + run / 2 * 4, 4),
            high = bits(b, 8 * (128 + 32 * (i / 128) + j) + 2 * run, 2);
  return half(b + 208) * static_cast<int8_t>(b[192 + i / 16]) * (low + 16 * high - 32);
}

// Returns random blocks with finite scales of at most 2.
Bytes random_blocks(const Type &type, int64_t blocks, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes data(static_cast<size_t>(blocks * type.bytes));
  for (uint8_t &b : data) b = static_cast<uint8_t>(generator());
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t at : type.scales) data[static_cast<size_t>(block * type.bytes + at + 1)] &= 0xBF;
  return data;
}

// A matrix [n, k] in blocks, and its weights. A float holds a weight, because at most one addition rounds.
struct Quantised {
  Bytes data;
  Floats values;

  Quantised(const Type &type, int64_t n, int64_t k, unsigned seed) : Quantised(type, random_blocks(type, n * k / type.length, seed)) {}
  Quantised(const Type &type, Bytes blocks) : data(std::move(blocks)) {
    for (size_t at = 0; at < data.size(); at += static_cast<size_t>(type.bytes))
      for (int i = 0; i < type.length; i++) values.push_back(static_cast<float>(weight_of(type.number, data.data() + at, i)));
  }
};

class Dequantise : public OnEveryBackend {
 protected:
  Floats run(const Bytes &data, const Type &type, const Ints *rows, int32_t dtype, int64_t count, int64_t n, int64_t k) {
    Buffer<uint8_t> w(backend(), data);
    Array y(backend(), dtype, count * k);
    Ints none;
    Buffer<int32_t> at(backend(), rows ? *rows : none);
    EXPECT_EQ(backend().dequantise(w.get(), type.number, rows ? at.get() : nullptr, dtype, y.get(), count, n, k), MGRPO_OK);
    return y.values();
  }
};
MGRPO_EVERY_BACKEND(Dequantise);

TEST_P(Dequantise, MatchesTheFormat) {
  for (const Type &type : kTypes) {
    SCOPED_TRACE(type.name);
    const int64_t n = 7, k = 3 * type.length;
    const Quantised w(type, n, k, 1);
    EXPECT_TRUE(same_bits(run(w.data, type, nullptr, MGRPO_FLOAT32, n, n, k), w.values));
    EXPECT_TRUE(same_bits(run(w.data, type, nullptr, MGRPO_FLOAT32, 2, n, k), part(w.values, 0, 2 * k)));
    if (has_bf16(backend())) {
      EXPECT_TRUE(same_bits(run(w.data, type, nullptr, MGRPO_BFLOAT16, n, n, k), rounded_to_bf16(w.values)));
    }
    const Ints rows{6, 0, 3, 3};
    const Floats got = run(w.data, type, &rows, MGRPO_FLOAT32, 4, n, k);
    for (int i = 0; i < 4; i++) EXPECT_TRUE(same_bits(part(got, i * k, k), part(w.values, rows[i] * k, k))) << "row " << i;
  }
}

TEST_P(Dequantise, EveryScale) {
  const Type &type = kTypes[4];
  const int64_t n = 1 << 16;
  if (backend().is_emulated) GTEST_SKIP() << "takes minutes on an emulated GPU";
  Bytes data(static_cast<size_t>(n * type.bytes));
  for (int64_t i = 0; i < n; i++) {
    data[static_cast<size_t>(i * 34)] = static_cast<uint8_t>(i), data[static_cast<size_t>(i * 34 + 1)] = static_cast<uint8_t>(i >> 8);
    data[static_cast<size_t>(i * 34 + 2)] = 1, data[static_cast<size_t>(i * 34 + 33)] = 0x80;
  }
  const Quantised w(type, data);
  const Floats got = run(data, type, nullptr, MGRPO_FLOAT32, n, n, 32);
  for (size_t i = 0; i < got.size(); i++) {
    if (std::isnan(w.values[i]))
      ASSERT_TRUE(std::isnan(got[i])) << i;
    else
      ASSERT_EQ(got[i], w.values[i]) << i;
  }
}

TEST_P(Dequantise, EmptyAndInvalid) {
  const auto call = [&](const void *w, int32_t type, const int32_t *rows, void *y, int64_t count, int64_t n, int64_t k) {
    return backend().dequantise(w, type, rows, MGRPO_FLOAT32, y, count, n, k);
  };
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, 0, 4, 32), MGRPO_OK);
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, 4, 4, 0), MGRPO_OK);
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, 1, 1, 32), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, 0, 4, 33), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(call(nullptr, MGRPO_Q6_K, nullptr, nullptr, 0, 4, 32), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(call(nullptr, 10, nullptr, nullptr, 0, 4, 256), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, -1, 4, 32), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(call(nullptr, MGRPO_Q8_0, nullptr, nullptr, int64_t{1} << 40, int64_t{1} << 40, 1 << 30), MGRPO_INVALID_ARGUMENT);
  Buffer<uint8_t> w(backend(), Bytes(68));
  Buffer<float> y(backend(), 96);
  EXPECT_EQ(call(w.get(), MGRPO_Q8_0, nullptr, y.get(), 3, 2, 32), MGRPO_INVALID_ARGUMENT);  // more rows than the matrix has
}

// A GPU's call only enqueues work, so a row outside the matrix becomes NaN.
TEST_P(Dequantise, RowsOutsideOfTheMatrix) {
  const Quantised w(kTypes[4], 2, 32, 5);
  Buffer<uint8_t> data(backend(), w.data);
  Buffer<int32_t> rows(backend(), Ints{1, 2, -1});
  Buffer<float> y(backend(), 96);
  const int32_t status = backend().dequantise(data.get(), MGRPO_Q8_0, rows.get(), MGRPO_FLOAT32, y.get(), 3, 2, 32);
  if (backend().refuses_places) {
    EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
    return;
  }
  ASSERT_EQ(status, MGRPO_OK);
  const Floats got = y.values();
  EXPECT_TRUE(same_bits(part(got, 0, 32), part(w.values, 32, 32)));
  for (int i = 32; i < 96; i++) EXPECT_TRUE(std::isnan(got[static_cast<size_t>(i)])) << i;
}

TEST(QuantRowBytes, IsThatOfTheFormat) {
  for (const Type &type : kTypes) {
    EXPECT_EQ(mgrpo_quant_row_bytes(type.number, 5 * type.length), 5 * type.bytes) << type.name;
    EXPECT_EQ(mgrpo_quant_row_bytes(type.number, 0), 0);
    EXPECT_EQ(mgrpo_quant_row_bytes(type.number, type.length + 16), -1);
    EXPECT_EQ(mgrpo_quant_row_bytes(type.number, -type.length), -1);
  }
  for (int32_t other : {-1, 0, 1, 4, 9, 10, 11, 15, 30}) EXPECT_EQ(mgrpo_quant_row_bytes(other, 256), -1) << other;
}

class LinearQuant : public testing::TestWithParam<Type> {
 protected:
  const Type &type() const { return GetParam(); }
  int64_t columns(int64_t blocks) const { return blocks * type().length; }

  void expect_match(int64_t rows, int64_t k, int64_t n, int64_t stride, bool bias) {
    SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
    const Floats x = normal(rows * k, 1), b = normal(n, 3);
    const Quantised w(type(), n, k, 2);
    Guarded y(rows * stride), same(rows * n);
    ASSERT_EQ(mgrpo_linear_quant_cpu(x.data(), w.data.data(), type().number, bias ? b.data() : nullptr, y.begin(), stride, rows, k, n),
              MGRPO_OK);
    mgrpo_linear_cpu(x.data(), w.values.data(), bias ? b.data() : nullptr, same.begin(), rows, k, n);
    for (int64_t r = 0; r < rows; r++) {
      ASSERT_TRUE(same_bits(y.begin() + r * stride, same.begin() + r * n, n)) << "row " << r;
      for (int64_t j = n; j < stride; j++) ASSERT_TRUE(std::isnan(y[r * stride + j])) << "written between the rows";
      for (int64_t j = 0; j < n; j++) {
        double want = bias ? b[j] : 0, magnitude = std::fabs(want);
        for (int64_t i = 0; i < k; i++) {
          const double term = static_cast<double>(x[r * k + i]) * w.values[j * k + i];
          want += term, magnitude += std::fabs(term);
        }
        ASSERT_NEAR(y[r * stride + j], want, (static_cast<double>(k) / 4 + 8) * kEpsilon * magnitude) << "row " << r << ", output " << j;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(, LinearQuant, testing::ValuesIn(kTypes), [](const auto &info) { return info.param.name; });

TEST_P(LinearQuant, MatchesFloat64AndLinear) {
  for (int64_t rows : {1, 2, 3, 5, 6, 16, 21})
    for (int64_t n : {1, 3, 8, 13, 97}) expect_match(rows, columns(rows % 2 + 1), n, n + n % 3, rows % 2 == 0);
  expect_match(300, columns(2), 50, 50, true);
  expect_match(2, 20 * 1024, 9, 9, false);
  expect_match(1, 20 * 1024, 9, 9, false);
}

TEST_P(LinearQuant, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 200, n = 130, k = columns(3);
  const Floats x = normal(rows * k, 4);
  const Quantised w(type(), n, k, 5);
  Guarded all(rows * n);
  const auto run = [&](int64_t first, int64_t count, float *y) {
    mgrpo_linear_quant_cpu(x.data() + first * k, w.data.data(), type().number, nullptr, y, n, count, k, n);
  };
  with_threads(2, [&] { run(0, rows, all.begin()); });
  for (int64_t count : {1, 2, 3, 4, 5, 6, 16, 17, 21, 64})
    for (int64_t first : {0, 1, 136}) {
      Guarded some(count * n);
      with_threads(count % 3 + 1, [&] { run(first, count, some.begin()); });
      ASSERT_TRUE(same_bits(some.begin(), all.begin() + first * n, count * n)) << count << " rows from " << first;
    }
}

TEST_P(LinearQuant, EmptyAndInvalid) {
  const int64_t k = columns(1);
  float value = 1;
  Bytes block(256);
  const auto run = [&](const float *x, const void *w, float *y, int64_t stride, int64_t rows, int64_t k, int64_t n) {
    return mgrpo_linear_quant_cpu(x, w, type().number, nullptr, y, stride, rows, k, n);
  };
  EXPECT_EQ(run(nullptr, nullptr, nullptr, 8, 0, k, 8), MGRPO_OK);
  EXPECT_EQ(run(nullptr, nullptr, nullptr, 0, 8, k, 0), MGRPO_OK);
  EXPECT_EQ(run(&value, block.data(), &value, 1, 1, k + 16, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, block.data(), &value, 1, -1, k, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, block.data(), &value, 1, 1, k, 2), MGRPO_INVALID_ARGUMENT);  // the rows of y overlap
  EXPECT_EQ(run(&value, block.data(), nullptr, 1, 1, k, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(nullptr, block.data(), &value, 1, 1, k, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, block.data(), &value, 1, 1, MGRPO_QUANT_COLUMNS + 256, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(run(&value, block.data(), &value, int64_t{1} << 40, int64_t{1} << 40, k, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_quant_bwd_input_cpu(&value, 1, block.data(), type().number, nullptr, 1, k, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_quant_bwd_input_cpu(&value, 0, block.data(), type().number, &value, 1, k, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_linear_quant_bwd_input_cpu(nullptr, 0, nullptr, type().number, nullptr, 0, k, 0, 0), MGRPO_OK);
  Guarded y(2), dx(2 * k);
  EXPECT_EQ(run(nullptr, nullptr, y.begin(), 1, 2, 0, 1), MGRPO_OK);
  EXPECT_EQ(y.values(), (Floats{0, 0}));
  EXPECT_EQ(mgrpo_linear_quant_bwd_input_cpu(nullptr, 0, nullptr, type().number, dx.begin(), 2, k, 0, 0), MGRPO_OK);
  EXPECT_EQ(dx.values(), Floats(static_cast<size_t>(2 * k)));
}

TEST_P(LinearQuant, NonFiniteInputsStayInTheirRow) {
  const int64_t k = columns(1), n = 9;
  Floats x = normal(5 * k, 11), dy = normal(5 * n, 12);
  const Quantised w(type(), n, k, 13);
  const auto both = [&](float *y, float *dx) {
    mgrpo_linear_quant_cpu(x.data(), w.data.data(), type().number, nullptr, y, n, 5, k, n);
    mgrpo_linear_quant_bwd_input_cpu(dy.data(), n, w.data.data(), type().number, dx, 5, k, n, 0);
  };
  Guarded clean(5 * n), dirty(5 * n), clean_dx(5 * k), dirty_dx(5 * k);
  both(clean.begin(), clean_dx.begin());
  x[static_cast<size_t>(2 * k + 19)] = NAN, dy[2 * 9 + 4] = INFINITY;
  both(dirty.begin(), dirty_dx.begin());
  for (int64_t i = 0; i < 5 * n; i++) EXPECT_TRUE(i / n == 2 ? std::isnan(dirty[i]) : dirty[i] == clean[i]) << i;
  for (int64_t i = 0; i < 5 * k; i++) EXPECT_TRUE(i / k == 2 ? !std::isfinite(dirty_dx[i]) : dirty_dx[i] == clean_dx[i]) << i;
}

TEST_P(LinearQuant, GradientMatchesFloat64) {
  for (auto [rows, blocks, n] : {std::array<int64_t, 3>{1, 1, 1}, {2, 3, 5}, {6, 2, 32}, {7, 1, 33}, {13, 9, 70}, {171, 3, 41}})
    for (bool add : {false, true}) {
      const int64_t k = columns(blocks), stride = n + 2;
      SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n << (add ? ", added" : ""));
      const Floats dy = normal(rows * stride, 7), before = normal(rows * k, 8);
      const Quantised w(type(), n, k, 9);
      Guarded dx(rows * k);
      if (add) std::copy(before.begin(), before.end(), dx.begin());
      ASSERT_EQ(mgrpo_linear_quant_bwd_input_cpu(dy.data(), stride, w.data.data(), type().number, dx.begin(), rows, k, n, add), MGRPO_OK);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < k; i++) {
          double want = add ? before[static_cast<size_t>(r * k + i)] : 0, magnitude = std::fabs(want);
          for (int64_t j = 0; j < n; j++) {
            const double term = static_cast<double>(dy[static_cast<size_t>(r * stride + j)]) * w.values[static_cast<size_t>(j * k + i)];
            want += term, magnitude += std::fabs(term);
          }
          ASSERT_NEAR(dx[r * k + i], want, static_cast<double>(2 * n + 2) * kEpsilon * magnitude) << "row " << r << ", input " << i;
        }
    }
}

TEST_P(LinearQuant, GradientOfARowDoesNotDependOnItsCompany) {
  const int64_t rows = 181, k = columns(3), n = 65;
  const Floats dy = normal(rows * n, 14);
  const Quantised w(type(), n, k, 15);
  Guarded all(rows * k);
  with_threads(1, [&] { mgrpo_linear_quant_bwd_input_cpu(dy.data(), n, w.data.data(), type().number, all.begin(), rows, k, n, 0); });
  for (int64_t first : {0, 5, 167})
    for (int64_t count : {1, 6, 14}) {
      Guarded some(count * k);
      with_threads(3, [&] {
        mgrpo_linear_quant_bwd_input_cpu(dy.data() + first * n, n, w.data.data(), type().number, some.begin(), count, k, n, 0);
      });
      ASSERT_TRUE(same_bits(some.begin(), all.begin() + first * k, count * k)) << count << " rows from " << first;
    }
}

}  // namespace
