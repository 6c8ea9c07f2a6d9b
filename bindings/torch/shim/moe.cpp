// A mixture of experts: the router's choice, and the experts' SwiGLU MLPs on their tokens.
// Generation on a CPU uses only our kernels, and so does generation on a GPU with few rows. Otherwise each expert uses
// training's products (product.h).
#include "mgrpo/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "cuda_part.h"
#include "gates.h"
#include "guard.h"
#include "kernel.h"
#include "leaf.h"
#include "product.h"
#include "recompute.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaybeTensor = std::optional<at::Tensor>;

// --- The router's choice.

at::Tensor route(const at::Tensor &logits, const at::Tensor &given, const at::Tensor &chosen, const at::Tensor &differs, bool normalise) {
  const int64_t tokens = logits.size(0), experts = logits.size(1), k = chosen.size(1);
  auto weight = at::empty({tokens, k}, logits.options());
  const float *z = logits.const_data_ptr<float>();
  const int32_t *fixed = int32s_or_null(given);
  int32_t *to = chosen.mutable_data_ptr<int32_t>(), *others = differs.defined() ? differs.mutable_data_ptr<int32_t>() : nullptr;
  float *w = weight.mutable_data_ptr<float>();
  if (logits.is_cuda())
    check_status(the_cuda_part->moe_route(z, fixed, to, w, others, tokens, experts, k, normalise, stream_of(logits)));
  else
    check_status(mgrpo_moe_route_cpu(z, fixed, to, w, others, tokens, experts, k, normalise),
                 ": does a token name an expert that there is not, or one twice?");
  return weight;
}

// Records the weights of route for the backward pass.
struct Route : torch::autograd::Function<Route> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &logits, const at::Tensor &chosen, const at::Tensor &weight,
                            bool normalise, double balance) {
    ctx->save_for_backward({logits, chosen});
    ctx->saved_data["normalise"] = normalise;
    ctx->saved_data["balance"] = balance;
    return weight;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &logits = saved[0], &chosen = saved[1];
    const int64_t tokens = logits.size(0), experts = logits.size(1), k = chosen.size(1);
    const bool normalise = ctx->saved_data["normalise"].toBool();
    const double balance = ctx->saved_data["balance"].toDouble();
    auto dweight = grads[0].contiguous(), dlogits = at::empty_like(logits);
    at::Tensor dprob;  // of balance E sum_e load_e mean_t prob_te, with constant loads
    if (balance != 0)
      dprob = at::bincount(chosen.reshape(-1), {}, experts).to(at::kFloat) *
              (balance * double(experts) / (double(tokens) * double(tokens) * double(k)));
    const float *dw = dweight.const_data_ptr<float>(), *z = logits.const_data_ptr<float>();
    const float *dp = dprob.defined() ? dprob.const_data_ptr<float>() : nullptr;
    if (logits.is_cuda())
      check_status(the_cuda_part->moe_route_bwd(dw, z, chosen.const_data_ptr<int32_t>(), dp, dlogits.mutable_data_ptr<float>(), tokens,
                                                experts, k, normalise, stream_of(logits)));
    else
      check_status(mgrpo_moe_route_bwd_cpu(dw, z, chosen.const_data_ptr<int32_t>(), dp, dlogits.mutable_data_ptr<float>(), tokens, experts,
                                           k, normalise));
    return {dlogits, {}, {}, {}, {}};
  }
};

// --- Routing weights that are sigmoids.

constexpr float kLeastSum = 1e-6f;  // added to the sum by which weights are divided

// On a CPU without gradients each value is computed alone. LibTorch's vectors round differently from the rest after the last vector, so
// a row's bits would depend on the number of rows.
at::Tensor sigmoid_weights(const at::Tensor &logits, const at::Tensor &chosen, bool normalise, float scale) {
  const int64_t tokens = logits.size(0), experts = logits.size(1), k = chosen.size(1);
  auto weight = at::empty({tokens, k}, logits.options());
  const float *z = logits.const_data_ptr<float>();
  const int32_t *e = chosen.const_data_ptr<int32_t>();
  float *w = weight.mutable_data_ptr<float>();
  for (int64_t t = 0; t < tokens; t++, z += experts, e += k, w += k) {
    float sum = 0;
    for (int64_t j = 0; j < k; j++) {
      TORCH_CHECK(e[j] >= 0 && e[j] < experts, "chosen has expert ", e[j], " of ", experts);
      sum += w[j] = 1 / (1 + std::exp(-z[e[j]]));
    }
    for (int64_t j = 0; j < k; j++) w[j] = (normalise ? w[j] / (sum + kLeastSum) : w[j]) * scale;
  }
  return weight;
}

