// The step between the product of queries, keys and values and attention: heads, their norms and rotation, and the key-value cache.
// Float32, on a GPU also bfloat16, uses our kernels. Other tensors use LibTorch's operators.
#include "mgrpo/heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "mgrpo/rms_norm.h"
#include "norm.h"
#include "pages.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// mgt_heads, with tensors instead of handles. Norms, cos and sin may be undefined.
struct Heads {
  int64_t rows, heads, kv_heads, hd;
  at::Tensor q_norm, k_norm, cos, sin, pos;
  double offset, eps;

  bool normalised() const { return q_norm.defined(); }
  bool whole() const { return normalised() && q_norm.size(0) != hd; }
  int64_t groups(int64_t of) const { return whole() ? 1 : of; }

  mgrpo_heads how() const {
    const auto data = [](const at::Tensor &t) { return t.defined() ? t.const_data_ptr() : nullptr; };
    return {heads,
            kv_heads,
            hd,
            data(q_norm),
            data(k_norm),
            whole(),
            float(offset),
            eps,
            static_cast<const float *>(data(cos)),
            static_cast<const float *>(data(sin)),
            cos.defined() ? 2 * cos.size(1) : 0,
            cos.defined() ? cos.size(0) : 0,
            pos.const_data_ptr<int32_t>()};
  }
};

void check_norms(const Heads &h, const at::Tensor &like) {
  const auto fits = [&](const at::Tensor &w, int64_t of) {
    return w.dim() == 1 && w.size(0) == (h.whole() ? of * h.hd : h.hd) && w.is_contiguous() && w.scalar_type() == like.scalar_type() &&
           w.device() == like.device();
  };
  TORCH_CHECK(h.q_norm.defined() == h.k_norm.defined() && (!h.normalised() || (fits(h.q_norm, h.heads) && fits(h.k_norm, h.kv_heads))),
              "norms of heads must be [", h.hd, "], or of all of them together [", h.heads * h.hd, "] and [", h.kv_heads * h.hd, "], ",
              like.scalar_type(), " and on ", like.device());
}

void check_tables(const Heads &h, const at::Tensor &like) {
  TORCH_CHECK(h.cos.defined() == h.sin.defined(), "cos and sin belong together");
  if (!h.cos.defined()) return;
  for (const auto *t : {&h.cos, &h.sin})
    TORCH_CHECK(t->device() == like.device() && t->dim() == 2 && t->size(1) <= h.hd / 2 && t->sizes() == h.cos.sizes() &&
                    t->scalar_type() == at::kFloat && t->is_contiguous(),
                "cos and sin must be float32 [P, ", h.hd / 2, " at most], contiguous and on ", like.device());
}

Heads heads_of(const at::Tensor &qkv, const mgt_heads &how) {
  TORCH_CHECK(how.heads > 0 && how.kv_heads > 0 && how.heads % how.kv_heads == 0,
              "the heads of queries must be a multiple of those of keys");
  const int64_t all = how.heads + 2 * how.kv_heads;
  TORCH_CHECK(qkv.dim() == 2 && qkv.size(1) > 0 && qkv.size(1) % all == 0, "qkv must be [T, (H + 2 KV) hd] of ", all, " heads");
  Heads h{qkv.size(0),         how.heads,           how.kv_heads,     qkv.size(1) / all,
          or_none(how.q_norm), or_none(how.k_norm), or_none(how.cos), or_none(how.sin),
          ref(how.pos),        how.offset,          how.eps};
  check_norms(h, qkv);
  check_tables(h, qkv);
  int32s(h.pos, h.rows, "pos", qkv);
  return h;
}

constexpr auto kPositions = ": is every position in the cosine table?";

