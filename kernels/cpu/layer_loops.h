// The inner loops of the layer kernels. They are compiled once for each instruction set, and one set is chosen at run time. The loops run
// on one thread and do not check their arguments. The files with the C functions check arguments and divide the work among threads.
#pragma once
#include <cstdint>

#include "mgrpo/glu.h"

namespace mgrpo::cpu {

// The maximum hd: the attention kernels have scratch of this size on the stack.
constexpr int64_t kMaxHeadDim = 512;
// Query rows that share one pass over keys and values.
constexpr int kAttentionTile = 16;
// The maximum number of columns of a call of linear_quant_bwd. It is a multiple of the block size of every type.
constexpr int64_t kQuantStrip = 256;

// Consecutive keys of a sequence: the keys at positions [position, position + rows) are the rows from `row` on.
struct KeySpan {
  int64_t position, row, rows;
};

// Returns the first key that the query at `position` attends to. With a window a query attends to its own key and to the window - 1 keys
// before it.
inline int64_t first_seen(int64_t position, int64_t window) { return window > 0 && position >= window ? position + 1 - window : 0; }

// The keys and values of one head. The positions of the spans are consecutive, and the first span begins no later than the first key that a
// query attends to. W: float, or uint16_t for bfloat16.
template <class W>
struct AttentionKeys {
  const KeySpan *spans;
  int64_t count;
  const W *k, *v;  // the first row of each
  int64_t stride;  // numbers from one row to the next
};
template <class W>
using Attend = void (*)(const float *const *q, const int64_t *length, int rows, AttentionKeys<W> keys, int64_t hd, float scale,
                        int64_t window, const float *sinks, float *const *out, float *const *lse);

// Consecutive query rows of one sequence, and the query heads of one key/value head. All pointers are to the first row and head.
struct AttentionQueries {
  const float *q, *dout, *out, *lse;  // a row of lse has stride / hd floats
  float *dq;
  int64_t rows;
  int64_t position;  // the position of the first row in its sequence
  int64_t group;     // the number of query heads
  int64_t hd;
  int64_t stride;  // floats from one row of q to the next: heads * hd
  float scale;
  int64_t window;  // 0: a query attends to all keys up to its own
};

// A state of the gated delta rule has at most kMaxDeltaDim rows and columns. A call with several rows computes kDeltaColumns columns of the
// state, which stay in the first-level cache. A call with one row computes up to kDeltaRowColumns columns in place.
constexpr int64_t kMaxDeltaDim = 256;
constexpr int64_t kDeltaColumns = 32;
constexpr int64_t kDeltaRowColumns = 128;
constexpr double kDeltaEps = 1e-6;

// Rows of one value head, and some columns of its state. before and after [key_dim, value_dim], v, y and r point to the first of these
// columns. If before is null, the state before is 0. before may be equal to after, and r may be null.
struct DeltaRows {
  const float *q, *k;  // normalised; qk_stride floats from one row to the next
  int64_t qk_stride;
  const float *v;
  int64_t v_stride;
  const float *decay, *beta;  // exp(g), beta
  int64_t gate_stride;
  float *y, *r;
  int64_t y_stride;
  const float *before;
  float *after;
  int64_t rows, key_dim, value_dim, columns;
};

// A product: y[i, j] += sign sum_t a[i, t] b[t, j] for t in [0, inner), where a[i, t] is a[i row_stride + t column_stride].
struct DeltaProduct {
  const float *a;
  int64_t row_stride, column_stride;
  const float *b;
  int64_t b_stride;
  float *y;
  int64_t y_stride;
  int64_t rows, inner, columns;
  float sign;
};

// The instruction sets, in ascending order: a CPU that has one has all before it.
enum class Isa { portable, avx2, avx512, amx };

using LinearBF16 = void (*)(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y,
                            int64_t y_stride, int64_t rows, int64_t k, int64_t n);

struct LayerLoops {
  Isa isa;

  // Computes y[r, j] of mgrpo_linear_cpu for r in [0, rows) and j in [0, n). Rows of x, w and y are x_stride, w_stride and y_stride numbers
  // apart.
  void (*linear)(const float *x, int64_t x_stride, const float *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                 int64_t rows, int64_t k, int64_t n);
  LinearBF16 linear_bf16;

  // Computes y[i, j] += scale * sum_c u[i, c] b[j, c] for j in [0, n) and c in [0, r). Rows of u and y are u_stride and y_stride floats
  // apart.
  void (*lora_expand)(const float *u, int64_t u_stride, const float *b, float scale, float *y, int64_t y_stride, int64_t rows, int64_t r,
                      int64_t n);

