// Shared by the tests of layers: arrays in a backend's memory, seeded data, comparisons.
#pragma once
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "backend.h"

namespace layer_testing {

constexpr double kEpsilon = 0x1p-24;  // half a unit in the last place of a float in [1, 2)

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

// An output of n floats, filled with NaN, between two guards. The destructor fails the test if a kernel wrote outside the output. The odd
// offset makes the buffer unaligned for vector instructions.
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n), data_(static_cast<size_t>(n + 2 * kGuard), kMark) { std::fill_n(begin(), n, NAN); }
  Guarded(const Floats &values) : Guarded(static_cast<int64_t>(values.size())) { std::copy(values.begin(), values.end(), begin()); }
  Guarded(const Guarded &) = delete;
  Guarded &operator=(const Guarded &) = delete;
  ~Guarded() {
    for (int64_t i = 0; i < kGuard; i++) {
      EXPECT_EQ(data_[static_cast<size_t>(i)], kMark) << "written " << kGuard - i << " floats before the output";
      EXPECT_EQ(data_[static_cast<size_t>(kGuard + n_ + i)], kMark) << "written " << i << " floats after the output";
    }
  }
  float *begin() { return data_.data() + kGuard; }
  float operator[](int64_t i) const { return data_[static_cast<size_t>(kGuard + i)]; }
  Floats values() { return Floats(begin(), begin() + n_); }

 private:
  static constexpr int64_t kGuard = 17;
  static constexpr float kMark = -12345.0f;
  int64_t n_;
  Floats data_;
};

// An array of float32, or of bfloat16 with values rounded to it, in a backend's memory.
class Array {
 public:
  Array(const conformance::Backend &backend, int32_t dtype, const Floats &values, bool aligned = false) {
    if (dtype == MGRPO_FLOAT32) {
      wide_ = std::make_unique<conformance::Buffer<float>>(backend, values, aligned);
      return;
    }
    std::vector<uint16_t> half;
    for (float v : values) half.push_back(conformance::to_bf16(v));
    half_ = std::make_unique<conformance::Buffer<uint16_t>>(backend, half, aligned);
  }
  // Creates an output, filled with a pattern that no kernel writes.
  Array(const conformance::Backend &backend, int32_t dtype, int64_t n, bool aligned = false)
      : Array(backend, dtype, Floats(static_cast<size_t>(n), kUnwritten), aligned) {}

  void *get() { return wide_ ? static_cast<void *>(wide_->get()) : half_->get(); }
  Floats values() const {
    if (wide_) return wide_->values();
    Floats all;
    for (uint16_t v : half_->values()) all.push_back(conformance::from_bf16(v));
    return all;
  }
  bool unwritten() const {
    for (float v : values())
      if (v != kUnwritten) return false;
    return true;
  }

 private:
  static constexpr float kUnwritten = -77;
  std::unique_ptr<conformance::Buffer<float>> wide_;
  std::unique_ptr<conformance::Buffer<uint16_t>> half_;
};

constexpr double kBf16Epsilon = 0x1p-8;  // distance between bfloat16 numbers, relative to the smaller one

inline Floats rounded_to_bf16(Floats values) {
  for (float &v : values) v = conformance::from_bf16(conformance::to_bf16(v));
  return values;
}

inline std::vector<double> doubles(const Floats &values) { return {values.begin(), values.end()}; }

// Returns whether a backend supports bfloat16. It tries a call without rows.
inline bool has_bf16(const conformance::Backend &backend) {
  return backend.glu(MGRPO_SWIGLU, nullptr, MGRPO_BFLOAT16, nullptr, 0, 1) == MGRPO_OK;
}

inline Floats normal(int64_t n, unsigned seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw(0, scale);
  Floats values(static_cast<size_t>(n));
  for (float &v : values) v = draw(generator);
  return values;
}

// Compares n floats bit by bit, so NaN equals itself and -0 differs from 0.
inline ::testing::AssertionResult same_bits(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0)
      return ::testing::AssertionFailure() << "at " << i << ": " << a[i] << " and " << b[i];
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult same_bits(const Floats &a, const Floats &b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  return same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

// Returns elements [from, from + n).
inline Floats part(const Floats &values, int64_t from, int64_t n) { return Floats(values.begin() + from, values.begin() + from + n); }

// Checks that |got - want| <= relative * |want| + absolute for each element.
inline ::testing::AssertionResult close_to(const Floats &got, const std::vector<double> &want, double relative, double absolute) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " elements";
  for (size_t i = 0; i < got.size(); i++)
    if (!(std::fabs(got[i] - want[i]) <= relative * std::fabs(want[i]) + absolute))
      return ::testing::AssertionFailure() << "at " << i << ": " << got[i] << ", expected " << want[i];
  return ::testing::AssertionSuccess();
}

// Returns the first row of each segment and the number of rows.
inline Ints boundaries(const Ints &lengths) {
  Ints cu{0};
  for (int32_t n : lengths) cu.push_back(cu.back() + n);
  return cu;
}

// Returns the row before `row` in its sequence, or -1. Segments follow rows as in mgrpo_attention_packed_cpu; if `follows` is empty, each
// segment is a sequence.
inline int64_t row_before(const Ints &lengths, const Ints &follows, int64_t row) {
  const Ints cu = boundaries(lengths);
  for (size_t s = 0; s < lengths.size(); s++)
    if (row == cu[s] && cu[s + 1] > row) return follows.empty() ? -1 : follows[s];
  return row - 1;
}

// Returns the rows of a sequence up to `last`.
inline std::vector<int64_t> rows_up_to(const Ints &lengths, const Ints &follows, int64_t last) {
  std::vector<int64_t> rows;
  for (int64_t r = last; r >= 0; r = row_before(lengths, follows, r)) rows.insert(rows.begin(), r);
  return rows;
}

// Block table of sequences with up to max_len positions. The blocks are in random order, and some belong to no sequence.
struct Table {
  int64_t sequences, width, blocks, block;
  Ints entries;

  Table(int64_t sequences, int64_t max_len, int64_t block)
      : sequences(sequences),
        width((max_len + block - 1) / block),
        blocks(sequences * width + 3),
        block(block),
        entries(static_cast<size_t>(sequences * width)) {
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    for (int64_t i = 0; i < blocks; i++) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    std::copy_n(order.begin(), entries.size(), entries.begin());
  }
  mgrpo_pages pages(const int32_t *on_device, int64_t kv_heads, int64_t hd) const {
    return {on_device, sequences, width, blocks, kv_heads, block, hd};
  }
  int64_t place(int64_t s, int64_t p, int64_t h, int64_t kv_heads) const {
    return (entries[s * width + p / block] * kv_heads + h) * block + p % block;
  }
  // Copies x [sequences, kv_heads, max_len, hd] into blocks. Everything else is NaN.
  Floats in_blocks(const Floats &x, int64_t kv_heads, int64_t max_len, int64_t hd) const {
    Floats cache(static_cast<size_t>(blocks * kv_heads * block * hd), NAN);
    for (int64_t s = 0; s < sequences; s++)
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t p = 0; p < max_len; p++)
          std::copy_n(&x[((s * kv_heads + h) * max_len + p) * hd], hd, &cache[place(s, p, h, kv_heads) * hd]);
    return cache;
  }
};

// Runs f with n OpenMP threads.
template <class F>
void with_threads(int n, F f) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(n);
  f();
  omp_set_num_threads(before);
}

}  // namespace layer_testing