at::Tensor sigmoid_weights_composite(const at::Tensor &logits, const at::Tensor &chosen, bool normalise, double scale) {
  auto weight = at::sigmoid(logits.gather(1, chosen.to(at::kLong)));
  if (normalise) weight = weight / (weight.sum(1, true) + kLeastSum);
  return weight * scale;
}

// --- The order of rows by expert.

struct Order {
  at::Tensor first, source, place;  // as in mgrpo/moe.h
  int64_t tokens, k, experts;
  at::Tensor chosen;  // int32 [tokens, k]: the experts of each token, the source of the order

  at::Tensor expert_of_rows() const { return chosen.reshape(-1).index_select(0, source); }
};

Order by_expert(const at::Tensor &chosen, int64_t experts) {
  const int64_t entries = chosen.numel();
  Order o{at::empty({experts + 1}, chosen.options()),
          at::empty({entries}, chosen.options()),
          at::empty({entries}, chosen.options()),
          chosen.size(0),
          chosen.size(1),
          experts,
          chosen};
  const int32_t *e = chosen.const_data_ptr<int32_t>();
  int32_t *first = o.first.mutable_data_ptr<int32_t>(), *source = o.source.mutable_data_ptr<int32_t>(),
          *place = o.place.mutable_data_ptr<int32_t>();
  if (chosen.is_cuda())
    check_status(the_cuda_part->moe_sort(e, first, source, place, entries, experts, stream_of(chosen)));
  else
    check_status(mgrpo_moe_sort_cpu(e, first, source, place, entries, experts), ": does a token name an expert that there is not?");
  return o;
}

at::Tensor gather(const at::Tensor &x, const Order &o) {
  const int64_t d = x.size(1);
  auto y = at::empty({o.tokens * o.k, d}, x.options());
  const int32_t *source = o.source.const_data_ptr<int32_t>();
  if (x.is_cuda())
    check_status(the_cuda_part->moe_gather(x.const_data_ptr(), source, dtype_of(x), y.mutable_data_ptr(), o.tokens, o.k, d, stream_of(x)));
  else
    check_status(mgrpo_moe_gather_cpu(x.const_data_ptr<float>(), source, y.mutable_data_ptr<float>(), o.tokens, o.k, d));
  return y;
}

at::Tensor combine(const at::Tensor &x, const Order &o, const at::Tensor &weight) {
  const int64_t d = x.size(1);
  auto y = at::empty({o.tokens, d}, x.options());
  const int32_t *place = o.place.const_data_ptr<int32_t>();
  const float *w = weight.defined() ? weight.const_data_ptr<float>() : nullptr;
  if (x.is_cuda())
    check_status(
        the_cuda_part->moe_combine(x.const_data_ptr(), place, w, dtype_of(x), y.mutable_data_ptr(), o.tokens, o.k, d, stream_of(x)));
  else
    check_status(mgrpo_moe_combine_cpu(x.const_data_ptr<float>(), place, w, y.mutable_data_ptr<float>(), o.tokens, o.k, d));
  return y;
}

at::Tensor weigh(at::Tensor &g, at::Tensor &a, const Order &o, const at::Tensor &weight) {
  auto dweight = at::empty_like(weight);
  const int32_t *source = o.source.const_data_ptr<int32_t>();
  const float *w = weight.const_data_ptr<float>();
  float *dw = dweight.mutable_data_ptr<float>();
  if (g.is_cuda())
    check_status(the_cuda_part->moe_weigh(g.mutable_data_ptr(), a.mutable_data_ptr(), source, w, dtype_of(g), dw, g.size(0), g.size(1),
                                          stream_of(g)));
  else
    check_status(mgrpo_moe_weigh_cpu(g.mutable_data_ptr<float>(), a.mutable_data_ptr<float>(), source, w, dw, g.size(0), g.size(1)));
  return dweight;
}

