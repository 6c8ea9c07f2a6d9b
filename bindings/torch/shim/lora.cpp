// Low-rank adapters on top of any linear map: y += scale * B (A x).
// Without gradients, float32 on a CPU, and on a GPU also bfloat16, uses our kernel, in which every row may have another adapter.
// With gradients there is one adapter, and LibTorch computes the products.
#include "mgrpo/lora.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "leaf.h"
#include "recompute.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// An adapter's parts, with their places in the stacked A and the places of their B in the values.
struct Parts {
  std::vector<mgrpo_lora_part> all;
  int64_t rank = 0, numel = 0, k;

  Parts(const mgrpo_lora_part *parts, int64_t count, int64_t k) : all(parts, parts + count), k(k) {
    for (const auto &p : all) rank += p.r;
    numel = rank * k;
    for (const auto &p : all) numel += p.n * p.r;
  }
  at::Tensor a(const at::Tensor &values) const { return values.narrow(0, 0, rank * k).view({rank, k}); }
  // Calls f(part, its columns of [T, rank], its B).
  template <class F>
  void each(const at::Tensor &values, const at::Tensor &products, const F &f) const {
    int64_t column = 0, b = rank * k;
    for (const auto &p : all) {
      f(p, products.narrow(1, column, p.r), values.narrow(0, b, p.n * p.r).view({p.n, p.r}));
      column += p.r;
      b += p.n * p.r;
    }
  }
};

// Adds to y [T, N] in place and returns A x [T, rank]; both products are in the adapter's type.
at::Tensor add(const at::Tensor &y, const at::Tensor &x, const at::Tensor &values, const Parts &parts) {
  auto products = at::mm(x.to(values.scalar_type()), parts.a(values).t());
  parts.each(values, products, [&](const mgrpo_lora_part &p, const at::Tensor &product, const at::Tensor &b) {
    auto to = y.narrow(1, p.from, p.n);
    if (y.scalar_type() == values.scalar_type())
      to.addmm_(product, b.t(), 1, p.scale);
    else
      to.copy_(to.to(values.scalar_type()).addmm_(product, b.t(), 1, p.scale));
  });
  return products;
}

struct LoraAdd : torch::autograd::Function<LoraAdd> {
  static at::Tensor forward(AutogradContext *ctx, at::Tensor y, const at::Tensor &x, const at::Tensor &values, const Parts *parts) {
    auto products = add(y, x, values, *parts);
    ctx->save_for_backward({can_recompute(x) ? at::Tensor() : x, values, products});
    ctx->saved_data["parts"] = std::string(reinterpret_cast<const char *>(parts->all.data()), parts->all.size() * sizeof(mgrpo_lora_part));
    ctx->mark_dirty({y});
    return y;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto x = saved[0].defined() ? saved[0] : recomputed_input(1);
    const auto &values = saved[1], &products = saved[2], &dy = grads[0];
    const auto bytes = ctx->saved_data["parts"].toStringRef();
    const Parts parts(reinterpret_cast<const mgrpo_lora_part *>(bytes.data()), int64_t(bytes.size() / sizeof(mgrpo_lora_part)), x.size(1));
    auto total = gradient_in_place(values);
    at::Tensor returned;
    if (!total.defined()) total = returned = at::zeros_like(values);
    auto wide = dy.to(values.scalar_type());
    auto dproducts = at::empty_like(products);
    int64_t column = 0;
    parts.each(total, products, [&](const mgrpo_lora_part &p, const at::Tensor &product, at::Tensor db) {
      auto b = values.narrow(0, db.storage_offset() - total.storage_offset(), p.n * p.r).view({p.n, p.r});
      auto d = wide.narrow(1, p.from, p.n);
      db.addmm_(d.t(), product, 1, p.scale);
      auto to = dproducts.narrow(1, column, p.r);
      at::mm_out(to, d, b);
      to.mul_(p.scale);
      column += p.r;
    });
    parts.a(total).addmm_(dproducts.t(), x.to(values.scalar_type()));
    at::Tensor dx;
    if (ctx->needs_input_grad(1)) dx = at::mm(dproducts, parts.a(values)).to(x.scalar_type());
    return {dy, dx, returned, {}};
  }
};

void add_by_kernel(at::Tensor &y, const at::Tensor &x, const std::vector<mgrpo_lora> &adapters, const at::Tensor &which) {
  const int32_t *rows = int32s_or_null(which);
  int64_t count = int64_t(adapters.size()), t = x.size(0), k = x.size(1), n = y.size(1);
  if (y.is_cuda())
    check_status(the_cuda_part->lora_add(adapters.data(), count, rows, x.const_data_ptr(), int32_t(y.scalar_type()), y.mutable_data_ptr(),
                                         t, k, n, stream_of(y)));
  else
    check_status(mgrpo_lora_add_cpu(adapters.data(), count, rows, x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), t, k, n));
}

}  // namespace

mgt_tensor mgt_lora_add_(mgt_device *d, void *y, void *x, void **adapters, const int64_t *counts, int64_t n, const mgrpo_lora_part *parts,
                         void *which_or_null) {
  return make(d, [&] {
    at::Tensor &Y = ref(y), which = or_none(which_or_null);
    const at::Tensor &X = ref(x);
    TORCH_CHECK(X.dim() == 2 && Y.dim() == 2 && X.size(0) == Y.size(0) && X.scalar_type() == Y.scalar_type(),
                "x [T, K] and y [T, N] must have one T and dtype");
    TORCH_CHECK(Y.is_contiguous(), "y must be contiguous");
    if (which.defined()) int32s(which, X.size(0), "which", X);
    std::vector<mgrpo_lora> table;
    for (int64_t i = 0; i < n; i++) {
      if (counts[i] == 0) {
        table.push_back({nullptr, nullptr, 0});
        continue;
      }
      const at::Tensor &values = ref(adapters[i]);
      const Parts of(parts, counts[i], X.size(1));
      TORCH_CHECK(values.dim() == 1 && values.is_contiguous() && values.size(0) == of.numel, "adapter ", i, " must have [", of.numel,
                  "] values");
      for (const auto &p : of.all)
        TORCH_CHECK(p.r >= 1 && p.from >= 0 && p.n >= 0 && p.from + p.n <= Y.size(1), "adapter ", i, " has a part outside of y's columns");
      if (recorded(Y, X, values)) {
        TORCH_CHECK(n == 1 && !which.defined(), "gradients are recorded for one adapter alone");
        return LoraAdd::apply(Y, X, values, &of);
      }
      if (!ours(X)) {
        TORCH_CHECK(n == 1 && !which.defined(), "several adapters need float32, on a GPU also bfloat16");
        add(Y, X, values, of);
        return Y;
      }
      TORCH_CHECK(values.scalar_type() == at::kFloat && values.device() == X.device(), "adapter ", i, " must be float32 and on ",
                  X.device());
      table.push_back({values.const_data_ptr<float>(), parts, counts[i]});
      parts += counts[i];
    }
    if (n > 0) add_by_kernel(Y, X.contiguous(), table, which);
    return Y;
  });
}
