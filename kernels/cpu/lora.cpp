#include <algorithm>
#include <vector>

#include "lora.h"
#include "nn_ops.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

// How many rows a thread takes at once.
constexpr int64_t kRowBlock = 16;

// Adds what one adapter gives to consecutive rows. u and v are scratch: [rows, rank] and [rows, widest part].
void add_rows(const mgrpo_lora &a, const float *x, float *y, int64_t rows, int64_t k, int64_t n, std::vector<float> &u,
              std::vector<float> &v) {
  const int64_t rank = rank_of(a);
  if (rank == 0) return;
  u.resize(static_cast<size_t>(rows * rank));
  nn_ops().linear(x, k, a.values, k, nullptr, u.data(), rank, rows, k, rank);
  const float *b = a.values + rank * k, *from = u.data();
  for (int64_t p = 0; p < a.count; p++) {
    const mgrpo_lora_part &part = a.parts[p];
    v.resize(static_cast<size_t>(rows * part.n));
    nn_ops().linear(from, rank, b, part.r, nullptr, v.data(), part.n, rows, part.r, part.n);
    const float scale = static_cast<float>(part.scale);
    for (int64_t i = 0; i < rows; i++) {
      float *to = y + i * n + part.from;
      const float *add = v.data() + i * part.n;
      for (int64_t j = 0; j < part.n; j++) to[j] += scale * add[j];
    }
    b += part.n * part.r;
    from += part.r;
  }
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_lora_add_cpu(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const float *x, float *y,
                           int64_t rows, int64_t k, int64_t n) {
  using namespace mgrpo;
  using namespace mgrpo::cpu;
  if (!valid_loras(adapters, count, rows, k, n)) return MGRPO_INVALID_ARGUMENT;
  if (which_or_null != nullptr && !all_in_range(which_or_null, rows, -1, count)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0 || count == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && x == nullptr)) return MGRPO_INVALID_ARGUMENT;
  const double work = static_cast<double>(rows) * static_cast<double>(rank_of(adapters[0])) * static_cast<double>(k + n);
  parallel_blocks(rows, kRowBlock, work, [=](int64_t begin, int64_t end) {
    std::vector<float> u, v;
    for (int64_t from = begin, to; from < end; from = to) {
      const int32_t adapter = which_or_null != nullptr ? which_or_null[from] : 0;
      for (to = from + 1; to < end && (which_or_null == nullptr || which_or_null[to] == adapter);) to++;
      if (adapter >= 0) add_rows(adapters[adapter], x + from * k, y + from * n, to - from, k, n, u, v);
    }
  });
  return MGRPO_OK;
}
