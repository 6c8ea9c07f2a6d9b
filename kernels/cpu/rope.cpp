#include "check.h"
#include "mgrpo/nn.h"
#include "nn_ops.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

int32_t mgrpo_rope_cpu(const float *x, const float *cos, const float *sin, const int32_t *pos, float *y,
                       int64_t rows, int64_t heads, int64_t hd, int64_t rotary, int64_t max_pos, int32_t inverse) {
  if (!valid_sizes({rows, heads, hd}) || !valid_sizes({max_pos, hd}) || rotary < 0 || rotary > hd || rotary % 2 != 0)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (pos == nullptr || !all_in_range(pos, rows, 0, max_pos)) return MGRPO_INVALID_ARGUMENT;
  if (heads == 0 || hd == 0) return MGRPO_OK;
  if (any_null({x, cos, sin, y})) return MGRPO_INVALID_ARGUMENT;
  const int64_t row = heads * hd;
  parallel_ranges(rows, 1, static_cast<double>(rows) * row, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const int64_t angle = pos[r] * (rotary / 2);
      nn_ops().rope(x + r * row, cos + angle, sin + angle, y + r * row, heads, hd, rotary, inverse != 0 ? -1.0f : 1.0f);
    }
  });
  return MGRPO_OK;
}
