#include "mgrpo/lora.h"

#include "layer_testing.h"

using namespace conformance;
using namespace layer_testing;

namespace {

class Lora : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Lora);

using Parts = std::vector<mgrpo_lora_part>;

int64_t rank(const Parts &parts) {
  int64_t r = 0;
  for (const auto &p : parts) r += p.r;
  return r;
}

// An adapter with its values in a backend's memory.
struct Adapter {
  Parts parts;
  Floats values;
  Buffer<float> memory;

  Adapter(const Backend &b, Parts parts_, int64_t k, unsigned seed, bool aligned = false)
      : parts(std::move(parts_)), values(normal(size(parts, k), seed)), memory(b, values, aligned) {}

  static int64_t size(const Parts &parts, int64_t k) {
    int64_t n = rank(parts) * k;
    for (const auto &p : parts) n += p.n * p.r;
    return n;
  }
  mgrpo_lora argument() { return {memory.get(), parts.data(), static_cast<int64_t>(parts.size())}; }
};

using Adapters = std::vector<std::unique_ptr<Adapter>>;

int32_t add(const Backend &b, Adapters &adapters, const Ints *which, Array &x, int32_t dtype, Array &y, int64_t rows, int64_t k,
            int64_t n) {
  std::vector<mgrpo_lora> table;
  for (auto &a : adapters) table.push_back(a->argument());
  std::unique_ptr<Buffer<int32_t>> places;
  if (which != nullptr) places = std::make_unique<Buffer<int32_t>>(b, *which);
  return b.lora_add(table.data(), static_cast<int64_t>(table.size()), places ? places->get() : nullptr, x.get(), dtype, y.get(), rows, k,
                    n);
}

// Adds scale B (A x) to y in float64, and the sum of the terms' absolute values to magnitude.
void oracle(const Adapter &a, const float *x, int64_t k, double *y, double *magnitude) {
  const float *first = a.values.data(), *b = first + rank(a.parts) * k;
  for (const auto &p : a.parts) {
    for (int64_t j = 0; j < p.n; j++)
      for (int64_t i = 0; i < p.r; i++)
        for (int64_t c = 0; c < k; c++) {
          const double term = p.scale * b[j * p.r + i] * first[i * k + c] * static_cast<double>(x[c]);
          y[p.from + j] += term;
          magnitude[p.from + j] += std::fabs(term);
        }
    first += p.r * k;
    b += p.n * p.r;
  }
}

// Compares each row of a result with y plus its adapter's product with x, in float64.
void expect_float64(const Adapters &adapters, const Ints &which, const Floats &x, const Floats &y, const Floats &got, int32_t dtype,
                    int64_t k, int64_t n) {
  for (int64_t r = 0; r < static_cast<int64_t>(which.size()); r++) {
    std::vector<double> want(y.begin() + r * n, y.begin() + (r + 1) * n), magnitude(static_cast<size_t>(n), 1);
    if (which[r] >= 0) oracle(*adapters[static_cast<size_t>(which[r])], x.data() + r * k, k, want.data(), magnitude.data());
    for (int64_t j = 0; j < n; j++) {
      double bound = (static_cast<double>(k) + 64) * kEpsilon * magnitude[j];
      if (dtype == MGRPO_BFLOAT16) bound += 2 * kBf16Epsilon * std::fabs(want[j]);
      ASSERT_NEAR(got[r * n + j], want[j], bound) << "row " << r << ", column " << j << " of adapter " << which[r];
    }
  }
}

// Makes three adapters with different ranks: on the whole of a fused projection, on a part of it, and on none of its parts.
Adapters three(const Backend &b, int64_t k, int64_t n) {
  Adapters all;
  all.push_back(std::make_unique<Adapter>(b, Parts{{0, n / 2, 3, 2.0}, {n / 2, n - n / 2, 5, 0.25}}, k, 11));
  all.push_back(std::make_unique<Adapter>(b, Parts{{n / 3, n - n / 3, 17, -1.5}}, k, 12));
  all.push_back(std::make_unique<Adapter>(b, Parts{}, k, 13));
  return all;
}

Ints mixed(int64_t rows) {
  Ints which;
  for (int64_t i = 0; i < rows; i++) which.push_back(static_cast<int32_t>(i * 7 % 4) - 1);
  return which;
}

TEST_P(Lora, MatchesFloat64) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && backend().name == "cpu") continue;
    for (auto [rows, k, n] : {std::array<int64_t, 3>{1, 1, 3}, {5, 7, 4}, {33, 40, 61}, {70, 131, 9}, {3, 4111, 6}}) {
      Adapters adapters = three(backend(), k, n);
      Floats x = normal(rows * k, 1), y = normal(rows * n, 2);
      if (dtype == MGRPO_BFLOAT16) x = rounded_to_bf16(x), y = rounded_to_bf16(y);
      const Ints which = mixed(rows);
      Array from(backend(), dtype, x), to(backend(), dtype, y);
      ASSERT_EQ(add(backend(), adapters, &which, from, dtype, to, rows, k, n), MGRPO_OK);
      const Floats got = to.values();
      ASSERT_NO_FATAL_FAILURE(expect_float64(adapters, which, x, y, got, dtype, k, n));
      for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
          if (which[r] == -1 || which[r] == 2) {
            ASSERT_EQ(got[r * n + j], y[r * n + j]);
          }
    }
  }
}