  // Converts k consecutive weights in blocks of a type of mgrpo/quant.h to float.
  void (*dequantise)(int32_t type, const uint8_t *w, float *y, int64_t k);
  // Does what linear does, for a matrix w in blocks.
  void (*linear_quant)(const float *x, int64_t x_stride, int32_t type, const uint8_t *w, const float *b, float *y, int64_t y_stride,
                       int64_t rows, int64_t k, int64_t n);
  // Computes dx[r, c] = sum_j dy[r, j] w[j, c] for c in [0, width), width <= kQuantStrip. w and dx point to the first of these columns, and
  // rows of w are row_bytes apart.
  void (*linear_quant_bwd)(const float *dy, int64_t dy_stride, int32_t type, const uint8_t *w, int64_t row_bytes, float *dx,
                           int64_t dx_stride, int64_t rows, int64_t width, int64_t n, bool add);

  // Normalises x, or sum = x + residual, which is written, too. residual and sum are both null or both not null. inv_rms may be null.
  void (*rms_norm)(const float *x, const float *residual, const float *w, float offset, double eps, float *sum, float *y, float *inv_rms,
                   int64_t rows, int64_t d);
  // Computes dx, plus dx_more if that is not null.
  void (*rms_norm_dx)(const float *dy, const float *x, const float *w, float offset, const float *inv_rms, const float *dx_more, float *dx,
                      int64_t rows, int64_t d);
  // Computes dw[j] += sum_r dy[r, j] x[r, j] inv_rms[r] for the columns j in [0, columns) of rows of d floats. Runs of `run` consecutive
  // rows are `stride` floats apart.
  void (*rms_norm_dw)(const float *dy, const float *x, const float *inv_rms, float *dw, int64_t rows, int64_t d, int64_t columns,
                      int64_t run, int64_t stride);

  // By enum mgrpo_gates.
  void (*glu[MGRPO_SIGMOID_GLU + 1])(const float *gate_up, float *y, int64_t rows, int64_t f);
  void (*glu_bwd[MGRPO_SIGMOID_GLU + 1])(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);
  // Compute y = silu(x) and dx = dy silu'(x) for n numbers. y may be x, and dx may be dy.
  void (*silu)(const float *x, float *y, int64_t n);
  void (*silu_bwd)(const float *dy, const float *x, float *dx, int64_t n);
  // Rotates the heads of one row: x, y [heads, hd], cos, sin [rotary / 2]. With sign -1 the rotation is the inverse.
  void (*rope)(const float *x, const float *cos, const float *sin, float *y, int64_t heads, int64_t hd, int64_t rotary, float sign);

  // Computes y[i] = sum_j weight[j] x[place[j] d + i] for one token. If weight is null, all weights are 1.
  void (*moe_combine)(const float *x, const int32_t *place, const float *weight, float *y, int64_t k, int64_t d);
  // Returns the dot product of g and a for one row, and multiplies both by weight.
  float (*moe_weigh)(float *g, float *a, float weight, int64_t d);

  // Computes attention for rows <= kAttentionTile query rows. Row i attends to the last `window` of the first length[i] keys, or to all of
  // these if window is 0. sinks [rows] are terms of the softmax's denominator. sinks and lse may be null.
  Attend<float> attend;
  Attend<uint16_t> attend_bf16;
  // Writes dq, and the parts of dk and dv from these queries, for keys first_seen(position, window) to position + rows - 1.
  void (*attend_bwd)(const AttentionQueries &queries, const AttentionKeys<float> &keys, float *dk, float *dv);

  // delta_loops.h describes these functions.
  void (*delta_rows)(const DeltaRows &in);
  void (*delta_product)(const DeltaProduct &p);
  float (*delta_normalise)(const float *x, float scale, float *y, int64_t d);
  void (*delta_normalise_bwd)(const float *dy, const float *x, float factor, float scale, float *dx, int64_t d);
};

// Returns the loops in use. They are for the best instruction set of this CPU, until mgrpo_cpu_use chooses another one.
// MGRPO_CPU_ISA=portable|avx2|avx512|amx in the environment limits the set. It is read once.
const LayerLoops &layer_loops();

// Reports whether the CPU has the instructions that multiply pairs of bfloat16 (avx512_bf16) and the set in use is at least avx512.
bool multiplies_bf16_pairs();

// Returns linear_rounded if `round` is not 0, multiplies_bf16_pairs() is true and the set in use is not amx. Otherwise returns
// LayerLoops::linear_bf16 of the set in use.
LinearBF16 linear_bf16(int32_t round);

// Does what LayerLoops::linear_bf16 does, but rounds the rows of x to bfloat16. multiplies_bf16_pairs() must be true.
void linear_rounded(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                    int64_t rows, int64_t k, int64_t n);

extern const LayerLoops kLayerLoopsPortable;
#if defined(__x86_64__)
extern const LayerLoops kLayerLoopsAvx2, kLayerLoopsAvx512, kLayerLoopsAmx;
#endif

}  // namespace mgrpo::cpu
