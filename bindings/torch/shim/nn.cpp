// The layers around attention: linear, embedding, RMS norm, gated activations.
// Float32, on a GPU also bfloat16, uses our kernels, except for matrix products in training (product.h) and on a GPU. Other tensors use
// LibTorch's operators.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cap.h"
#include "cuda_part.h"
#include "gates.h"
#include "guard.h"
#include "kernel.h"
#include "leaf.h"
#include "mgrpo/glu.h"
#include "mgrpo/linear.h"
#include "mgrpo/rms_norm.h"
#include "norm.h"
#include "product.h"
#include "quant.h"
#include "recompute.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t rows_of(const at::Tensor &x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

at::Tensor like_with_last(const at::Tensor &x, int64_t last) {
  auto sizes = x.sizes().vec();
  sizes.back() = last;
  return at::empty(sizes, x.options());
}

// Our kernel reads w in float32 or bfloat16. Other tensors must be float32.
bool our_linear(const at::Tensor &x, const at::Tensor &w, const at::Tensor &b) {
  return cpu_fp32(x) && (cpu_fp32(w) || (w.is_cpu() && w.scalar_type() == at::kBFloat16)) && (!b.defined() || cpu_fp32(b));
}

at::Tensor linear(const at::Tensor &x, const at::Tensor &w, const at::Tensor &b) {
  auto xc = x.contiguous(), wc = w.contiguous(), bc = b.defined() ? b.contiguous() : b;
  auto y = like_with_last(x, w.size(0));
  const float *from = xc.const_data_ptr<float>(), *bias = bc.defined() ? bc.const_data_ptr<float>() : nullptr;
  float *to = y.mutable_data_ptr<float>();
  int64_t rows = rows_of(x), k = x.size(-1), n = w.size(0);
  if (w.scalar_type() == at::kFloat)
    check_status(mgrpo_linear_cpu(from, wc.const_data_ptr<float>(), bias, to, rows, k, n));
  else
    check_status(mgrpo_linear_bf16_cpu(from, static_cast<const uint16_t *>(wc.const_data_ptr()), bias, to, rows, k, n,
                                       rounding() != Rounding::none));
  return y;
}

// Returns x w^T + b as training computes it.
at::Tensor training_linear(const at::Tensor &x, const at::Tensor &w, const std::optional<at::Tensor> &b) {
  if (rounding() != Rounding::ours || !cpu_fp32(x, w)) return at::linear(x, w, b);
  auto y = like_with_last(x, w.size(0)), rows = y.view({-1, w.size(0)});  // y is not a view: adapters add to it in place
  product_out(rows, x.reshape({-1, w.size(1)}), w.t());
  if (b.has_value()) y.add_(*b);
  return y;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &w, const std::optional<at::Tensor> &b) {
    ctx->save_for_backward({w.requires_grad() && !can_recompute(x) ? x : at::Tensor(), w});
    ctx->saved_data["biased"] = b.has_value();
    return training_linear(x, w, b);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &w = saved[1];
    auto dy = grads[0].reshape({-1, w.size(0)});
    at::Tensor dx, dw, db;
    if (ctx->needs_input_grad(0)) {
      auto sizes = grads[0].sizes().vec();
      sizes.back() = w.size(1);
      dx = product(dy, w).view(sizes);
    }
    if (ctx->needs_input_grad(1)) {
      auto rows = (saved[0].defined() ? saved[0] : recomputed_input(0)).reshape({-1, w.size(1)});
      if (auto total = gradient_in_place(w); total.defined())
        add_product(total, dy.t(), rows);
      else
        dw = product(dy.t(), rows);
    }
    if (ctx->saved_data["biased"].toBool() && ctx->needs_input_grad(2)) db = dy.sum(0);
    return {dx, dw, db};
  }
};

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &w, const at::Tensor &ids) {
    ctx->save_for_backward({w, ids});
    return at::embedding(w, ids);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &w = saved[0], &ids = saved[1];
    // On a GPU index_add_ does not add in a fixed order, but the dense form does.
    auto total = w.is_cpu() ? gradient_in_place(w) : at::Tensor();
    if (!total.defined()) return {at::embedding_dense_backward(grads[0], ids, w.size(0), -1, false), {}};
    total.index_add_(0, ids, grads[0]);
    return {at::Tensor(), {}};
  }
};

