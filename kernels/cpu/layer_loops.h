// The inner loops of the layer kernels, compiled once for each instruction set and chosen at run time.
// They are serial and check nothing: the files of the C ABI check arguments and share out the work.
#pragma once
#include <cstdint>

namespace mgrpo::cpu {

// hd above this does not fit the attention kernels' scratch on the stack.
constexpr int64_t kMaxHeadDim = 512;
// Query rows that share one pass over keys and values.
constexpr int kAttentionTile = 16;
// Columns that a call of linear_quant_bwd takes: whole blocks of every type.
constexpr int64_t kQuantStrip = 256;

// Some of the keys that a query meets: those at positions [position, position + rows) of its sequence
// are the rows from `row` on.
struct KeySpan {
  int64_t position, row, rows;
};

// The first key that the query at `position` attends to: with a window its own and the window - 1 before it.
inline int64_t first_seen(int64_t position, int64_t window) { return window > 0 && position >= window ? position + 1 - window : 0; }

// The keys and values of one head. The spans' positions are consecutive, and the first span begins at or before the
// first key that any query attends to.
struct AttentionKeys {
  const KeySpan *spans;
  int64_t count;
  const float *k, *v;  // row 0
  int64_t stride;      // floats from a row to the next
};

// Consecutive query rows of one sequence and the query heads of one key/value head; all pointers are at the
// first row and head.
struct AttentionQueries {
  const float *q, *dout, *out, *lse;  // lse: stride / hd floats from a row to the next
  float *dq;
  int64_t rows;
  int64_t position;  // of the first row in its sequence
  int64_t group;     // query heads
  int64_t hd;
  int64_t stride;  // floats from a row of q to the next: heads * hd
  float scale;
  int64_t window;  // 0: a query sees all keys up to its own
};

// A state of the gated delta rule has at most this many rows and columns. Several rows take kDeltaColumns of them at a time, which stay in
// the first-level cache; a single row takes up to kDeltaRowColumns, in place.
constexpr int64_t kMaxDeltaDim = 256;
constexpr int64_t kDeltaColumns = 32;
constexpr int64_t kDeltaRowColumns = 128;
constexpr double kDeltaEps = 1e-6;

// Rows of one value head, and columns of its state. before, after [key_dim, value_dim], v, y and r are at the first of these columns.
// before null: zeros; it may be after. r may be null.
struct DeltaRows {
  const float *q, *k;  // normalised, qk_stride floats from a row to the next
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

// y[i, j] += sign sum_t a[i, t] b[t, j] for t in [0, inner); a[i, t] is at a + i row_stride + t column_stride.
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

using LinearBF16 = void (*)(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y,
                            int64_t y_stride, int64_t rows, int64_t k, int64_t n);

struct LayerLoops {
  const char *name;

  // y[r, j] for r in [0, rows), j in [0, n); rows of x, w, y are x_stride, w_stride, y_stride floats apart.
  void (*linear)(const float *x, int64_t x_stride, const float *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                 int64_t rows, int64_t k, int64_t n);
  LinearBF16 linear_bf16;

  // y[i, j] += scale * sum_c u[i, c] b[j, c] for j in [0, n), c in [0, r); rows of u and y are u_stride and y_stride floats
  // apart.
  void (*lora_expand)(const float *u, int64_t u_stride, const float *b, float scale, float *y, int64_t y_stride, int64_t rows, int64_t r,
                      int64_t n);

  // A matrix in blocks of a type of mgrpo/quant.h; k weights, which follow each other, become float.
  void (*dequantise)(int32_t type, const uint8_t *w, float *y, int64_t k);
  // As linear.
  void (*linear_quant)(const float *x, int64_t x_stride, int32_t type, const uint8_t *w, const float *b, float *y, int64_t y_stride,
                       int64_t rows, int64_t k, int64_t n);
  // dx[r, c] = sum_j dy[r, j] w[j, c] for c in [0, width), width <= kQuantStrip; w, whose rows are row_bytes apart, and dx are
  // at the first of these columns.
  void (*linear_quant_bwd)(const float *dy, int64_t dy_stride, int32_t type, const uint8_t *w, int64_t row_bytes, float *dx,
                           int64_t dx_stride, int64_t rows, int64_t width, int64_t n, bool add);