// --- Products with the experts' weights. w is [E out, in], a leaf of the model.

at::Tensor of_each(const at::Tensor &w, int64_t experts) { return w.view({experts, w.size(0) / experts, w.size(1)}); }

// Returns x w^T, computed by our kernels.
at::Tensor products(const at::Tensor &x, const at::Tensor &w, const Order &o) {
  const int64_t entries = x.size(0), in = x.size(1), out = w.size(0) / o.experts;
  auto y = at::empty({entries, out}, x.options());
  const int32_t *first = o.first.const_data_ptr<int32_t>();
  if (x.is_cuda())
    check_status(the_cuda_part->moe_linear(x.const_data_ptr(), w.const_data_ptr(), first, dtype_of(x), y.mutable_data_ptr(), entries,
                                           o.experts, in, out, stream_of(x)));
  else if (w.scalar_type() == at::kFloat)
    check_status(mgrpo_moe_linear_cpu(x.const_data_ptr<float>(), w.const_data_ptr<float>(), first, y.mutable_data_ptr<float>(), entries,
                                      o.experts, in, out));
  else
    check_status(mgrpo_moe_linear_bf16_cpu(x.const_data_ptr<float>(), static_cast<const uint16_t *>(w.const_data_ptr()), first,
                                           y.mutable_data_ptr<float>(), entries, o.experts, in, out, rounding() != Rounding::none));
  return y;
}

// Calls f(e, from, rows) for each expert with rows. On a GPU this waits for the counts.
template <class F>
void for_each_expert(const Order &o, const F &f) {
  const auto host = o.first.cpu();
  const int32_t *first = host.const_data_ptr<int32_t>();
  for (int64_t e = 0; e < o.experts; e++)
    if (first[e + 1] > first[e]) f(e, first[e], first[e + 1] - first[e]);
}

// Whether LibTorch has a kernel that multiplies the rows of all experts without waiting. Rows of the matrices must be multiples of 16
// bytes.
bool multiplies_together(const at::Device &device, at::ScalarType type, int64_t in, int64_t out) {
  if (!device.is_cuda() || type != at::kBFloat16 || in % 8 != 0 || out % 8 != 0) return false;
  const int major = the_cuda_part->capability(device.index()) / 10;
  return major == 9 || major == 10;
}

bool on_16_bytes(const at::Tensor &t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; }

// Returns x w^T, or x w if not transposed, with training's products.
at::Tensor products_of_each(const at::Tensor &x, const at::Tensor &w, const Order &o, bool transposed) {
  const auto each = of_each(w, o.experts);
  if (multiplies_together(x.device(), x.scalar_type(), each.size(1), each.size(2)) && x.size(0) > 0 && on_16_bytes(x) && on_16_bytes(w))
    return at::_grouped_mm(x, transposed ? each.transpose(1, 2) : each, o.first.narrow(0, 1, o.experts));
  auto y = at::empty({x.size(0), each.size(transposed ? 1 : 2)}, x.options());
  for_each_expert(o, [&](int64_t e, int64_t from, int64_t rows) {
    auto to = y.narrow(0, from, rows);
    product_out(to, x.narrow(0, from, rows), transposed ? each[e].t() : each[e]);
  });
  return y;
}

// Returns the gradient of w, which is dy^T x of each expert's rows. If w is a leaf with a gradient, it is added there.
at::Tensor weight_gradient(const at::Tensor &dy, const at::Tensor &x, const at::Tensor &w, const Order &o) {
  auto total = gradient_in_place(w);
  at::Tensor own = total.defined() ? at::Tensor() : at::zeros_like(w);
  auto each = of_each(total.defined() ? total : own, o.experts);
  for_each_expert(o, [&](int64_t e, int64_t from, int64_t rows) {
    auto to = each[e];
    add_product(to, dy.narrow(0, from, rows).t(), x.narrow(0, from, rows));
  });
  return own;
}

// The weights of experts, as leaves of the model: gate_up [E 2 F, H] and down [E H, F], and their biases [E 2 F] and [E H], which
// may be undefined.
struct Weights {
  at::Tensor gate_up, down;
  MaybeTensor gate_up_bias, down_bias;
  int64_t gates;  // of enum mgrpo_gates
};