at::Tensor rms_norm(const at::Tensor &x, const at::Tensor &w, double offset, double eps, at::Tensor *inv_rms) {
  auto y = at::empty_like(x);
  if (inv_rms) *inv_rms = at::empty({rows_of(x)}, x.options().dtype(at::kFloat));
  float *inv = inv_rms ? inv_rms->mutable_data_ptr<float>() : nullptr;
  int64_t rows = rows_of(x), d = w.size(0);
  if (x.is_cuda())
    check_status(the_cuda_part->rms_norm(x.const_data_ptr(), w.const_data_ptr(), dtype_of(x), float(offset), eps, y.mutable_data_ptr(), inv,
                                         rows, d, stream_of(x)));
  else
    check_status(mgrpo_rms_norm_cpu(x.const_data_ptr<float>(), w.const_data_ptr<float>(), float(offset), eps, y.mutable_data_ptr<float>(),
                                    inv, rows, d));
  return y;
}

// Returns the gradient of x through norm(x), plus dx_more if that is defined, and the gradient of w if it is needed.
variable_list rms_norm_bwd(const at::Tensor &dy, const at::Tensor &x, const at::Tensor &w, double offset, const at::Tensor &inv_rms,
                           const at::Tensor &dx_more, bool for_w) {
  auto dyc = dy.contiguous(), more = dx_more.defined() ? dx_more.contiguous() : dx_more, dx = at::empty_like(x);
  at::Tensor dw;
  if (for_w) dw = at::zeros(w.sizes(), w.options().dtype(at::kFloat));
  float *to_dw = floats_or_null(dw);
  const float *inv = inv_rms.const_data_ptr<float>();
  const void *from_more = more.defined() ? more.const_data_ptr() : nullptr;
  int64_t rows = rows_of(x), d = w.size(0);
  if (x.is_cuda())
    check_status(the_cuda_part->rms_norm_bwd(dyc.const_data_ptr(), x.const_data_ptr(), w.const_data_ptr(), inv, from_more, dtype_of(x),
                                             float(offset), dx.mutable_data_ptr(), to_dw, rows, d, stream_of(x)));
  else
    check_status(mgrpo_rms_norm_bwd_cpu(dyc.const_data_ptr<float>(), x.const_data_ptr<float>(), w.const_data_ptr<float>(), float(offset),
                                        inv, static_cast<const float *>(from_more), dx.mutable_data_ptr<float>(), to_dw, rows, d));
  return {dx, for_w ? dw.to(w.scalar_type()) : dw};
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &w, double offset, double eps) {
    at::Tensor inv_rms;
    auto y = rms_norm(x, w, offset, eps, &inv_rms);
    ctx->save_for_backward({x, w, inv_rms});
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["eps"] = eps;
    return y;
  }
  static at::Tensor again(AutogradContext &ctx) {
    auto saved = ctx.get_saved_variables();
    return rms_norm(saved[0], saved[1], ctx.saved_data["offset"].toDouble(), ctx.saved_data["eps"].toDouble(), nullptr);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto g = rms_norm_bwd(grads[0], saved[0], saved[1], ctx->saved_data["offset"].toDouble(), saved[2], {}, ctx->needs_input_grad(1));
    return {g[0], g[1], {}, {}};
  }
};

// Returns the sum and its norm.
variable_list add_rms_norm(const at::Tensor &x, const at::Tensor &residual, const at::Tensor &w, double offset, double eps,
                           at::Tensor *inv_rms) {
  auto sum = at::empty_like(x), y = at::empty_like(x);
  if (inv_rms) *inv_rms = at::empty({rows_of(x)}, x.options().dtype(at::kFloat));
  float *inv = inv_rms ? inv_rms->mutable_data_ptr<float>() : nullptr;
  int64_t rows = rows_of(x), d = w.size(0);
  if (x.is_cuda())
    check_status(the_cuda_part->add_rms_norm(x.const_data_ptr(), residual.const_data_ptr(), w.const_data_ptr(), dtype_of(x), float(offset),
                                             eps, sum.mutable_data_ptr(), y.mutable_data_ptr(), inv, rows, d, stream_of(x)));
  else
    check_status(mgrpo_add_rms_norm_cpu(x.const_data_ptr<float>(), residual.const_data_ptr<float>(), w.const_data_ptr<float>(),
                                        float(offset), eps, sum.mutable_data_ptr<float>(), y.mutable_data_ptr<float>(), inv, rows, d));
  return {sum, y};
}

struct AddRmsNorm : torch::autograd::Function<AddRmsNorm> {
  static variable_list forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &residual, const at::Tensor &w, double offset,
                               double eps) {
    at::Tensor inv_rms;
    auto out = add_rms_norm(x, residual, w, offset, eps, &inv_rms);
    ctx->save_for_backward({out[0], w, inv_rms});
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);  // only the norm of a model's last sum is used
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &dsum = grads[0], &dy = grads[1];
    if (!dy.defined()) return {dsum, dsum, {}, {}, {}};
    auto g = rms_norm_bwd(dy, saved[0], saved[1], ctx->saved_data["offset"].toDouble(), saved[2], dsum, ctx->needs_input_grad(2));
    return {g[0], g[0], g[1], {}, {}};
  }
};

