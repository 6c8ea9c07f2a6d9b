// Log-probabilities and entropies of a language model's head, from hidden states, chunk by chunk.
//
// The [rows, vocabulary] logits are the largest tensor of training: 151,936 columns at 4 bytes
// make 0.6 MB a token. Here they exist for one chunk of rows at a time, in the forward pass and,
// computed again, in the backward pass. There the kernel turns them into their gradient in place.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cap.h"
#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "leaf.h"
#include "mgrpo/linear.h"
#include "mgrpo/logprob.h"
#include "product.h"
#include "quant.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool kernel_dtype(const at::Tensor &t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kDouble;
}

// bad_row counts from the chunk's first row.
void check_row(int32_t status, int64_t first, int64_t bad_row) {
  if (status == MGRPO_OK) return;
  throw kernel_error(
      status, c10::str("row ", first + std::max<int64_t>(bad_row, 0), ": ", mgrpo_status_string(status),
                       status == MGRPO_INVALID_ARGUMENT ? "; is its target inside the vocabulary?" : "; the logits are NaN or infinite"));
}

void log_prob(const at::Tensor &logits, int64_t first, const at::Tensor &targets, double tau, at::Tensor logp, at::Tensor entropy) {
  if (kernel_dtype(logits)) {
    const auto *z = logits.const_data_ptr();
    const auto *y = targets.const_data_ptr<int32_t>();
    auto *lp = logp.mutable_data_ptr(), *h = entropy.mutable_data_ptr();
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    int64_t bad_row = -1;
    const int32_t status =
        logits.is_cuda()
            ? the_cuda_part->token_logprob(z, dtype_of(logits), rows, vocab, vocab, y, nullptr, tau, lp, h, &bad_row, stream_of(logits))
            : mgrpo_token_logprob_cpu(z, dtype_of(logits), rows, vocab, vocab, y, nullptr, tau, lp, h, &bad_row);
    return check_row(status, first, bad_row);
  }
  auto lp = at::log_softmax(logits.to(logp.scalar_type()) / tau, -1);
  logp.copy_(lp.gather(1, targets.to(at::kLong).unsqueeze(1)).squeeze(1));
  entropy.copy_(-(lp.exp() * lp).nan_to_num(0).sum(-1));
}

// Overwrites the logits by their gradient.
void log_prob_backward(at::Tensor logits, int64_t first, const at::Tensor &targets, double tau, const at::Tensor &dlogp,
                       const at::Tensor &dentropy) {
  if (kernel_dtype(logits)) {
    auto *z = logits.mutable_data_ptr();
    const auto *y = targets.const_data_ptr<int32_t>();
    const auto *dlp = dlogp.const_data_ptr(), *dh = dentropy.const_data_ptr();
    const int64_t rows = logits.size(0), vocab = logits.size(1);
    int64_t bad_row = -1;
    const int32_t status = logits.is_cuda()
                               ? the_cuda_part->token_logprob_bwd(z, dtype_of(logits), rows, vocab, vocab, y, nullptr, tau, dlp, dh,
                                                                  &bad_row, stream_of(logits))
                               : mgrpo_token_logprob_bwd_cpu(z, dtype_of(logits), rows, vocab, vocab, y, nullptr, tau, dlp, dh, &bad_row);
    return check_row(status, first, bad_row);
  }
  auto lp = at::log_softmax(logits.to(dlogp.scalar_type()) / tau, -1), p = lp.exp();
  auto plp = (p * lp).nan_to_num_(0);
  auto g = dlogp.unsqueeze(1), e = dentropy.unsqueeze(1);
  auto grad = p.mul(e * plp.sum(-1, true) - g).sub_(plp.mul_(e));
  grad.scatter_add_(1, targets.to(at::kLong).unsqueeze(1), g);
  logits.copy_(grad.div_(tau));
}

// One buffer of logits, filled for one chunk of rows after the other.
struct Chunks {
  const at::Tensor &h, &w;
  int32_t type;  // of w's blocks, or MGT_NOT_QUANTISED
  int64_t chunk;
  double cap;      // of the logits; 0: none
  bool invariant;  // uses our linear, whose rows do not depend on the chunk; LibTorch's is faster
  at::Tensor buffer = at::empty({std::min(chunk, h.size(0)), w.size(0)}, h.options().dtype(logits_type(h)));