// A row has the same bits alone, without a table, and among rows with other adapters.
TEST_P(Lora, RowDoesNotDependOnItsCompany) {
  const int64_t rows = 90, k = 96, n = 70;
  Adapters adapters = three(backend(), k, n);
  const Floats x = normal(rows * k, 4), y = normal(rows * n, 5);
  const Ints which = mixed(rows);
  Array from(backend(), MGRPO_FLOAT32, x), to(backend(), MGRPO_FLOAT32, y);
  with_threads(2, [&] { ASSERT_EQ(add(backend(), adapters, &which, from, MGRPO_FLOAT32, to, rows, k, n), MGRPO_OK); });
  const Floats all = to.values();
  for (int64_t r = 0; r < rows; r++) {
    if (which[r] < 0) continue;
    Array x1(backend(), MGRPO_FLOAT32, Floats(x.begin() + r * k, x.begin() + (r + 1) * k));
    Array y1(backend(), MGRPO_FLOAT32, Floats(y.begin() + r * n, y.begin() + (r + 1) * n));
    Adapters one;
    one.push_back(std::move(adapters[static_cast<size_t>(which[r])]));
    ASSERT_EQ(add(backend(), one, nullptr, x1, MGRPO_FLOAT32, y1, 1, k, n), MGRPO_OK);
    adapters[static_cast<size_t>(which[r])] = std::move(one[0]);
    ASSERT_TRUE(same_bits(y1.values().data(), all.data() + r * n, n)) << "row " << r;
  }
}

// Consecutive rows with the same adapter, as in decoding, with more columns and larger ranks than a block takes at once.
TEST_P(Lora, RunsOfRows) {
  const int64_t k = 264, n = 530;
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && backend().name == "cpu") continue;
    Adapters adapters = three(backend(), k, n);
    adapters.push_back(std::make_unique<Adapter>(backend(), Parts{{250, 270, 40, 0.5}, {3, 20, 33, -1}}, k, 14));
    Ints which;
    for (const auto &[adapter, run] : {std::pair<int32_t, int>{0, 1}, {3, 16}, {-1, 2}, {1, 17}, {0, 5}, {2, 3}, {3, 2}})
      which.insert(which.end(), static_cast<size_t>(run), adapter);
    const auto rows = static_cast<int64_t>(which.size());
    Floats x = normal(rows * k, 6), y = normal(rows * n, 7);
    if (dtype == MGRPO_BFLOAT16) x = rounded_to_bf16(x), y = rounded_to_bf16(y);
    Array from(backend(), dtype, x), to(backend(), dtype, y);
    ASSERT_EQ(add(backend(), adapters, &which, from, dtype, to, rows, k, n), MGRPO_OK);
    const Floats got = to.values();
    ASSERT_NO_FATAL_FAILURE(expect_float64(adapters, which, x, y, got, dtype, k, n));
    for (int64_t r = 0; r < rows; r++) {
      if (which[r] < 0) continue;
      Array x1(backend(), dtype, Floats(x.begin() + r * k, x.begin() + (r + 1) * k)),
          y1(backend(), dtype, Floats(y.begin() + r * n, y.begin() + (r + 1) * n));
      const Ints alone{which[r]};
      ASSERT_EQ(add(backend(), adapters, &alone, x1, dtype, y1, 1, k, n), MGRPO_OK);
      ASSERT_TRUE(same_bits(y1.values().data(), got.data() + r * n, n)) << "row " << r;
    }
  }
}

// More columns of x than a block's threads take at once. Whole vectors and single elements give the same sums.
TEST_P(Lora, BitsDoNotDependOnAlignment) {
  const int64_t rows = 11, k = 2120, n = 140;
  const Ints which{0, 1, 1, 0, -1, 0, 1, 0, 0, 1, 0};
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && backend().name == "cpu") continue;
    const Floats x = normal(rows * k, 15), y = normal(rows * n, 16);
    Floats got[2];
    for (bool aligned : {false, true}) {
      Adapters adapters;
      adapters.push_back(std::make_unique<Adapter>(backend(), Parts{{0, 100, 8, 0.5}, {100, 40, 36, 2}}, k, 17, aligned));
      adapters.push_back(std::make_unique<Adapter>(backend(), Parts{{4, 120, 16, -1}}, k, 18, aligned));
      Array from(backend(), dtype, x, aligned), to(backend(), dtype, y, aligned);
      ASSERT_EQ(add(backend(), adapters, &which, from, dtype, to, rows, k, n), MGRPO_OK);
      got[aligned] = to.values();
    }
    EXPECT_TRUE(same_bits(got[0], got[1]));
  }
}