  // With a residual, sum = x + residual is written and normalised. residual and sum, and inv_rms, may be null.
  void (*rms_norm)(const float *x, const float *residual, const float *w, float offset, double eps, float *sum, float *y, float *inv_rms,
                   int64_t rows, int64_t d);
  // dx, plus dx_more if that is not null.
  void (*rms_norm_dx)(const float *dy, const float *x, const float *w, float offset, const float *inv_rms, const float *dx_more, float *dx,
                      int64_t rows, int64_t d);
  // dw[j] += sum_r dy[r, j] x[r, j] inv_rms[r] for the columns j in [0, columns) of rows of d floats; runs of `run` rows lie `stride`
  // floats apart.
  void (*rms_norm_dw)(const float *dy, const float *x, const float *inv_rms, float *dw, int64_t rows, int64_t d, int64_t columns,
                      int64_t run, int64_t stride);

  void (*swiglu)(const float *gate_up, float *y, int64_t rows, int64_t f);
  void (*swiglu_bwd)(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);
  void (*geglu)(const float *gate_up, float *y, int64_t rows, int64_t f);
  void (*geglu_bwd)(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);
  void (*clamped_glu)(const float *gate_up, float *y, int64_t rows, int64_t f);
  void (*clamped_glu_bwd)(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);
  void (*sigmoid_glu)(const float *gate_up, float *y, int64_t rows, int64_t f);
  void (*sigmoid_glu_bwd)(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f);
  // y = silu(x) and dx = dy silu'(x) for n numbers; y may be x, dx may be dy.
  void (*silu)(const float *x, float *y, int64_t n);
  void (*silu_bwd)(const float *dy, const float *x, float *dx, int64_t n);
  // One row: x, y [heads, hd], cos, sin [rotary / 2]; sign is -1 for the inverse.
  void (*rope)(const float *x, const float *cos, const float *sin, float *y, int64_t heads, int64_t hd, int64_t rotary, float sign);

  // One token: y[i] = sum_j weight[j] x[place[j] d + i], null weights are 1.
  void (*moe_combine)(const float *x, const int32_t *place, const float *weight, float *y, int64_t k, int64_t d);
  // One row: returns g a, then multiplies both by weight.
  float (*moe_weigh)(float *g, float *a, float weight, int64_t d);

  // rows <= kAttentionTile query rows; row i attends to the last window of the first length[i] keys, to all where window is
  // 0. sinks [rows] are terms of the softmax's denominator. sinks and lse may be null.
  void (*attend)(const float *const *q, const int64_t *length, int rows, AttentionKeys keys, int64_t hd, float scale, int64_t window,
                 const float *sinks, float *const *out, float *const *lse);
  // Writes dq, and adds to dk and dv the parts of these queries, for keys first_seen(position, window) to position +
  // rows - 1.
  void (*attend_bwd)(const AttentionQueries &queries, const AttentionKeys &keys, float *dk, float *dv);

  // See delta_loops.h.
  void (*delta_rows)(const DeltaRows &in);
  void (*delta_product)(const DeltaProduct &p);
  float (*delta_normalise)(const float *x, float scale, float *y, int64_t d);
  void (*delta_normalise_bwd)(const float *dy, const float *x, float factor, float scale, float *dx, int64_t d);
};

// The set in use: the best one this CPU has, until mgrpo_cpu_use names another. MGRPO_CPU_ISA=portable|avx2|avx512|amx in the
// environment, read once, lowers it.
const LayerLoops &layer_loops();

// Whether the set in use may be joined by the instructions that multiply pairs of bfloat16 (avx512_bf16).
bool multiplies_bf16_pairs();

// LayerLoops::linear_bf16 of the set in use or, where `round` is not 0 and pairs of bfloat16 are multiplied without tiles, linear_rounded.
LinearBF16 linear_bf16(int32_t round);

// As LayerLoops::linear_bf16, but the rows of x are rounded to bfloat16. Needs multiplies_bf16_pairs().
void linear_rounded(const float *x, int64_t x_stride, const uint16_t *w, int64_t w_stride, const float *b, float *y, int64_t y_stride,
                    int64_t rows, int64_t k, int64_t n);

extern const LayerLoops kLayerLoopsPortable;
#if defined(__x86_64__)
extern const LayerLoops kLayerLoopsAvx2, kLayerLoopsAvx512, kLayerLoopsAmx;
#endif

}  // namespace mgrpo::cpu