  template <class F>
  void each(F &&f) {
    for (int64_t from = 0; from < h.size(0); from += chunk) {
      int64_t n = std::min(chunk, h.size(0) - from);
      auto rows = h.narrow(0, from, n), logits = buffer.narrow(0, 0, n);
      if (type == MGT_NOT_QUANTISED && invariant && cpu_fp32(h))
        check_status(mgrpo_linear_cpu(rows.const_data_ptr<float>(), w.const_data_ptr<float>(), nullptr, logits.mutable_data_ptr<float>(), n,
                                      w.size(1), w.size(0)));
      else
        head_product(logits, rows, w, type);
      cap_logits(logits, cap);
      f(from, n, rows, logits);
    }
  }
};

variable_list head(const at::Tensor &h, const at::Tensor &w, int32_t type, const at::Tensor &targets, double tau, int64_t chunk, double cap,
                   bool invariant) {
  auto options = h.options().dtype(wide_of(h));
  auto logp = at::empty({h.size(0)}, options), entropy = at::empty({h.size(0)}, options);
  Chunks{h, w, type, chunk, cap, invariant}.each([&](int64_t from, int64_t n, const at::Tensor &, const at::Tensor &logits) {
    log_prob(logits, from, targets.narrow(0, from, n), tau, logp.narrow(0, from, n), entropy.narrow(0, from, n));
  });
  return {logp, entropy};
}

struct Head : torch::autograd::Function<Head> {
  static variable_list forward(AutogradContext *ctx, const at::Tensor &h, const at::Tensor &w, int64_t type, const at::Tensor &targets,
                               double tau, int64_t chunk, double cap) {
    ctx->save_for_backward({h, w, targets});
    ctx->saved_data["type"] = type;
    ctx->saved_data["tau"] = tau;
    ctx->saved_data["chunk"] = chunk;
    ctx->saved_data["cap"] = cap;
    return head(h, w, int32_t(type), targets, tau, chunk, cap, false);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &h = saved[0], &w = saved[1], &targets = saved[2];
    double tau = ctx->saved_data["tau"].toDouble(), cap = ctx->saved_data["cap"].toDouble();
    auto type = int32_t(ctx->saved_data["type"].toInt());
    bool for_h = ctx->needs_input_grad(0), for_w = ctx->needs_input_grad(1);
    auto dlogp = grads[0].contiguous(), dentropy = grads[1].contiguous();
    at::Tensor dh, dw;
    if (for_h) dh = at::empty_like(h);
    // Half-precision weights: the sum over chunks is in float32 and rounded once.
    bool in_place = for_w && dlogp.scalar_type() == w.scalar_type() && gradient_in_place(w).defined();
    if (for_w) dw = in_place ? w.grad() : at::zeros(w.sizes(), w.options().dtype(dlogp.scalar_type()));
    Chunks{h, w, type, ctx->saved_data["chunk"].toInt(), cap, false}.each(
        [&](int64_t from, int64_t n, const at::Tensor &rows, const at::Tensor &logits) {
          const auto slope = slope_of_cap(logits, cap);
          log_prob_backward(logits, from, targets.narrow(0, from, n), tau, dlogp.narrow(0, from, n), dentropy.narrow(0, from, n));
          if (slope.defined()) logits.mul_(slope);
          auto dlogits = logits.to(h.scalar_type());
          if (for_h) {
            auto out = dh.narrow(0, from, n);
            head_product_bwd(out, dlogits, w, type);
          }
          if (for_w) add_product(dw, dlogits.t(), rows);
        });
    return {dh, for_w && !in_place ? dw.to(w.scalar_type()) : at::Tensor(), {}, {}, {}, {}, {}};
  }
};

}  // namespace

mgt_pair mgt_head_log_prob(mgt_device *d, void *h, void *w, int32_t type, void *targets, double tau, int64_t chunk, double cap) {
  mgt_pair r{};
  r.error = run(d, [&] {
    const auto &H = ref(h), &W = ref(w), &Y = ref(targets);
    check_head(H, W, type);
    TORCH_CHECK(tau >= MGRPO_LEAST_TEMPERATURE && chunk >= 1, "tau must be at least ", MGRPO_LEAST_TEMPERATURE,
                " and chunk at least 1; they are ", tau, " and ", chunk);
    int32s(Y, H.size(0), "targets");
    auto hc = factor(H.contiguous()), wc = factor(W.contiguous());
    auto out = recorded(H, W) ? Head::apply(hc, wc, type, Y, tau, chunk, cap) : head(hc, wc, type, Y, tau, chunk, cap, !rounds_factors());
    own(r.first, out[0]);
    own(r.second, out[1]);
  });
  return r;
}
