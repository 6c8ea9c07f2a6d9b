// Linear maps and embeddings with matrices that stay quantised. Only the inputs get gradients.
#include "quant.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "mgrpo/quant.h"
#include "product.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The number of weights that a GPU dequantises at a time for LibTorch's products.
constexpr int64_t kPiece = 1 << 24;

// Calls f(first row, number of rows, weights in x's type) for pieces of w on a GPU.
template <class F>
void each_piece(const Blocks &w, const at::Tensor &x, F &&f) {
  const int64_t rows_at_once = std::max<int64_t>(kPiece / std::max<int64_t>(w.k, 1), 1);
  for (int64_t from = 0; from < w.rows(); from += rows_at_once) {
    const int64_t n = std::min(rows_at_once, w.rows() - from);
    auto piece = at::empty({n, w.k}, x.options());
    check_status(the_cuda_part->dequantise(w.data.narrow(0, from, n).const_data_ptr(), w.type, nullptr, int32_t(x.scalar_type()),
                                           piece.mutable_data_ptr(), n, n, w.k, stream_of(x)));
    f(from, n, piece);
  }
}

// The address of the first row, and the distance between rows.
template <class T>
struct Strided {
  T *data;
  int64_t stride;
};
Strided<float> strided(at::Tensor &t) {
  TORCH_CHECK(t.dim() == 2 && (t.stride(1) == 1 || t.size(1) <= 1), "rows without gaps expected");
  return {t.mutable_data_ptr<float>(), t.size(0) > 1 ? t.stride(0) : t.size(1)};
}
Strided<const float> strided(const at::Tensor &t) {
  TORCH_CHECK(t.dim() == 2 && (t.stride(1) == 1 || t.size(1) <= 1), "rows without gaps expected");
  return {t.const_data_ptr<float>(), t.size(0) > 1 ? t.stride(0) : t.size(1)};
}

void check_types(const at::Tensor &t) {
  auto type = t.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16, "a quantised matrix is multiplied by float32 or bfloat16, not ", type);
}

}  // namespace

Blocks blocks(const at::Tensor &data, int32_t type, int64_t k, const at::Tensor &like) {
  const int64_t bytes = mgrpo_quant_row_bytes(type, k);
  TORCH_CHECK(bytes >= 0, "no rows of ", k, " weights in GGUF's type ", type);
  TORCH_CHECK(
      data.scalar_type() == at::kByte && data.dim() == 2 && data.size(1) == bytes && data.is_contiguous() && data.device() == like.device(),
      "blocks must be uint8 [N, ", bytes, "], contiguous and on ", like.device());
  return {data, type, k};
}

void check_head(const at::Tensor &h, const at::Tensor &w, int32_t type) {
  if (type != MGT_NOT_QUANTISED) {
    TORCH_CHECK(h.dim() == 2, "h must be [N, D]");
    blocks(w, type, h.size(1), h);
    return;
  }
  TORCH_CHECK(h.dim() == 2 && w.dim() == 2 && h.size(1) == w.size(1), "h [N, D] and w [V, D] do not agree on D");
  TORCH_CHECK(h.scalar_type() == w.scalar_type(), "h and w must have one dtype");
}

void quant_product(const at::Tensor &x, const Blocks &w, at::Tensor y) {
  check_types(x);
  if (x.is_cuda())
    return each_piece(w, x, [&](int64_t from, int64_t n, const at::Tensor &piece) {
      y.narrow(1, from, n).copy_(y.scalar_type() == x.scalar_type() ? at::mm(x, piece.t()) : at::mm(x, piece.t(), y.scalar_type()));
    });
  if (x.scalar_type() != at::kFloat) {
    auto wide = at::empty({x.size(0), w.rows()}, x.options().dtype(at::kFloat));
    quant_product(x.to(at::kFloat), w, wide);
    y.copy_(wide);
    return;
  }
  auto xc = x.contiguous();
  auto to = strided(y);
  check_status(mgrpo_linear_quant_cpu(xc.const_data_ptr<float>(), w.data.const_data_ptr(), w.type, nullptr, to.data, to.stride, x.size(0),
                                      w.k, w.rows()));
}

void quant_product_bwd(const at::Tensor &dy, const Blocks &w, at::Tensor dx, bool add) {
  check_types(dy);
  if (dx.scalar_type() != at::kFloat) {
    auto wide = add ? dx.to(at::kFloat) : at::empty(dx.sizes(), dx.options().dtype(at::kFloat));
    quant_product_bwd(dy, w, wide, add);
    dx.copy_(wide);
    return;
  }
  if (dy.is_cuda()) {
    if (!add) dx.zero_();
    return each_piece(w, dy, [&](int64_t from, int64_t n, const at::Tensor &piece) { add_product(dx, dy.narrow(1, from, n), piece); });
  }
  if (dy.scalar_type() != at::kFloat) return quant_product_bwd(dy.to(at::kFloat), w, dx, add);
  const auto from = strided(dy);
  check_status(mgrpo_linear_quant_bwd_input_cpu(from.data, from.stride, w.data.const_data_ptr(), w.type, dx.mutable_data_ptr<float>(),
                                                dy.size(0), w.k, w.rows(), add));
}

