// Replaces functions of the C ABI. Each calls the real one and then changes one value of a result, if MGRPO_WRONG names that result. If
// MGRPO_WRONG_ISA is set, the result is wrong only on that instruction set.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "mgrpo/adamw.h"
#include "mgrpo/advantage.h"
#include "mgrpo/attention.h"
#include "mgrpo/delta_rule.h"
#include "mgrpo/glu.h"
#include "mgrpo/heads.h"
#include "mgrpo/isa.h"
#include "mgrpo/linear.h"
#include "mgrpo/logprob.h"
#include "mgrpo/lora.h"
#include "mgrpo/matmul.h"
#include "mgrpo/moe.h"
#include "mgrpo/policy_loss.h"
#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo/quant.h"
#include "mgrpo/rms_norm.h"
#include "mgrpo/sample.h"
#include "mgrpo/short_conv.h"

namespace {

bool wrong(const char *result) {
  const char *wanted = std::getenv("MGRPO_WRONG"), *isa = std::getenv("MGRPO_WRONG_ISA");
  return wanted && std::strcmp(wanted, result) == 0 && (!isa || std::strcmp(isa, mgrpo_cpu_isa()) == 0);
}

// Changes the last of n values by one part in a hundred.
template <class T>
void spoil(const char *result, T *values, int64_t n) {
  if (values && n > 0 && wrong(result)) values[n - 1] += T(0.01) * (1 + (values[n - 1] < 0 ? -values[n - 1] : values[n - 1]));
}
void spoil(const char *result, void *values, int32_t dtype, int64_t n) {
  if (dtype == MGRPO_FLOAT64) return spoil(result, static_cast<double *>(values), n);
  if (dtype == MGRPO_FLOAT32) return spoil(result, static_cast<float *>(values), n);
}

// Swaps the first and the last of n places.
void exchange(const char *result, int32_t *values, int64_t n) {
  if (n > 1 && wrong(result)) std::swap(values[0], values[n - 1]);
}

}  // namespace

#define WRONG(name, parameters, arguments, change)                                                                     \
  int32_t mgrpo_##name##_cpu parameters {                                                                              \
    static const auto real = reinterpret_cast<decltype(&mgrpo_##name##_cpu)>(dlsym(RTLD_NEXT, "mgrpo_" #name "_cpu")); \
    const int32_t status = real arguments;                                                                             \
    change;                                                                                                            \
    return status;                                                                                                     \
  }

WRONG(linear, (const float *x, const float *w, const float *b, float *y, int64_t rows, int64_t k, int64_t n), (x, w, b, y, rows, k, n),
      spoil("linear", y, rows *n))
WRONG(linear_bf16, (const float *x, const uint16_t *w, const float *b, float *y, int64_t rows, int64_t k, int64_t n, int32_t round),
      (x, w, b, y, rows, k, n, round), if (round != 0) spoil("linear_bf16 rounded", y, rows *n);
      else spoil("linear_bf16", y, rows *n))
WRONG(matmul, (mgrpo_matrix a, mgrpo_matrix b, float *y, int64_t y_row, int64_t m, int64_t k, int64_t n, int32_t add, int32_t round),
      (a, b, y, y_row, m, k, n, add, round), if (round != 0) spoil("matmul rounded", y, (m - 1) * y_row + n);
      else spoil("matmul", y, (m - 1) * y_row + n))
WRONG(rms_norm, (const float *x, const float *w, float o, double e, float *y, float *inv, int64_t rows, int64_t d),
      (x, w, o, e, y, inv, rows, d), spoil("rms_norm", y, rows *d))
WRONG(add_rms_norm,
      (const float *x, const float *r, const float *w, float o, double e, float *sum, float *y, float *inv, int64_t rows, int64_t d),
      (x, r, w, o, e, sum, y, inv, rows, d), spoil("add_rms_norm y", y, rows *d);
      spoil("add_rms_norm sum", sum, rows *d))
WRONG(rms_norm_bwd,
      (const float *dy, const float *x, const float *w, float o, const float *inv, const float *more, float *dx, float *dw, int64_t rows,
       int64_t d),
      (dy, x, w, o, inv, more, dx, dw, rows, d), spoil("rms_norm_bwd dx", dx, rows *d);
      spoil("rms_norm_bwd dw", dw, d))
WRONG(glu, (int32_t gates, const float *g, float *y, int64_t rows, int64_t f), (gates, g, y, rows, f),
      if (gates == MGRPO_SWIGLU) spoil("swiglu", y, rows *f);
      if (gates == MGRPO_GEGLU) spoil("geglu", y, rows *f); if (gates == MGRPO_CLAMPED_GLU) spoil("clamped_glu", y, rows *f);
      if (gates == MGRPO_SIGMOID_GLU) spoil("sigmoid_glu", y, rows *f))