struct Glu : torch::autograd::Function<Glu> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &gate_up, int64_t gates) {
    ctx->save_for_backward({gate_up});
    ctx->saved_data["gates"] = gates;
    return glu(gates, gate_up);
  }
  static at::Tensor again(AutogradContext &ctx) { return glu(ctx.saved_data["gates"].toInt(), ctx.get_saved_variables()[0]); }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    return {glu_bwd(ctx->saved_data["gates"].toInt(), grads[0].contiguous(), ctx->get_saved_variables()[0]), {}};
  }
};

// Returns f(function, context) for the function that computes result number nr of a node again. Returns an undefined tensor if there is no
// such function.
template <class F>
auto with_recompute(torch::autograd::Node *node, uint32_t nr, F &&f) {
  using torch::autograd::CppNode;
  if (auto *n = dynamic_cast<CppNode<Glu> *>(node)) return f(&Glu::again, n->ctx_);
  if (auto *n = dynamic_cast<CppNode<RmsNorm> *>(node)) return f(&RmsNorm::again, n->ctx_);
  if (auto *n = dynamic_cast<CppNode<AddRmsNorm> *>(node); n && nr == 1) return f(&RmsNorm::again, n->ctx_);
  return decltype(f(&RmsNorm::again, std::declval<AutogradContext &>())){};
}

}  // namespace

bool can_recompute(const at::Tensor &x) {
  return with_recompute(x.grad_fn().get(), x.output_nr(), [](auto, AutogradContext &) { return true; });
}

at::Tensor recomputed_input(uint32_t i) {
  const auto &edge = torch::autograd::get_current_node()->next_edge(i);
  return with_recompute(edge.function.get(), edge.input_nr, [](auto again, AutogradContext &ctx) { return again(ctx); });
}

// Computes other dtypes and devices. An offset is added in float32, because bfloat16 numbers near 1 have fewer digits than the weights.
at::Tensor rms_norm_composite(const at::Tensor &x, const at::Tensor &w, double offset, double eps) {
  if (offset == 0) return at::rms_norm(x, w.sizes(), w, eps);
  auto wide = wide_of(x);
  return at::rms_norm(x.to(wide), w.sizes(), w.to(wide) + offset, eps).to(x.scalar_type());
}

at::Tensor glu(int64_t gates, const at::Tensor &gate_up) {
  int64_t f = gate_up.size(-1) / 2, rows = rows_of(gate_up);
  auto y = like_with_last(gate_up, f);
  if (gate_up.is_cuda())
    check_status(the_cuda_part->glu(gates, gate_up.const_data_ptr(), dtype_of(gate_up), y.mutable_data_ptr(), rows, f, stream_of(gate_up)));
  else
    check_status(mgrpo_glu_cpu(gates, gate_up.const_data_ptr<float>(), y.mutable_data_ptr<float>(), rows, f));
  return y;
}

at::Tensor glu_bwd(int64_t gates, const at::Tensor &dy, const at::Tensor &gate_up) {
  auto d_gate_up = at::empty_like(gate_up);
  int64_t f = gate_up.size(-1) / 2, rows = rows_of(gate_up);
  if (gate_up.is_cuda())
    check_status(the_cuda_part->glu_bwd(gates, dy.const_data_ptr(), gate_up.const_data_ptr(), dtype_of(gate_up),
                                        d_gate_up.mutable_data_ptr(), rows, f, stream_of(gate_up)));
  else
    check_status(mgrpo_glu_bwd_cpu(gates, dy.const_data_ptr<float>(), gate_up.const_data_ptr<float>(), d_gate_up.mutable_data_ptr<float>(),
                                   rows, f));
  return d_gate_up;
}

at::Tensor glu_composite(int64_t gates, const at::Tensor &gate, const at::Tensor &up) {
  if (gates == MGRPO_SWIGLU) return at::silu(gate) * up;
  if (gates == MGRPO_GEGLU) return at::gelu(gate, "tanh") * up;
  if (gates == MGRPO_SIGMOID_GLU) return at::sigmoid(gate) * up;
  TORCH_CHECK(gates == MGRPO_CLAMPED_GLU, "unknown gates ", gates);
  auto g = gate.clamp_max(7);
  return g * (g * 1.702).sigmoid() * (up.clamp(-7, 7) + 1);
}

