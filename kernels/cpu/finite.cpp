#include "mgrpo/finite.h"

#include <atomic>

#include "parallel.h"

namespace mgrpo::cpu {
namespace {

constexpr int64_t kBlock = 1 << 14;

// NaN and Inf are the numbers with all exponent bits set; integers vectorise without -ffast-math.
template <class Bits>
int64_t count_non_finite(const Bits *x, int64_t n, Bits exponent) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) count += (x[i] & exponent) == exponent;
  return count;
}

template <class Bits>
void first_non_finite(const Bits *x, int64_t n, Bits exponent, int64_t *index, int64_t *count) {
  std::atomic<int64_t> total{0}, first{INT64_MAX};
  parallel_ranges(n, kBlock, static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t size = end - at < kBlock ? end - at : kBlock;
      const int64_t here = count_non_finite(x + at, size, exponent);
      if (here == 0) continue;
      total += here;
      int64_t i = at;
      while ((x[i] & exponent) != exponent) i++;
      int64_t seen = first;
      while (i < seen && !first.compare_exchange_weak(seen, i)) {
      }
    }
  });
  *count = total;
  *index = total == 0 ? -1 : first.load();
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_first_non_finite_cpu(const void *data, int32_t dtype, int64_t n, int64_t *index, int64_t *count) {
  using mgrpo::cpu::first_non_finite;
  if (n < 0 || (n > 0 && !data) || !index || !count) return MGRPO_INVALID_ARGUMENT;
  switch (dtype) {
    case MGRPO_FLOAT32:
      first_non_finite(static_cast<const uint32_t *>(data), n, uint32_t{0x7F800000}, index, count);
      return MGRPO_OK;
    case MGRPO_BFLOAT16:
      first_non_finite(static_cast<const uint16_t *>(data), n, uint16_t{0x7F80}, index, count);
      return MGRPO_OK;
    case MGRPO_FLOAT64:
      first_non_finite(static_cast<const uint64_t *>(data), n, uint64_t{0x7FF0000000000000}, index, count);
      return MGRPO_OK;
  }
  return MGRPO_INVALID_ARGUMENT;
}
