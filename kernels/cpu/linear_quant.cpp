#include "check.h"
#include "layer_loops.h"
#include "mgrpo/quant.h"
#include "parallel.h"
#include "quant_block.h"

namespace mgrpo::cpu {
namespace {

// As in linear.cpp. kRowBlock is larger, because a thread decodes all of w for a block of rows.
constexpr int64_t kOutputBlock = 96, kRowBlock = 168;

const uint8_t *bytes(const void *w) { return static_cast<const uint8_t *>(w); }

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo;
using namespace mgrpo::cpu;

int64_t mgrpo_quant_row_bytes(int32_t type, int64_t k) { return quant_row_bytes(type, k); }

int32_t mgrpo_dequantise_cpu(const void *w, int32_t type, const int32_t *rows_or_null, float *y, int64_t count, int64_t n, int64_t k) {
  const int64_t row_bytes = quant_row_bytes(type, k);
  if (!valid_sizes({count, k}) || !valid_sizes({n, k}) || row_bytes < 0) return MGRPO_INVALID_ARGUMENT;
  if (rows_or_null != nullptr ? !all_in_range(rows_or_null, count, 0, n) : count > n) return MGRPO_INVALID_ARGUMENT;
  if (count == 0 || k == 0) return MGRPO_OK;
  if (any_null({w, y})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(count, 1, static_cast<double>(count) * k, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      layer_loops().dequantise(type, bytes(w) + (rows_or_null != nullptr ? rows_or_null[i] : i) * row_bytes, y + i * k, k);
  });
  return MGRPO_OK;
}

int32_t mgrpo_linear_quant_cpu(const float *x, const void *w, int32_t type, const float *b_or_null, float *y, int64_t y_stride,
                               int64_t rows, int64_t k, int64_t n) {
  const int64_t row_bytes = quant_row_bytes(type, k);
  if (!valid_sizes({rows, k, n}) || !valid_sizes({rows, y_stride}) || y_stride < n || row_bytes < 0 || k > MGRPO_QUANT_COLUMNS)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  const double work = static_cast<double>(rows) * k * n;
  if (rows > n) {
    parallel_blocks(rows, kRowBlock, work, [=](int64_t begin, int64_t end) {
      layer_loops().linear_quant(x + begin * k, k, type, bytes(w), b_or_null, y + begin * y_stride, y_stride, end - begin, k, n);
    });
    return MGRPO_OK;
  }
  parallel_blocks(n, kOutputBlock, work, [=](int64_t begin, int64_t end) {
    layer_loops().linear_quant(x, k, type, bytes(w) + begin * row_bytes, b_or_null != nullptr ? b_or_null + begin : nullptr, y + begin,
                               y_stride, rows, k, end - begin);
  });
  return MGRPO_OK;
}

int32_t mgrpo_linear_quant_bwd_input_cpu(const float *dy, int64_t dy_stride, const void *w, int32_t type, float *dx, int64_t rows,
                                         int64_t k, int64_t n, int32_t add) {
  const int64_t row_bytes = quant_row_bytes(type, k);
  if (!valid_sizes({rows, k, n}) || !valid_sizes({rows, dy_stride}) || dy_stride < n || row_bytes < 0) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || k == 0) return MGRPO_OK;
  if (dx == nullptr || (n > 0 && any_null({dy, w}))) return MGRPO_INVALID_ARGUMENT;
  const int64_t strips = (k + kQuantStrip - 1) / kQuantStrip, row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  parallel_for(strips * row_blocks, static_cast<double>(rows) * k * n, [=](int64_t i) {
    const int64_t r = i / strips * kRowBlock, c = i % strips * kQuantStrip;
    const int64_t some = rows - r < kRowBlock ? rows - r : kRowBlock, width = k - c < kQuantStrip ? k - c : kQuantStrip;
    layer_loops().linear_quant_bwd(dy + r * dy_stride, dy_stride, type, bytes(w) + quant_row_bytes(type, c), row_bytes, dx + r * k + c, k,
                                   some, width, n, add != 0);
  });
  return MGRPO_OK;
}
