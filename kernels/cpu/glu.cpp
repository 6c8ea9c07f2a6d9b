#include "mgrpo/glu.h"

#include "check.h"
#include "layer_loops.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

constexpr double kWorkPerElement = 8;  // the cost of an exponential and a division

using Forward = decltype(LayerLoops::swiglu);
using Backward = decltype(LayerLoops::swiglu_bwd);

int32_t glu(Forward forward, const float *gate_up, float *y, int64_t rows, int64_t f) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({gate_up, y})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(rows, 1, kWorkPerElement * rows * f,
                  [=](int64_t begin, int64_t end) { forward(gate_up + 2 * begin * f, y + begin * f, end - begin, f); });
  return MGRPO_OK;
}

int32_t glu_bwd(Backward backward, const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  if (!valid_sizes({rows, f, 2})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || f == 0) return MGRPO_OK;
  if (any_null({dy, gate_up, dgate_up})) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(rows, 1, kWorkPerElement * rows * f, [=](int64_t begin, int64_t end) {
    backward(dy + begin * f, gate_up + 2 * begin * f, dgate_up + 2 * begin * f, end - begin, f);
  });
  return MGRPO_OK;
}

}  // namespace

int32_t mgrpo_swiglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f) { return glu(layer_loops().swiglu, gate_up, y, rows, f); }

int32_t mgrpo_swiglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  return glu_bwd(layer_loops().swiglu_bwd, dy, gate_up, dgate_up, rows, f);
}

int32_t mgrpo_geglu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f) { return glu(layer_loops().geglu, gate_up, y, rows, f); }

int32_t mgrpo_geglu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  return glu_bwd(layer_loops().geglu_bwd, dy, gate_up, dgate_up, rows, f);
}

int32_t mgrpo_clamped_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f) {
  return glu(layer_loops().clamped_glu, gate_up, y, rows, f);
}

int32_t mgrpo_clamped_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  return glu_bwd(layer_loops().clamped_glu_bwd, dy, gate_up, dgate_up, rows, f);
}

int32_t mgrpo_sigmoid_glu_cpu(const float *gate_up, float *y, int64_t rows, int64_t f) {
  return glu(layer_loops().sigmoid_glu, gate_up, y, rows, f);
}

int32_t mgrpo_sigmoid_glu_bwd_cpu(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  return glu_bwd(layer_loops().sigmoid_glu_bwd, dy, gate_up, dgate_up, rows, f);
}
