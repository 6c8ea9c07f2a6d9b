// The root-mean-square norm, with and without the addition of a residual.
#pragma once
#include "mgrpo/layers.h"

// y = x * inv_rms * (offset + w) with inv_rms[r] = 1 / sqrt(mean(x[r]^2) + eps).  x, y [rows, d], w [d], d >= 1,
// eps >= 0; offset is 0, or 1 if w holds distances from 1; inv_rms_or_null [rows] is written for the backward pass.
// Works in place (y == x).
MGRPO_API int32_t mgrpo_rms_norm_cpu(const float *x, const float *w, float offset, double eps, float *y, float *inv_rms_or_null,
                                     int64_t rows, int64_t d);

// sum = x + residual and y = its norm, in one pass, with the same bits as the addition followed by
// mgrpo_rms_norm_cpu. x, residual, sum, y [rows, d]. sum may be x or residual; y may be the other one.
MGRPO_API int32_t mgrpo_add_rms_norm_cpu(const float *x, const float *residual, const float *w, float offset, double eps, float *sum,
                                         float *y, float *inv_rms_or_null, int64_t rows, int64_t d);

// The backward pass of both. dx [rows, d] is written, dw_or_null [d] is accumulated into. x is the input of the norm. After
// mgrpo_add_rms_norm_cpu it is the sum: pass the sum's other gradient as dx_more [rows, d], which is added to dx, and dx
// is the gradient of either summand. The sum over rows has one fixed order, so dw does not depend on the number of threads.
// dx may be dy or dx_more.
MGRPO_API int32_t mgrpo_rms_norm_bwd_cpu(const float *dy, const float *x, const float *w, float offset, const float *inv_rms,
                                         const float *dx_more_or_null, float *dx, float *dw_or_null, int64_t rows, int64_t d);

MGRPO_API int32_t mgrpo_rms_norm_cuda(const void *x, const void *w, int32_t dtype, float offset, double eps, void *y,
                                      float *inv_rms_or_null, int64_t rows, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_add_rms_norm_cuda(const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps,
                                          void *sum, void *y, float *inv_rms_or_null, int64_t rows, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_rms_norm_bwd_cuda(const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more_or_null,
                                          int32_t dtype, float offset, void *dx, float *dw_or_null, int64_t rows, int64_t d, void *stream);