at::Tensor biases_of_rows(const at::Tensor &bias, const Order &o) { return bias.view({o.experts, -1}).index_select(0, o.expert_of_rows()); }

at::Tensor biased(at::Tensor y, const MaybeTensor &bias, const Order &o) { return bias ? y.add_(biases_of_rows(*bias, o)) : y; }

// Returns the gradient of a bias, which is the sum of the rows of dy of each expert.
at::Tensor bias_gradient(const at::Tensor &dy, const at::Tensor &bias, const Order &o) {
  auto own = at::zeros_like(bias), each = own.view({o.experts, -1});
  for_each_expert(o, [&](int64_t e, int64_t from, int64_t rows) { each[e].copy_(dy.narrow(0, from, rows).sum(0)); });
  return own;
}

at::Tensor experts(const at::Tensor &x, const Order &o, const at::Tensor &weight, const Weights &w) {
  const bool by_row = x.is_cuda() ? o.tokens * o.k <= MGT_FEW_EXPERT_ROWS : !rounds_factors() || !cpu_fp32(w.gate_up);
  auto product = [&](const at::Tensor &x, const at::Tensor &w) { return by_row ? products(x, w, o) : products_of_each(x, w, o, true); };
  auto h = biased(product(gather(x, o), w.gate_up), w.gate_up_bias, o);
  return combine(biased(product(glu(w.gates, h), w.down), w.down_bias, o), o, weight);
}

struct Experts : torch::autograd::Function<Experts> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &chosen, const at::Tensor &weight,
                            const at::Tensor &gate_up, const at::Tensor &down, const MaybeTensor &gate_up_bias,
                            const MaybeTensor &down_bias, int64_t gates) {
    const Order o = by_expert(chosen, down.size(0) / x.size(1));
    auto h = biased(products_of_each(gather(x, o), gate_up, o, true), gate_up_bias, o);
    auto y = combine(biased(products_of_each(glu(gates, h), down, o, true), down_bias, o), o, weight);
    const at::Tensor none;
    ctx->save_for_backward({gate_up.requires_grad() && !can_recompute(x) ? x : none, weight, gate_up, down, h, o.first, o.source, o.place,
                            chosen, gate_up_bias.value_or(none), down_bias.value_or(none)});
    ctx->saved_data["gates"] = gates;
    return y;
  }
  // The gradient of a routing weight is dout (W a + b), the product of dout with its expert's output. dout W is computed for the gradient
  // of the activations a anyway, so expert outputs are not kept.
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &weight = saved[1], &gate_up = saved[2], &down = saved[3], &h = saved[4], &gate_up_bias = saved[9], &down_bias = saved[10];
    const Order o{saved[5], saved[6], saved[7], weight.size(0), weight.size(1), saved[5].size(0) - 1, saved[8]};
    const int64_t gates = ctx->saved_data["gates"].toInt();
    auto dout = gather(grads[0].contiguous(), o), g = products_of_each(dout, down, o, false), a = glu(gates, h);
    auto dweight = weigh(g, a, o, weight);
    at::Tensor dx, d_gate_up, d_down, d_gate_up_bias, d_down_bias;
    if (down_bias.defined()) dweight.view(-1).add_((dout.to(at::kFloat) * biases_of_rows(down_bias, o)).sum(1).index_select(0, o.place));
    if (down_bias.defined() && ctx->needs_input_grad(6))
      d_down_bias = bias_gradient(dout * weight.view({-1, 1}).index_select(0, o.source), down_bias, o);
    if (ctx->needs_input_grad(4)) d_down = weight_gradient(dout, a, down, o);
    auto dh = glu_bwd(gates, g, h);
    if (gate_up_bias.defined() && ctx->needs_input_grad(5)) d_gate_up_bias = bias_gradient(dh, gate_up_bias, o);
    if (ctx->needs_input_grad(3))
      d_gate_up = weight_gradient(dh, gather(saved[0].defined() ? saved[0] : recomputed_input(0), o), gate_up, o);
    if (ctx->needs_input_grad(0)) dx = combine(products_of_each(dh, gate_up, o, false), o, {});
    return {dx, {}, dweight, d_gate_up, d_down, d_gate_up_bias, d_down_bias, {}};
  }
};