TEST(LoraCpu, BitsDoNotDependOnThreads) {
  const Backend &b = cpu();
  const int64_t k = 577, n = 961;
  for (int64_t rows : {5, 16, 40}) {
    Adapters adapters = three(b, k, n);
    const Floats values = normal(rows * k, 9), before = normal(rows * n, 10);
    const Ints which = mixed(rows);
    Array x(b, MGRPO_FLOAT32, values), one(b, MGRPO_FLOAT32, before);
    with_threads(1, [&] { ASSERT_EQ(add(b, adapters, &which, x, MGRPO_FLOAT32, one, rows, k, n), MGRPO_OK); });
    for (int threads : {2, 3, 8}) {
      Array many(b, MGRPO_FLOAT32, before);
      with_threads(threads, [&] { ASSERT_EQ(add(b, adapters, &which, x, MGRPO_FLOAT32, many, rows, k, n), MGRPO_OK); });
      EXPECT_TRUE(same_bits(many.values(), one.values())) << rows << " rows, " << threads << " threads";
    }
  }
}

TEST_P(Lora, ManyAdapters) {
  const int64_t count = 37, k = 12, n = 10;
  Adapters adapters;
  Ints which;
  for (int64_t i = 0; i < count; i++) {
    adapters.push_back(std::make_unique<Adapter>(backend(), Parts{{1, 8, 1 + i % 5, 0.5}}, k, 20 + static_cast<unsigned>(i)));
    which.push_back(static_cast<int32_t>(count - 1 - i));
  }
  const Floats x = normal(count * k, 6);
  Array from(backend(), MGRPO_FLOAT32, x), to(backend(), MGRPO_FLOAT32, Floats(static_cast<size_t>(count * n), 1));
  ASSERT_EQ(add(backend(), adapters, &which, from, MGRPO_FLOAT32, to, count, k, n), MGRPO_OK);
  const Floats got = to.values();
  for (int64_t r = 0; r < count; r++) {
    std::vector<double> want(n, 1), magnitude(n, 1);
    oracle(*adapters[static_cast<size_t>(which[r])], x.data() + r * k, k, want.data(), magnitude.data());
    for (int64_t j = 0; j < n; j++) ASSERT_NEAR(got[r * n + j], want[j], 64 * kEpsilon * magnitude[j]) << "row " << r;
  }
}

TEST_P(Lora, EmptyAndInvalid) {
  const int64_t k = 4, n = 6;
  Array x(backend(), MGRPO_FLOAT32, normal(2 * k, 1)), y(backend(), MGRPO_FLOAT32, 2 * n);
  auto status = [&](Parts parts, int64_t rows = 2, const Ints *which = nullptr) {
    Adapters one;
    one.push_back(std::make_unique<Adapter>(backend(), Parts{{0, n, 2, 1.0}}, k, 3));
    one[0]->parts = std::move(parts);
    return add(backend(), one, which, x, MGRPO_FLOAT32, y, rows, k, n);
  };
  Adapters none;
  EXPECT_EQ(add(backend(), none, nullptr, x, MGRPO_FLOAT32, y, 2, k, n), MGRPO_OK);
  EXPECT_EQ(status({{0, n, 2, 1.0}}, 0), MGRPO_OK);
  EXPECT_EQ(status({}), MGRPO_OK);
  EXPECT_EQ(status({{0, n, 2, 1.0}}, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({{1, n, 2, 1.0}}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({{-1, n, 2, 1.0}}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({{0, 3, 2, 1.0}, {2, 3, 2, 1.0}}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({{0, n, 0, 1.0}}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({{0, n, MGRPO_LORA_RANK + 1, 1.0}}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status(Parts(MGRPO_LORA_PARTS + 1, {0, 1, 1, 1.0})), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(y.unwritten());
  if (backend().refuses_places) {
    const Ints beyond{0, 1};
    EXPECT_EQ(status({{0, n, 2, 1.0}}, 2, &beyond), MGRPO_INVALID_ARGUMENT);
    EXPECT_TRUE(y.unwritten());
  }
}

TEST_P(Lora, NonFiniteInputsStayInTheirRow) {
  const int64_t k = 9, n = 8;
  Adapters adapters;
  adapters.push_back(std::make_unique<Adapter>(backend(), Parts{{0, n, 2, 1.0}}, k, 7));
  Floats x = normal(3 * k, 8);
  x[k + 3] = NAN;
  Array from(backend(), MGRPO_FLOAT32, x), to(backend(), MGRPO_FLOAT32, Floats(3 * n, 1));
  ASSERT_EQ(add(backend(), adapters, nullptr, from, MGRPO_FLOAT32, to, 3, k, n), MGRPO_OK);
  const Floats got = to.values();
  for (int64_t i = 0; i < 3 * n; i++) EXPECT_EQ(std::isnan(got[i]), i / n == 1);
}

}  // namespace
