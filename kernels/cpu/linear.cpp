#include "check.h"
#include "mgrpo/nn.h"
#include "nn_ops.h"
#include "parallel.h"

using namespace mgrpo::cpu;

int32_t mgrpo_linear_cpu(const float *x, const float *w, const float *b_or_null, float *y, int64_t rows, int64_t k,
                         int64_t n) {
  if (!valid_sizes({rows, k, n})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  const float *b = b_or_null;
  const double work = static_cast<double>(rows) * k * n;
  const NnOps &ops = nn_ops();
  if (rows > n) {
    parallel_ranges(rows, 1, work, [=, &ops](int64_t begin, int64_t end) {
      ops.linear(x + begin * k, k, w, k, b, y + begin * n, n, end - begin, k, n);
    });
    return MGRPO_OK;
  }
  parallel_ranges(n, 8, work, [=, &ops](int64_t begin, int64_t end) {
    ops.linear(x, k, w + begin * k, k, b != nullptr ? b + begin : nullptr, y + begin, n, rows, k, end - begin);
  });
  return MGRPO_OK;
}
