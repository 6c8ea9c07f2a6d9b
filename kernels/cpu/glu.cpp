#include "mgrpo/glu.h"

#include "check.h"
#include "layer_loops.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

constexpr double kWorkPerElement = 8;  // the cost of an exponential and a division

bool valid(int32_t gates, int64_t rows, int64_t f) {
  return gates >= MGRPO_SWIGLU && gates <= MGRPO_SIGMOID_GLU && valid_sizes({rows, f, 2});
}

}  // namespace

int32_t mgrpo_glu_cpu(int32_t gates, const float *gate_up, float *y, int64_t rows, int64_t f) {
  if (!valid(gates, rows, f)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({gate_up, y})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(rows, 1, kWorkPerElement * rows * f, [=, forward = layer_loops().glu[gates]](int64_t begin, int64_t end) {
    forward(gate_up + 2 * begin * f, y + begin * f, end - begin, f);
  });
  return MGRPO_OK;
}

int32_t mgrpo_glu_bwd_cpu(int32_t gates, const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  if (!valid(gates, rows, f)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({dy, gate_up, dgate_up})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(rows, 1, kWorkPerElement * rows * f, [=, backward = layer_loops().glu_bwd[gates]](int64_t begin, int64_t end) {
    backward(dy + begin * f, gate_up + 2 * begin * f, dgate_up + 2 * begin * f, end - begin, f);
  });
  return MGRPO_OK;
}