// Returns q, k and v. For normalised heads it writes 1 / rms of queries and keys to inv, unless that is NULL.
variable_list split(const at::Tensor &qkv, const Heads &h, variable_list *inv) {
  auto q = at::empty({h.rows, h.heads, h.hd}, qkv.options()), k = at::empty({h.rows, h.kv_heads, h.hd}, qkv.options()),
       v = at::empty_like(k);
  at::Tensor inv_q, inv_k;
  if (inv && h.normalised()) {
    inv_q = at::empty({h.rows, h.groups(h.heads)}, qkv.options().dtype(at::kFloat));
    inv_k = at::empty({h.rows, h.groups(h.kv_heads)}, inv_q.options());
  }
  if (qkv.is_cuda())
    check_status(the_cuda_part->split_heads(qkv.const_data_ptr(), h.how(), dtype_of(qkv), q.mutable_data_ptr(), k.mutable_data_ptr(),
                                            v.mutable_data_ptr(), floats_or_null(inv_q), floats_or_null(inv_k), h.rows, stream_of(qkv)));
  else
    check_status(mgrpo_split_heads_cpu(qkv.const_data_ptr<float>(), h.how(), q.mutable_data_ptr<float>(), k.mutable_data_ptr<float>(),
                                       v.mutable_data_ptr<float>(), floats_or_null(inv_q), floats_or_null(inv_k), h.rows),
                 kPositions);
  if (inv) *inv = {inv_q, inv_k};
  return {q, k, v};
}

// Returns the gradients of qkv, and of the norms' weights if they are needed.
variable_list split_bwd(const variable_list &grads, const at::Tensor &qkv, const Heads &h, const variable_list &inv, bool for_q_norm,
                        bool for_k_norm) {
  auto dq = grads[0].contiguous(), dk = grads[1].contiguous(), dv = grads[2].contiguous();
  auto dqkv = at::empty({h.rows, (h.heads + 2 * h.kv_heads) * h.hd}, dq.options());
  at::Tensor dw_q, dw_k;
  if (for_q_norm) dw_q = at::zeros(h.q_norm.sizes(), dq.options().dtype(at::kFloat));
  if (for_k_norm) dw_k = at::zeros(h.k_norm.sizes(), dq.options().dtype(at::kFloat));
  const void *x = qkv.defined() ? qkv.const_data_ptr() : nullptr;
  if (dq.is_cuda())
    check_status(the_cuda_part->split_heads_bwd(dq.const_data_ptr(), dk.const_data_ptr(), dv.const_data_ptr(), x, h.how(),
                                                floats_or_null(inv[0]), floats_or_null(inv[1]), dtype_of(dq), dqkv.mutable_data_ptr(),
                                                floats_or_null(dw_q), floats_or_null(dw_k), h.rows, stream_of(dq)));
  else
    check_status(mgrpo_split_heads_bwd_cpu(dq.const_data_ptr<float>(), dk.const_data_ptr<float>(), dv.const_data_ptr<float>(),
                                           static_cast<const float *>(x), h.how(), floats_or_null(inv[0]), floats_or_null(inv[1]),
                                           dqkv.mutable_data_ptr<float>(), floats_or_null(dw_q), floats_or_null(dw_k), h.rows));
  const auto of_type = [](const at::Tensor &dw, const at::Tensor &w) { return dw.defined() ? dw.to(w.scalar_type()) : dw; };
  return {dqkv, of_type(dw_q, h.q_norm), of_type(dw_k, h.k_norm)};
}

struct SplitHeads : torch::autograd::Function<SplitHeads> {
  using Weight = std::optional<at::Tensor>;

  static variable_list forward(AutogradContext *ctx, const at::Tensor &qkv, const Weight &, const Weight &, const Heads &h) {
    variable_list inv;
    auto out = split(qkv, h, &inv);
    ctx->save_for_backward({h.normalised() ? qkv : at::Tensor(), h.q_norm, h.k_norm, h.cos, h.sin, h.pos, inv[0], inv[1]});
    ctx->saved_data["heads"] = h.heads;
    ctx->saved_data["kv_heads"] = h.kv_heads;
    ctx->saved_data["hd"] = h.hd;
    ctx->saved_data["offset"] = h.offset;
    ctx->saved_data["eps"] = h.eps;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto &data = ctx->saved_data;
    const Heads h{
        grads[0].size(0), data["heads"].toInt(),     data["kv_heads"].toInt(), data["hd"].toInt(), saved[1], saved[2], saved[3], saved[4],
        saved[5],         data["offset"].toDouble(), data["eps"].toDouble()};
    auto g = split_bwd(grads, saved[0], h, {saved[6], saved[7]}, h.normalised() && ctx->needs_input_grad(1),
                       h.normalised() && ctx->needs_input_grad(2));
    return {g[0], g[1], g[2], {}};
  }
};

