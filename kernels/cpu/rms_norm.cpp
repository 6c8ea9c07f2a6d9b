#include "mgrpo/rms_norm.h"

#include "check.h"
#include "layer_loops.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

bool valid(int64_t rows, int64_t d, double eps) { return valid_sizes({rows, d}) && d > 0 && eps >= 0; }

const float *row_or_null(const float *p, int64_t at) { return p != nullptr ? p + at : nullptr; }
float *row_or_null(float *p, int64_t at) { return p != nullptr ? p + at : nullptr; }

void rms_norm(const float *x, const float *residual_or_null, const float *w, float offset, double eps, float *sum_or_null, float *y,
              float *inv_rms_or_null, int64_t rows, int64_t d) {
  parallel_ranges(rows, 1, static_cast<double>(rows) * d, [=](int64_t begin, int64_t end) {
    const int64_t at = begin * d;
    layer_loops().rms_norm(x + at, row_or_null(residual_or_null, at), w, offset, eps, row_or_null(sum_or_null, at), y + at,
                           row_or_null(inv_rms_or_null, begin), end - begin, d);
  });
}

}  // namespace

int32_t mgrpo_rms_norm_cpu(const float *x, const float *w, float offset, double eps, float *y, float *inv_rms_or_null, int64_t rows,
                           int64_t d) {
  if (!valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, w, y})) return MGRPO_INVALID_ARGUMENT;
  rms_norm(x, nullptr, w, offset, eps, nullptr, y, inv_rms_or_null, rows, d);
  return MGRPO_OK;
}

int32_t mgrpo_add_rms_norm_cpu(const float *x, const float *residual, const float *w, float offset, double eps, float *sum, float *y,
                               float *inv_rms_or_null, int64_t rows, int64_t d) {
  if (!valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, residual, w, sum, y})) return MGRPO_INVALID_ARGUMENT;
  rms_norm(x, residual, w, offset, eps, sum, y, inv_rms_or_null, rows, d);
  return MGRPO_OK;
}

int32_t mgrpo_rms_norm_bwd_cpu(const float *dy, const float *x, const float *w, float offset, const float *inv_rms,
                               const float *dx_more_or_null, float *dx, float *dw_or_null, int64_t rows, int64_t d) {
  if (!valid(rows, d, 0)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, w, inv_rms, dx})) return MGRPO_INVALID_ARGUMENT;
  const double work = static_cast<double>(rows) * d;
  // dw is computed first, because dx may be dy. One thread computes a column and adds its rows in order.
  if (dw_or_null != nullptr)
    parallel_ranges(d, 16, work, [=](int64_t begin, int64_t end) {
      layer_loops().rms_norm_dw(dy + begin, x + begin, inv_rms, dw_or_null + begin, rows, d, end - begin, rows, 0);
    });
  parallel_ranges(rows, 1, work, [=](int64_t begin, int64_t end) {
    const int64_t at = begin * d;
    layer_loops().rms_norm_dx(dy + at, x + at, w, offset, inv_rms + begin, row_or_null(dx_more_or_null, at), dx + at, end - begin, d);
  });
  return MGRPO_OK;
}