void head_product(at::Tensor &logits, const at::Tensor &h, const at::Tensor &w, int32_t type) {
  if (type != MGT_NOT_QUANTISED)
    quant_product(h, {w, type, h.size(1)}, logits);
  else if (logits.scalar_type() == h.scalar_type())
    product_out(logits, h, w.t());
  else
    at::mm_out(logits, h, w.t(), logits.scalar_type());
}

void head_product_bwd(at::Tensor &dh, const at::Tensor &dlogits, const at::Tensor &w, int32_t type) {
  if (type != MGT_NOT_QUANTISED)
    quant_product_bwd(dlogits, {w, type, dh.size(1)}, dh, false);
  else
    product_out(dh, dlogits, w);
}

namespace {

// Parts of a matrix, one after the other in rows. The parts of a fused map can have different types.
using Parts = std::vector<Blocks>;

int64_t rows_of(const Parts &parts) {
  int64_t n = 0;
  for (const auto &p : parts) n += p.rows();
  return n;
}

at::Tensor linear(const at::Tensor &x, const Parts &parts, const std::optional<at::Tensor> &b) {
  const int64_t n = rows_of(parts);
  auto sizes = x.sizes().vec();
  sizes.back() = n;
  auto y = at::empty(sizes, x.options());  // not a view: adapters add to it in place
  auto rows = x.reshape({-1, x.size(-1)}), to = y.view({-1, n});
  int64_t from = 0;
  for (const auto &p : parts) {
    quant_product(rows, p, to.narrow(1, from, p.rows()));
    from += p.rows();
  }
  if (b) y.add_(*b);
  return y;
}

struct LinearQuant : torch::autograd::Function<LinearQuant> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const Parts &parts, const std::optional<at::Tensor> &b) {
    variable_list data;
    std::vector<int64_t> types;
    for (const auto &p : parts) data.push_back(p.data), types.push_back(p.type);
    ctx->save_for_backward(data);
    ctx->saved_data["types"] = types;
    ctx->saved_data["sizes"] = x.sizes().vec();
    return linear(x, parts, b);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    const auto data = ctx->get_saved_variables();
    const auto types = ctx->saved_data["types"].toIntVector(), sizes = ctx->saved_data["sizes"].toIntVector();
    auto dy = grads[0].reshape({-1, grads[0].size(-1)}).contiguous();
    auto dx = at::empty({dy.size(0), sizes.back()}, dy.options().dtype(at::kFloat));
    int64_t from = 0;
    for (size_t i = 0; i < data.size(); i++) {
      quant_product_bwd(dy.narrow(1, from, data[i].size(0)), {data[i], int32_t(types[i]), sizes.back()}, dx, i > 0);
      from += data[i].size(0);
    }
    return {dx.to(dy.scalar_type()).view(sizes), {}, {}};
  }
};

}  // namespace

mgt_tensor mgt_linear_quant(mgt_device *d, void *x, void **parts, const int32_t *types, int64_t n, void *b_or_null) {
  return make(d, [&] {
    const auto &X = ref(x);
    const auto b = maybe_ref(b_or_null);
    TORCH_CHECK(X.dim() >= 1, "x must be [..., K]");
    Parts all;
    for (int64_t i = 0; i < n; i++) all.push_back(blocks(ref(parts[i]), types[i], X.size(-1), X));
    TORCH_CHECK(!b || (b->dim() == 1 && b->size(0) == rows_of(all) && !b->requires_grad()), "b must be [N] and frozen");
    return recorded(X) ? LinearQuant::apply(X, all, b) : linear(X, all, b);
  });
}

mgt_tensor mgt_embedding_quant(mgt_device *d, void *w, int32_t type, int64_t k, int dtype, void *ids) {
  return make(d, [&] {
    const auto &Y = ref(ids);
    const auto rows = blocks(ref(w), type, k, Y);
    const int32_t *id = int32s(Y, Y.numel(), "ids");
    auto x = at::empty({Y.size(0), k}, rows.data.options().dtype(at::ScalarType(dtype)));
    check_types(x);
    if (x.is_cuda()) {
      check_status(the_cuda_part->dequantise(rows.data.const_data_ptr(), type, id, dtype, x.mutable_data_ptr(), Y.size(0), rows.rows(), k,
                                             stream_of(x)));
      return x;
    }
    auto wide = x.scalar_type() == at::kFloat ? x : at::empty(x.sizes(), x.options().dtype(at::kFloat));
    check_status(mgrpo_dequantise_cpu(rows.data.const_data_ptr(), type, id, wide.mutable_data_ptr<float>(), Y.size(0), rows.rows(), k),
                 ": is every id in the vocabulary?");
    return wide.to(x.scalar_type());
  });
}