WRONG(glu_bwd, (int32_t gates, const float *dy, const float *g, float *dg, int64_t rows, int64_t f), (gates, dy, g, dg, rows, f),
      if (gates == MGRPO_SWIGLU) spoil("swiglu_bwd", dg, 2 * rows * f);
      if (gates == MGRPO_GEGLU) spoil("geglu_bwd", dg, 2 * rows * f);
      if (gates == MGRPO_CLAMPED_GLU) spoil("clamped_glu_bwd", dg, 2 * rows * f);
      if (gates == MGRPO_SIGMOID_GLU) spoil("sigmoid_glu_bwd", dg, 2 * rows * f))
WRONG(split_heads, (const float *qkv, mgrpo_heads layout, float *q, float *k, float *v, float *inv_q, float *inv_k, int64_t rows),
      (qkv, layout, q, k, v, inv_q, inv_k, rows), spoil("split_heads q", q, rows *layout.heads *layout.hd);
      spoil("split_heads k", k, rows *layout.kv_heads *layout.hd); spoil("split_heads v", v, rows *layout.kv_heads *layout.hd))
WRONG(split_heads_bwd,
      (const float *dq, const float *dk, const float *dv, const float *qkv, mgrpo_heads layout, const float *inv_q, const float *inv_k,
       float *dqkv, float *dw_q, float *dw_k, int64_t rows),
      (dq, dk, dv, qkv, layout, inv_q, inv_k, dqkv, dw_q, dw_k, rows),
      spoil("split_heads_bwd", dqkv, rows *(layout.heads + 2 * layout.kv_heads) * layout.hd);
      spoil("split_heads_bwd dw_q", dw_q, layout.hd); spoil("split_heads_bwd dw_k", dw_k, layout.hd))
WRONG(cache_heads,
      (const float *qkv, mgrpo_heads layout, float *q, void *k, void *v, int32_t type, mgrpo_pages p, const int32_t *sequence,
       int64_t rows),
      (qkv, layout, q, k, v, type, p, sequence, rows), spoil("cache_heads q", q, rows *layout.heads *layout.hd);
      spoil("cache_heads k", k, type, (p.table[0] + 1) * p.kv_heads * p.block * p.hd);
      spoil("cache_heads v", v, type, (p.table[0] + 1) * p.kv_heads * p.block * p.hd))
WRONG(attention_packed,
      (const float *q, const float *k, const float *v, const int32_t *cu, const int32_t *f, int64_t batch, const float *sinks, float *out,
       float *lse, int64_t heads, int64_t kv, int64_t hd, float scale, int64_t window),
      (q, k, v, cu, f, batch, sinks, out, lse, heads, kv, hd, scale, window), spoil("attention_packed", out, cu[batch] * heads * hd))
WRONG(attention_packed_bwd,
      (const float *dout, const float *q, const float *k, const float *v, const float *out, const float *lse, const int32_t *cu,
       const int32_t *f, int64_t batch, float *dq, float *dk, float *dv, int64_t heads, int64_t kv, int64_t hd, float scale,
       int64_t window),
      (dout, q, k, v, out, lse, cu, f, batch, dq, dk, dv, heads, kv, hd, scale, window),
      spoil("attention_packed_bwd dq", dq, cu[batch] * heads * hd);
      spoil("attention_packed_bwd dk", dk, cu[batch] * kv * hd); spoil("attention_packed_bwd dv", dv, cu[batch] * kv * hd))
WRONG(attention_cached,
      (const float *q, const void *k, const void *v, int32_t type, mgrpo_pages p, const int32_t *sequence, const int32_t *length,
       const float *sinks, float *out, int64_t rows, int64_t heads, float scale, int64_t window),
      (q, k, v, type, p, sequence, length, sinks, out, rows, heads, scale, window),
      if (type == MGRPO_BFLOAT16) spoil("attention_cached bf16", out, rows * heads * p.hd);
      else spoil("attention_cached", out, rows * heads * p.hd))
WRONG(short_conv_packed, (const float *x, mgrpo_short_conv c, const int32_t *cu, const int32_t *f, int64_t batch, float *y),
      (x, c, cu, f, batch, y), spoil("short_conv_packed", y, cu[batch] * c.d))