// Computes other dtypes with LibTorch's operators.
at::Tensor gather_composite(const at::Tensor &x, const Order &o) { return x.index_select(0, o.source.to(at::kLong).div(o.k, "floor")); }

at::Tensor combine_composite(const at::Tensor &x, const Order &o, const at::Tensor &weight) {
  auto by_token = x.index_select(0, o.place).view({o.tokens, o.k, x.size(1)});
  return (weight.defined() ? by_token * weight.view({o.tokens, o.k, 1}).to(x.scalar_type()) : by_token).sum(1);
}

at::Tensor experts_composite(const at::Tensor &x, const at::Tensor &chosen, const at::Tensor &weight, const Weights &w) {
  const Order o = by_expert(chosen, w.down.size(0) / x.size(1));
  const auto gates = of_each(w.gate_up, o.experts), downs = of_each(w.down, o.experts);
  auto bias = [&](const MaybeTensor &all, int64_t e) { return all ? MaybeTensor(all->view({o.experts, -1})[e]) : std::nullopt; };
  auto xs = gather_composite(x, o);
  std::vector<at::Tensor> outputs;
  for_each_expert(o, [&](int64_t e, int64_t from, int64_t rows) {
    auto halves = at::linear(xs.narrow(0, from, rows), gates[e], bias(w.gate_up_bias, e)).chunk(2, 1);
    outputs.push_back(at::linear(glu_composite(w.gates, halves[0], halves[1]), downs[e], bias(w.down_bias, e)));
  });
  if (outputs.empty()) return at::empty_like(x);
  return combine_composite(at::cat(outputs), o, weight);
}

void int32_table(const at::Tensor &t, const at::Tensor &like, int64_t rows, const char *name) {
  TORCH_CHECK(t.device() == like.device() && t.scalar_type() == at::kInt && t.dim() == 2 && t.size(0) == rows && t.is_contiguous(), name,
              " must be int32 [", rows, ", k], contiguous and on ", like.device());
}

}  // namespace

mgt_tensor mgt_route(mgt_device *d, void *logits, void *given_or_null, void *chosen, void *differs_or_null, void *prob_or_null,
                     int normalise, double balance) {
  return make(d, [&] {
    const at::Tensor &Z = ref(logits), &C = ref(chosen), G = or_none(given_or_null), D = or_none(differs_or_null);
    TORCH_CHECK(Z.dim() == 2 && Z.scalar_type() == at::kFloat, "logits must be float32 [T, E]");
    int32_table(C, Z, Z.size(0), "chosen");
    if (G.defined()) {
      int32_table(G, Z, Z.size(0), "given");
      TORCH_CHECK(G.size(1) == C.size(1), "given and chosen must have one number of experts a token");
    }
    if (D.defined()) int32s(D, Z.size(0), "differs", Z);
    auto z = Z.contiguous();
    if (prob_or_null) ref(prob_or_null).copy_(at::softmax(z.detach(), 1).mean(0));
    auto weight = route(z.detach(), G, C, D, normalise != 0);
    return recorded(z) ? Route::apply(z, C, weight, normalise != 0, balance) : weight;
  });
}

mgt_tensor mgt_sigmoid_weights(mgt_device *d, void *logits, void *chosen, int normalise, double scale) {
  return make(d, [&] {
    const auto &Z = ref(logits), &C = ref(chosen);
    TORCH_CHECK(Z.dim() == 2 && Z.scalar_type() == at::kFloat, "logits must be float32 [T, E]");
    int32_table(C, Z, Z.size(0), "chosen");
    if (Z.is_cuda() || recorded(Z)) return sigmoid_weights_composite(Z, C, normalise != 0, scale);
    return sigmoid_weights(Z.contiguous(), C, normalise != 0, float(scale));
  });
}

