// The policy loss of a language model's head, from hidden states, and its gradients.
//
// A token-level objective can differentiate a row of logits as soon as it exists. So the logits of a chunk of rows are
// computed once, become their gradient in place, and are multiplied further: three GEMMs. A backward pass of head.cpp
// would compute the logits again, with a fourth.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "cap.h"
#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "leaf.h"
#include "product.h"
#include "quant.h"

namespace {

// The kernels for h's device.
struct Kernels {
  bool cuda;
  at::Tensor bad_row;

  explicit Kernels(const at::Tensor &h) : cuda(h.is_cuda()), bad_row(at::full({1}, -1, h.options().dtype(at::kLong))) {
    auto type = h.scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kDouble, "float32, bfloat16 or float64 expected, not ", type);
  }
  int32_t gradient(const mgrpo_logits &logits, int64_t first, const mgrpo_loss_batch &b, const mgrpo_loss_config &c, const at::Tensor &logp,
                   const at::Tensor &entropy, mgrpo_loss_error *refusal) const {
    auto *lp = logp.mutable_data_ptr(), *h = entropy.mutable_data_ptr();
    auto *bad = bad_row.mutable_data_ptr<int64_t>();
    return cuda ? the_cuda_part->policy_gradient_from_logits(&logits, first, &b, &c, lp, h, bad, refusal, stream_of(bad_row))
                : mgrpo_policy_gradient_from_logits_cpu(&logits, first, &b, &c, lp, h, bad, refusal);
  }
  int32_t loss(const mgrpo_loss_batch &b, const mgrpo_loss_config &c, mgrpo_loss_sums *sums, mgrpo_loss_error *refusal) const {
    return cuda ? the_cuda_part->policy_loss(&b, &c, nullptr, nullptr, sums, refusal, stream_of(bad_row))
                : mgrpo_policy_loss_cpu(&b, &c, nullptr, nullptr, sums, refusal);
  }
};

// The place where the gradient of w [V, D] is added up over the chunks. It is the caller's float32 sum, or the leaf's own
// gradient. If w is in half precision, it is a float32 buffer that is rounded once at the end. There is none if w is frozen.
struct WeightGradient {
  at::Tensor leaf, sum;

  WeightGradient(const at::Tensor &w, c10::ScalarType accumulate, const at::Tensor &given) {
    if (!w.requires_grad()) return;
    TORCH_CHECK(w.is_leaf(), "w must be a leaf, or frozen");
    if (given.defined()) {
      TORCH_CHECK(given.scalar_type() == at::kFloat && given.sizes() == w.sizes() && given.device() == w.device() && given.is_contiguous(),
                  "the sum of w's gradient must be float32 ", w.sizes(), ", contiguous and on ", w.device());
      leaf = sum = given;
      return;
    }
    leaf = gradient_in_place(w);
    if (!leaf.defined()) {
      TORCH_CHECK(!w.grad().defined(), "the gradient of w must be contiguous");
      w.mutable_grad() = leaf = at::zeros_like(w);
    }
    sum = accumulate == w.scalar_type() ? leaf : at::zeros(w.sizes(), w.options().dtype(accumulate));
  }
  void add(const at::Tensor &dlogits, const at::Tensor &rows) {
    if (sum.defined()) add_product(sum, dlogits.t(), rows);
  }
  void finish() {
    if (sum.defined() && !sum.is_same(leaf)) leaf.add_(sum);
  }
};

// The logits of some rows, which become their gradient in place. On a GPU bfloat16 rows have float32 logits, whose gradient is in bfloat16.
struct Chunk {
  at::Tensor logits;
  at::ScalarType type;  // of the gradient

  bool narrows() const { return logits.scalar_type() != type; }
  int32_t kernel_type() const { return narrows() ? int32_t(type) : 0; }
  at::Tensor gradient() const { return narrows() ? logits.view(type).narrow(1, 0, logits.size(1)) : logits; }
};

}  // namespace

mgt_policy_loss mgt_linear_policy_loss(mgt_device *d, void *h, void *w, int32_t type, void *dw_or_null, void *targets, double tau,
                                       int64_t chunk, double cap, const mgrpo_loss_batch *batch, const mgrpo_loss_config *config,
                                       mgrpo_loss_sums *sums, mgrpo_loss_error *refusal) {
  mgt_policy_loss r{};
  r.row = -1;
  r.error = run(d, [&] {
    at::NoGradGuard no_grad;
    const auto &leaf = ref(w), &Y = ref(targets);
    check_head(ref(h), leaf, type);
    const auto H = factor(ref(h).contiguous()), W = factor(leaf);
    TORCH_CHECK(tau >= MGRPO_LEAST_TEMPERATURE && chunk >= 1, "tau must be at least ", MGRPO_LEAST_TEMPERATURE,
                " and chunk at least 1; they are ", tau, " and ", chunk);
    TORCH_CHECK(batch->tokens == H.size(0), "the batch has ", batch->tokens, " tokens, h ", H.size(0), " rows");
    const int32_t *y = int32s(Y, H.size(0), "targets");
    const Kernels kernels(H);
    auto wide = H.options().dtype(wide_of(H));
    auto logp = at::empty({H.size(0)}, wide), entropy = at::empty({H.size(0)}, wide), dh = at::empty_like(H);
    WeightGradient dw(leaf, wide.dtype().toScalarType(), or_none(dw_or_null));

    auto buffer = at::empty({std::min(chunk, H.size(0)), W.size(0)}, H.options().dtype(logits_type(H)));
    for (int64_t from = 0; from < H.size(0) && r.status == MGRPO_OK; from += chunk) {
      int64_t n = std::min(chunk, H.size(0) - from);
      auto rows = H.narrow(0, from, n), logits = buffer.narrow(0, 0, n), out = dh.narrow(0, from, n);
      const Chunk made{logits, H.scalar_type()};
      head_product(logits, rows, W, type);
      cap_logits(logits, cap);
      const auto slope = slope_of_cap(logits, cap);
      r.status = kernels.gradient(
          {logits.mutable_data_ptr(), int32_t(logits.scalar_type()), n, W.size(0), W.size(0), y + from, tau, made.kernel_type()}, from,
          *batch, *config, logp, entropy, refusal);
      auto dlogits = made.gradient();
      if (slope.defined()) dlogits.mul_(slope);
      head_product_bwd(out, dlogits, W, type);
      dw.add(dlogits, rows);
    }
    dw.finish();
    if (r.status == MGRPO_OK) {
      mgrpo_loss_batch b = *batch;
      b.logp_new = logp.const_data_ptr();
      b.entropy = entropy.const_data_ptr();
      r.status = kernels.loss(b, *config, sums, refusal);
      r.row = kernels.bad_row.item<int64_t>();
      if (r.row >= 0) r.status = MGRPO_NON_FINITE;
    }
    own(r.dh, dh.to(ref(h).scalar_type()));
    own(r.logp, logp);
    own(r.entropy, entropy);
  });
  return r;
}