WRONG(short_conv_packed_bwd,
      (const float *dy, const float *x, mgrpo_short_conv c, const int32_t *cu, const int32_t *f, int64_t batch, float *dx, float *dw,
       float *db),
      (dy, x, c, cu, f, batch, dx, dw, db), spoil("short_conv_packed_bwd dx", dx, (c.silu ? 1 : 3) * cu[batch] * c.d);
      spoil("short_conv_packed_bwd dw", dw, c.d *c.width); spoil("short_conv_packed_bwd dbias", db, c.d))
WRONG(short_conv_cached,
      (const float *x, mgrpo_short_conv c, float *cache, mgrpo_pages p, const int32_t *sequence, const int32_t *pos, float *y,
       int64_t rows),
      (x, c, cache, p, sequence, pos, y, rows), spoil("short_conv_cached", y, rows *c.d))
WRONG(short_conv_states,
      (const float *u, mgrpo_short_conv c, float *states, int64_t slots, const int32_t *slot, const int32_t *pos, float *y, int64_t rows),
      (u, c, states, slots, slot, pos, y, rows), spoil("short_conv_states y", y, rows *c.d);
      spoil("short_conv_states states", states, slots *(c.width - 1) * c.d))
// Spoils the state before the last piece, because the state after it is not read.
WRONG(delta_rule_packed, (const float *x, const float *ba, mgrpo_delta_rule d, mgrpo_pieces p, float *y, float *r, float *states),
      (x, ba, d, p, y, r, states), spoil("delta_rule_packed y", y, p.first[p.count] * d.value_heads * d.value_dim);
      spoil("delta_rule_packed r", r, p.first[p.count] * d.value_heads * d.value_dim);
      spoil("delta_rule_packed states", states, (p.before[p.count - 1] + 1) * d.value_heads * d.key_dim * d.value_dim))
WRONG(delta_rule_packed_bwd,
      (const float *dy, const float *x, const float *ba, const float *r, const float *states, mgrpo_delta_rule d, mgrpo_pieces p, float *dx,
       float *dba, float *da, float *dt),
      (dy, x, ba, r, states, d, p, dx, dba, da, dt),
      spoil("delta_rule_packed_bwd dx", dx, p.first[p.count] * (2 * d.key_heads * d.key_dim + d.value_heads * d.value_dim));
      spoil("delta_rule_packed_bwd dba", dba, p.first[p.count] * 2 * d.value_heads);
      spoil("delta_rule_packed_bwd da_log", da, d.value_heads); spoil("delta_rule_packed_bwd ddt_bias", dt, d.value_heads))
WRONG(delta_rule_states,
      (const float *x, const float *ba, mgrpo_delta_rule d, float *states, int64_t slots, const int32_t *slot, const int32_t *pos, float *y,
       int64_t rows),
      (x, ba, d, states, slots, slot, pos, y, rows), spoil("delta_rule_states y", y, rows *d.value_heads *d.value_dim);
      spoil("delta_rule_states states", states, slots *d.value_heads *d.key_dim *d.value_dim))
WRONG(dequantise, (const void *w, int32_t type, const int32_t *rows, float *y, int64_t count, int64_t n, int64_t k),
      (w, type, rows, y, count, n, k), spoil("dequantise", y, count *k))
WRONG(linear_quant,
      (const float *x, const void *w, int32_t type, const float *b, float *y, int64_t stride, int64_t rows, int64_t k, int64_t n),
      (x, w, type, b, y, stride, rows, k, n), spoil("linear_quant", y, (rows - 1) * stride + n))
WRONG(linear_quant_bwd_input,
      (const float *dy, int64_t stride, const void *w, int32_t type, float *dx, int64_t rows, int64_t k, int64_t n, int32_t add),
      (dy, stride, w, type, dx, rows, k, n, add), spoil("linear_quant_bwd_input", dx, rows *k))
WRONG(lora_add, (const mgrpo_lora *a, int64_t count, const int32_t *which, const float *x, float *y, int64_t rows, int64_t k, int64_t n),
      (a, count, which, x, y, rows, k, n), spoil("lora_add", y, rows *n))
WRONG(moe_route,
      (const float *z, const int32_t *given, int32_t *expert, float *weight, int32_t *differs, int64_t tokens, int64_t experts, int64_t k,
       int32_t normalise),
      (z, given, expert, weight, differs, tokens, experts, k, normalise), spoil("moe_route weight", weight, tokens *k);
      if (!given) exchange("moe_route expert", expert, k))
WRONG(moe_route_bwd,
      (const float *dw, const float *z, const int32_t *expert, const float *dp, float *dz, int64_t tokens, int64_t experts, int64_t k,
       int32_t normalise),
      (dw, z, expert, dp, dz, tokens, experts, k, normalise), spoil("moe_route_bwd", dz, tokens *experts))
