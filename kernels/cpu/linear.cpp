#include "mgrpo/linear.h"

#include "check.h"
#include "layer_loops.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

// The number of outputs, or of rows if there are more rows than outputs, that a thread computes at a time. Blocks are distributed while
// threads run, because threads are not equally fast.
constexpr int64_t kOutputBlock = 96, kRowBlock = 84;

template <class Weight, class Loop>
int32_t linear(Loop loop, const float *x, const Weight *w, const float *b, float *y, int64_t rows, int64_t k, int64_t n) {
  if (!valid_sizes({rows, k, n})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  const double work = static_cast<double>(rows) * k * n;
  std::atomic<bool> failed{false};
  if (rows > n)
    parallel_blocks(rows, kRowBlock, work, [&](int64_t begin, int64_t end) {
      note_bad_alloc(&failed, [&] { loop(x + begin * k, k, w, k, b, y + begin * n, n, end - begin, k, n); });
    });
  else
    parallel_blocks(n, kOutputBlock, work, [&](int64_t begin, int64_t end) {
      note_bad_alloc(&failed,
                     [&] { loop(x, k, w + begin * k, k, b != nullptr ? b + begin : nullptr, y + begin, n, rows, k, end - begin); });
    });
  return failed ? MGRPO_OUT_OF_MEMORY : MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cpu

int32_t mgrpo_linear_cpu(const float *x, const float *w, const float *b_or_null, float *y, int64_t rows, int64_t k, int64_t n) {
  return mgrpo::cpu::linear(mgrpo::cpu::layer_loops().linear, x, w, b_or_null, y, rows, k, n);
}

int32_t mgrpo_linear_bf16_cpu(const float *x, const uint16_t *w, const float *b_or_null, float *y, int64_t rows, int64_t k, int64_t n,
                              int32_t round) {
  return mgrpo::cpu::linear(mgrpo::cpu::linear_bf16(round), x, w, b_or_null, y, rows, k, n);
}