mgt_tensor mgt_experts(mgt_device *d, void *x, void *chosen, void *weight, void *gate_up, void *down, void *gate_up_bias_or_null,
                       void *down_bias_or_null, int gates) {
  return make(d, [&] {
    const auto &X = ref(x), &C = ref(chosen), &W = ref(weight), &G = ref(gate_up), &D = ref(down);
    TORCH_CHECK(X.dim() == 2 && G.dim() == 2 && D.dim() == 2 && G.size(1) == X.size(1) && X.size(1) > 0 && D.size(1) > 0 && D.size(0) > 0 &&
                    D.size(0) % X.size(1) == 0 && G.size(0) == 2 * D.size(1) * (D.size(0) / X.size(1)) &&
                    G.scalar_type() == D.scalar_type(),
                "x [T, H], gate_up [E 2 F, H] and down [E H, F] do not agree");
    int32_table(C, X, X.size(0), "chosen");
    TORCH_CHECK(W.sizes() == C.sizes() && W.scalar_type() == at::kFloat && W.device() == X.device(),
                "weight must be float32 of the shape of chosen");
    auto bias = [&](void *t, const at::Tensor &of) -> MaybeTensor {
      if (!t) return std::nullopt;
      TORCH_CHECK(ref(t).dim() == 1 && ref(t).size(0) == of.size(0) && ref(t).device() == X.device(), "a bias of experts must have ",
                  of.size(0), " numbers");
      return ref(t).contiguous();
    };
    const Weights w{G, D, bias(gate_up_bias_or_null, G), bias(down_bias_or_null, D), gates};
    const bool record = recorded(X, W, G, D, w.gate_up_bias.value_or(at::Tensor()), w.down_bias.value_or(at::Tensor()));
    auto xc = X.contiguous(), wc = W.contiguous();
    if (!record && cpu_fp32(X) && D.is_cpu() && D.scalar_type() == at::kBFloat16)
      return experts(xc, by_expert(C, D.size(0) / X.size(1)), wc, w);
    if (!ours(X, G, D)) return experts_composite(xc, C, wc, w);
    return record ? Experts::apply(xc, C, wc, G, D, w.gate_up_bias, w.down_bias, w.gates)
                  : experts(xc, by_expert(C, D.size(0) / X.size(1)), wc, w);
  });
}

int mgt_experts_together(mgt_device *d, int dtype, int64_t hidden, int64_t ffn) {
  return multiplies_together(d->device, at::ScalarType(dtype), hidden, ffn);
}

char *mgt_by_expert_(mgt_device *d, void *chosen, void *first, void *source, void *place) {
  return run(d, [&] {
    const auto &C = ref(chosen);
    int32_table(C, C, C.size(0), "chosen");
    int32s(ref(source), C.numel(), "source", C);
    int32s(ref(place), C.numel(), "place", C);
    int32s(ref(first), ref(first).numel(), "first", C);
    const Order o = by_expert(C, ref(first).numel() - 1);
    ref(first).copy_(o.first);
    ref(source).copy_(o.source);
    ref(place).copy_(o.place);
  });
}

mgt_tensor mgt_expert_rows(mgt_device *d, void *x, void *source) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    const auto &X = ref(x), &S = ref(source);
    TORCH_CHECK(X.dim() == 2 && X.size(0) > 0 && S.numel() % X.size(0) == 0, "source must have as many entries for each row of x [T, H]");
    int32s(S, S.numel(), "source", X);
    const Order o{{}, S, {}, X.size(0), S.numel() / X.size(0), 0, {}};
    return ours(X) ? gather(X.contiguous(), o) : gather_composite(X, o);
  });
}

mgt_tensor mgt_expert_sums(mgt_device *d, void *rows, void *place, int64_t tokens, void *weight_or_null) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    const auto &R = ref(rows), &P = ref(place);
    TORCH_CHECK(R.dim() == 2 && tokens > 0 && P.numel() % tokens == 0 && R.size(0) == P.numel(),
                "place must have an entry for each row, and as many for each token");
    int32s(P, P.numel(), "place", R);
    at::Tensor weight;
    if (weight_or_null) weight = ref(weight_or_null).contiguous();
    TORCH_CHECK(!weight.defined() || (weight.numel() == P.numel() && weight.scalar_type() == at::kFloat && weight.device() == R.device()),
                "weight must be float32 [T, k]");
    const Order o{{}, {}, P, tokens, P.numel() / tokens, 0, {}};
    return ours(R) ? combine(R.contiguous(), o, weight) : combine_composite(R, o, weight);
  });
}