WRONG(moe_sort, (const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries, int64_t experts),
      (expert, first, source, place, entries, experts), exchange("moe_sort place", place, entries);
      exchange("moe_sort source", source, entries))
WRONG(moe_gather, (const float *x, const int32_t *source, float *y, int64_t tokens, int64_t k, int64_t d), (x, source, y, tokens, k, d),
      spoil("moe_gather", y, tokens * k * d))
WRONG(moe_linear,
      (const float *x, const float *w, const int32_t *first, float *y, int64_t entries, int64_t experts, int64_t in, int64_t out),
      (x, w, first, y, entries, experts, in, out), spoil("moe_linear", y, entries *out))
WRONG(moe_linear_bf16,
      (const float *x, const uint16_t *w, const int32_t *first, float *y, int64_t entries, int64_t experts, int64_t in, int64_t out,
       int32_t round),
      (x, w, first, y, entries, experts, in, out, round), spoil("moe_linear_bf16", y, entries *out))
WRONG(moe_combine, (const float *x, const int32_t *place, const float *weight, float *y, int64_t tokens, int64_t k, int64_t d),
      (x, place, weight, y, tokens, k, d), spoil("moe_combine", y, tokens *d))
WRONG(moe_weigh, (float *g, float *a, const int32_t *source, const float *weight, float *dweight, int64_t entries, int64_t d),
      (g, a, source, weight, dweight, entries, d), spoil("moe_weigh g", g, entries *d);
      spoil("moe_weigh a", a, entries *d); spoil("moe_weigh dweight", dweight, entries))
WRONG(group_advantage,
      (const void *r, int32_t dtype, const double *w, const int64_t *at, int64_t groups, const mgrpo_convention *c, void *a,
       mgrpo_group_stats *s, mgrpo_advantage_error *e),
      (r, dtype, w, at, groups, c, a, s, e), if (dtype == MGRPO_FLOAT64) spoil("group_advantage", a, dtype, at[groups]);
      else spoil("group_advantage_f32", a, dtype, at[groups]))
WRONG(token_logprob,
      (const void *z, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *y, const uint8_t *mask, double tau, void *p,
       void *h, int64_t *bad),
      (z, dtype, rows, vocab, ld, y, mask, tau, p, h, bad), spoil("token_logprob", p, dtype, rows);
      spoil("token_logprob entropy", h, dtype, rows))
WRONG(token_logprob_bwd,
      (void *z, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *y, const uint8_t *mask, double tau, const void *p,
       const void *h, int64_t *bad),
      (z, dtype, rows, vocab, ld, y, mask, tau, p, h, bad), spoil("token_logprob_bwd", z, dtype, rows *ld))
WRONG(policy_loss, (const mgrpo_loss_batch *b, const mgrpo_loss_config *c, void *p, void *h, mgrpo_loss_sums *s, mgrpo_loss_error *e),
      (b, c, p, h, s, e), spoil("policy_loss dlogp", p, b->dtype, b->tokens);
      spoil("policy_loss dentropy", h, b->dtype, b->tokens))
WRONG(policy_gradient_from_logits,
      (const mgrpo_logits *z, int64_t first, const mgrpo_loss_batch *b, const mgrpo_loss_config *c, void *p, void *h, int64_t *bad,
       mgrpo_loss_error *e),
      (z, first, b, c, p, h, bad, e), spoil("policy_gradient_from_logits", z->data, z->dtype, z->rows * z->ld))
WRONG(policy_loss_from_logits,
      (const mgrpo_logits *z, const mgrpo_loss_batch *b, const mgrpo_loss_config *c, void *p, void *h, mgrpo_loss_sums *s, int64_t *bad,
       mgrpo_loss_error *e),
      (z, b, c, p, h, s, bad, e), spoil("policy_loss_from_logits", z->data, z->dtype, z->rows * z->ld))
WRONG(grad_norm, (const float *g, int64_t n, double *norm), (g, n, norm), spoil("grad_norm", norm, 1))
WRONG(adamw, (float *p, float *m, float *v, const float *g, uint16_t *half, int64_t n, double norm, const mgrpo_adamw_config *c),
      (p, m, v, g, half, n, norm, c), spoil("adamw m", m, n);
      spoil("adamw v", v, n); spoil("adamw", p, n))
WRONG(sample,
      (const void *z, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *s, int32_t *token, float *p, float *t,
       int64_t *bad),
      (z, dtype, rows, vocab, ld, s, token, p, t, bad), exchange("sample", token, rows);
      spoil("sample logp", p, rows))
