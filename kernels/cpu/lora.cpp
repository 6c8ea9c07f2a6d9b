#include "lora.h"

#include <algorithm>
#include <vector>

#include "layer_loops.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

// The number of rows that a thread computes at a time.
constexpr int64_t kRowBlock = 64;

// Calls f(first row, number of rows, adapter) for consecutive rows of [begin, end) with the same adapter.
template <class F>
void each_run(const mgrpo_lora *adapters, const int32_t *which_or_null, int64_t begin, int64_t end, const F &f) {
  for (int64_t from = begin, to; from < end; from = to) {
    const int32_t adapter = which_or_null != nullptr ? which_or_null[from] : 0;
    for (to = from + 1; to < end && (which_or_null == nullptr || which_or_null[to] == adapter);) to++;
    if (adapter >= 0) f(from, to - from, adapters[adapter]);
  }
}

// Slice `number` of `of` equal slices of [0, n).
struct Slice {
  int64_t number, of;
  int64_t begin(int64_t n) const { return n * number / of; }
  int64_t size(int64_t n) const { return n * (number + 1) / of - begin(n); }
};

// Writes a slice of A x to u [rows, rank]. Rows of u are `stride` floats apart.
void project(const mgrpo_lora &a, Slice slice, const float *x, float *u, int64_t stride, int64_t rows, int64_t k) {
  const int64_t rank = rank_of(a), first = slice.begin(rank);
  layer_loops().linear(x, k, a.values + first * k, k, nullptr, u + first, stride, rows, k, slice.size(rank));
}

// Adds scale * B u to a slice of the columns of each part.
void expand(const mgrpo_lora &a, Slice slice, const float *u, int64_t stride, float *y, int64_t rows, int64_t k, int64_t n) {
  const float *b = a.values + rank_of(a) * k;
  for (int64_t p = 0; p < a.count; p++) {
    const mgrpo_lora_part &part = a.parts[p];
    const int64_t first = slice.begin(part.n);
    layer_loops().lora_expand(u, stride, b + first * part.r, static_cast<float>(part.scale), y + part.from + first, n, rows, part.r,
                              slice.size(part.n));
    b += part.n * part.r;
    u += part.r;
  }
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_lora_add_cpu(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const float *x, float *y, int64_t rows,
                           int64_t k, int64_t n) {
  using namespace mgrpo;
  using namespace mgrpo::cpu;
  if (!valid_loras(adapters, count, rows, k, n)) return MGRPO_INVALID_ARGUMENT;
  if (which_or_null != nullptr && !all_in_range(which_or_null, rows, -1, count)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0 || count == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && x == nullptr)) return MGRPO_INVALID_ARGUMENT;
  int64_t widest = 0;
  for (int64_t i = 0; i < count; i++) widest = std::max(widest, rank_of(adapters[i]));
  if (widest == 0) return MGRPO_OK;
  const double work = static_cast<double>(rows) * static_cast<double>(widest) * static_cast<double>(k + n);
  // If there are too few rows for all threads, as in decoding, threads also divide the columns of a block.
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock, slices = blocks < thread_count(work) ? thread_count(work) : 1;
  std::vector<float> products(static_cast<size_t>(rows * widest));
  float *const u = products.data();
  const auto each = [=](const auto &f) {
    parallel_for(blocks * slices, work, [=](int64_t i) {
      const int64_t begin = i / slices * kRowBlock;
      each_run(adapters, which_or_null, begin, std::min(begin + kRowBlock, rows),
               [&](int64_t from, int64_t m, const mgrpo_lora &a) { f(from, m, a, Slice{i % slices, slices}); });
    });
  };
  each(
      [=](int64_t from, int64_t m, const mgrpo_lora &a, Slice slice) { project(a, slice, x + from * k, u + from * widest, widest, m, k); });
  each([=](int64_t from, int64_t m, const mgrpo_lora &a, Slice slice) {
    expand(a, slice, u + from * widest, widest, y + from * n, m, k, n);
  });
  return MGRPO_OK;
}
