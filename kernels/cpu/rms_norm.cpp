#include "check.h"
#include "mgrpo/nn.h"
#include "nn_ops.h"
#include "parallel.h"

using namespace mgrpo::cpu;

int32_t mgrpo_rms_norm_cpu(const float *x, const float *w, double eps, float *y, float *inv_rms_or_null,
                           int64_t rows, int64_t d) {
  if (!valid_sizes({rows, d}) || d == 0 || !(eps >= 0)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, w, y})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(rows, 1, static_cast<double>(rows) * d, [=](int64_t begin, int64_t end) {
    float *inv = inv_rms_or_null != nullptr ? inv_rms_or_null + begin : nullptr;
    nn_ops().rms_norm(x + begin * d, w, eps, y + begin * d, inv, end - begin, d);
  });
  return MGRPO_OK;
}

int32_t mgrpo_rms_norm_bwd_cpu(const float *dy, const float *x, const float *w, const float *inv_rms, float *dx,
                               float *dw, int64_t rows, int64_t d) {
  if (!valid_sizes({rows, d}) || d == 0) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, w, inv_rms, dx, dw})) return MGRPO_INVALID_ARGUMENT;
  const double work = static_cast<double>(rows) * d;
  // dw first: dx may overwrite dy. A column belongs to one thread, which adds its rows in order.
  parallel_ranges(d, 16, work, [=](int64_t begin, int64_t end) {
    nn_ops().rms_norm_dw(dy + begin, x + begin, inv_rms, dw + begin, rows, d, end - begin);
  });
  parallel_ranges(rows, 1, work, [=](int64_t begin, int64_t end) {
    nn_ops().rms_norm_dx(dy + begin * d, x + begin * d, w, inv_rms + begin, dx + begin * d, end - begin, d);
  });
  return MGRPO_OK;
}