// Returns the heads x [T, heads, hd] after rotation. The rotation is in float32, like the tables.
at::Tensor rotated_composite(const at::Tensor &x, const Heads &h) {
  if (!h.cos.defined()) return x;
  int64_t half = h.cos.size(1), rest = x.size(2) - 2 * half;
  auto wide = wide_of(x);
  auto c = h.cos.index_select(0, h.pos).unsqueeze(1).to(wide), s = h.sin.index_select(0, h.pos).unsqueeze(1).to(wide);
  auto a = x.narrow(2, 0, half).to(wide), b = x.narrow(2, half, half).to(wide);
  auto rotated = at::cat({a * c - b * s, b * c + a * s}, 2).to(x.scalar_type());
  return rest == 0 ? rotated : at::cat({rotated, x.narrow(2, 2 * half, rest)}, 2);
}

// Splits heads of other dtypes and devices.
variable_list split_composite(const at::Tensor &qkv, const Heads &h) {
  const auto heads = [&](int64_t from, int64_t n) { return qkv.narrow(1, from * h.hd, n * h.hd).reshape({-1, n, h.hd}); };
  const auto prepared = [&](const at::Tensor &x, const at::Tensor &w) {
    return rotated_composite(w.defined() ? rms_norm_composite(x.reshape({-1, w.size(0)}), w, h.offset, h.eps).view(x.sizes()) : x, h);
  };
  return {prepared(heads(0, h.heads), h.q_norm), prepared(heads(h.heads, h.kv_heads), h.k_norm), heads(h.heads + h.kv_heads, h.kv_heads)};
}

}  // namespace

mgt_split mgt_split_heads(mgt_device *d, void *qkv, mgt_heads how) {
  mgt_split r{};
  r.error = run(d, [&] {
    const auto &X = ref(qkv);
    const Heads h = heads_of(X, how);
    variable_list out;
    if (!ours(X)) {
      out = split_composite(X, h);
    } else {
      auto xc = X.contiguous();
      SplitHeads::Weight q_norm, k_norm;
      if (h.normalised()) q_norm = h.q_norm, k_norm = h.k_norm;
      out = recorded(X, h.q_norm, h.k_norm) ? SplitHeads::apply(xc, q_norm, k_norm, h) : split(xc, h, nullptr);
    }
    own(r.q, out[0]);
    own(r.k, out[1]);
    own(r.v, out[2]);
  });
  return r;
}

mgt_tensor mgt_cache_heads(mgt_device *d, void *qkv, mgt_heads how, void *k_cache, void *v_cache, void *table, void *sequence) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    auto &K = ref(k_cache), &V = ref(v_cache);
    const auto &X = ref(qkv), &T = ref(table), &S = ref(sequence);
    const Heads h = heads_of(X, how);
    for (const auto *cache : {&K, &V}) check_cache(*cache, T, h.kv_heads, h.hd, X, true);
    TORCH_CHECK(K.sizes() == V.sizes() && K.scalar_type() == V.scalar_type(), "the caches of keys and values must be alike");
    auto sequences = int32s(S, h.rows, "sequence", X);
    if (!ours(X)) {
      auto out = split_composite(X, h);
      auto which = T.index({S, h.pos.floor_divide(K.size(2))}), place = h.pos.remainder(K.size(2));
      K.transpose(1, 2).index_put_({which, place}, out[1]);
      V.transpose(1, 2).index_put_({which, place}, out[2]);
      return out[0];
    }
    auto xc = X.contiguous(), q = at::empty({h.rows, h.heads, h.hd}, X.options());
    if (X.is_cuda())
      check_status(the_cuda_part->cache_heads(xc.const_data_ptr(), h.how(), dtype_of(X), q.mutable_data_ptr(), K.mutable_data_ptr(),
                                              V.mutable_data_ptr(), pages_of(K, T), sequences, h.rows, stream_of(X)));
    else
      check_status(mgrpo_cache_heads_cpu(xc.const_data_ptr<float>(), h.how(), q.mutable_data_ptr<float>(), K.mutable_data_ptr(),
                                         V.mutable_data_ptr(), dtype_of(K), pages_of(K, T), sequences, h.rows),
                   ": is every position in the cosine table, and every sequence and position inside the cache?");
    return q;
  });
}