mgt_tensor mgt_linear(mgt_device *d, void *x, void *w, void *b_or_null) {
  return make(d, [&] {
    const at::Tensor &X = ref(x), &W = ref(w), B = or_none(b_or_null);
    TORCH_CHECK(X.dim() >= 1 && W.dim() == 2 && X.size(-1) == W.size(1), "x [..., K] and w [N, K] do not agree on K");
    TORCH_CHECK(!B.defined() || (B.dim() == 1 && B.size(0) == W.size(0)), "w [N, K] and b [N] do not agree on N");
    if (!at::GradMode::is_enabled() && our_linear(X, W, B) && !(rounds_factors() && cpu_fp32(W))) return linear(X, W, B);
    const auto bias = maybe_ref(b_or_null);
    return recorded(X, W, B) ? Linear::apply(X, W, bias) : training_linear(X, W, bias);
  });
}

mgt_tensor mgt_logits(mgt_device *d, void *x, void *w, int32_t type, double cap) {
  const auto &X = ref(x), &W = ref(w);
  std::optional<at::NoGradGuard> alone;  // capped logits have no gradient
  if (cap > 0) alone.emplace();
  if (logits_type(X) == X.scalar_type() || recorded(X, W)) {
    auto r = type != MGT_NOT_QUANTISED ? mgt_linear_quant(d, x, &w, &type, 1, nullptr) : mgt_linear(d, x, w, nullptr);
    if (!r.error && cap > 0) cap_logits(ref(r.handle), cap);
    return r;
  }
  return make(d, [&] {
    check_head(X, W, type);
    auto logits = at::empty({X.size(0), W.size(0)}, X.options().dtype(logits_type(X)));
    head_product(logits, X, W, type);
    cap_logits(logits, cap);
    return logits;
  });
}

mgt_tensor mgt_embedding(mgt_device *d, void *w, void *ids) {
  return make(d, [&] {
    TORCH_CHECK(ref(w).dim() == 2 && ref(ids).dim() == 1, "w must be [V, D] and ids [T]");
    return recorded(ref(w)) ? Embedding::apply(ref(w), ref(ids)) : at::embedding(ref(w), ref(ids));
  });
}

mgt_tensor mgt_rms_norm(mgt_device *d, void *x, void *w, double offset, double eps) {
  return make(d, [&] {
    const auto &X = ref(x), &W = ref(w);
    TORCH_CHECK(X.dim() >= 1 && W.dim() == 1 && X.size(-1) == W.size(0), "x [..., D] and w [D] do not agree on D");
    if (!ours(X, W)) return rms_norm_composite(X, W, offset, eps);
    auto xc = X.contiguous(), wc = W.contiguous();
    return recorded(X, W) ? RmsNorm::apply(xc, wc, offset, eps) : rms_norm(xc, wc, offset, eps, nullptr);
  });
}

mgt_pair mgt_add_rms_norm(mgt_device *d, void *x, void *residual, void *w, double offset, double eps) {
  mgt_pair r{};
  r.error = run(d, [&] {
    const auto &X = ref(x), &R = ref(residual), &W = ref(w);
    TORCH_CHECK(X.dim() >= 1 && W.dim() == 1 && X.size(-1) == W.size(0), "x [..., D] and w [D] do not agree on D");
    TORCH_CHECK(X.sizes() == R.sizes() && X.scalar_type() == R.scalar_type(), "x and residual must have one shape and dtype");
    variable_list out;
    if (ours(X, R, W)) {
      auto xc = X.contiguous(), rc = R.contiguous(), wc = W.contiguous();
      out = recorded(X, R, W) ? AddRmsNorm::apply(xc, rc, wc, offset, eps) : add_rms_norm(xc, rc, wc, offset, eps, nullptr);
    } else {
      auto sum = X + R;
      out = {sum, rms_norm_composite(sum, W, offset, eps)};
    }
    own(r.first, out[0]);
    own(r.second, out[1]);
  });
  return r;
}

mgt_tensor mgt_glu(mgt_device *d, int gates, void *gate_up) {
  return make(d, [&] {
    const auto &X = ref(gate_up);
    TORCH_CHECK(X.dim() >= 1 && X.size(-1) % 2 == 0, "the last dimension must hold gate and up, so be even");
    if (!ours(X)) {
      auto halves = X.chunk(2, -1);
      return glu_composite(gates, halves[0], halves[1]);
    }
    auto xc = X.contiguous();
    return recorded(X) ? Glu::apply(xc, gates) : glu(gates, xc);
  });
}
