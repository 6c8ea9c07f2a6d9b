// Functions of tensors: handles, copies, views and arithmetic.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "cuda_part.h"
#include "guard.h"
#include "product.h"

namespace {

constexpr size_t kStaged = 1 << 20;  // from this many bytes on, a copy from a GPU goes through pinned memory
constexpr size_t kAside = 64 << 10;  // up to this many bytes a copy to a GPU does not wait

at::IntArrayRef shape(const int64_t *sizes, int64_t dim) { return at::IntArrayRef(sizes, size_t(dim)); }
at::ScalarType type(int dtype) {
  TORCH_CHECK(dtype >= 0 && dtype < int(at::ScalarType::NumOptions), "unknown dtype ", dtype);
  return at::ScalarType(dtype);
}

// Returns a CPU tensor over the caller's memory, for the duration of one call.
at::Tensor borrow(const void *data, int dtype, at::IntArrayRef sizes) {
  static char nothing;
  return at::from_blob(data ? const_cast<void *>(data) : &nothing, sizes, at::TensorOptions(type(dtype)));
}

// Fills t with elements of the caller's memory.
void fill_from(const at::Tensor &t, const void *data, int dtype) {
  if (t.is_cuda() && t.scalar_type() == type(dtype) && t.is_contiguous() && t.numel() > 0 && t.nbytes() <= kAside)
    the_cuda_part->from_host(t, data);
  else
    t.copy_(borrow(data, dtype, t.sizes()));
}

// The number of elements that are converted to float64 at a time if no gradient is recorded.
constexpr int64_t kPiece = 1 << 20;

template <class F>
at::Tensor reduce_pieces(const at::Tensor &t, F &&piece) {
  auto flat = t.contiguous().view({-1});
  auto total = at::full({}, 0, flat.options().dtype(at::kDouble));
  for (int64_t from = 0; from < flat.numel(); from += kPiece)
    total += piece(flat.narrow(0, from, std::min(kPiece, flat.numel() - from)).to(at::kDouble));
  return total;
}
bool records(const at::Tensor &t) { return at::GradMode::is_enabled() && t.requires_grad(); }

}  // namespace

void mgt_drop(void **handles, int64_t n) {
  for (int64_t i = 0; i < n; i++) delete static_cast<at::Tensor *>(handles[i]);
  mgt_handles.fetch_sub(n, std::memory_order_relaxed);
}
void *mgt_share(void *t) { return new at::Tensor(ref(t)); }
mgt_tensor mgt_adopt(mgt_device *d, void *t) {
  return make(d, [&] {
    const auto &x = ref(t);
    TORCH_CHECK(x.defined(), "the tensor is undefined");
    TORCH_CHECK(x.device() == d->device, "a tensor on ", x.device(), " cannot come into a scope of ", d->device);
    return x;
  });
}
mgt_pointer mgt_data(mgt_device *d, void *t) {
  mgt_pointer r{};
  r.error = run(d, [&] {
    TORCH_CHECK(ref(t).is_contiguous(), "the tensor is not contiguous (strides ", ref(t).strides(), "): call Contiguous first");
    r.value = ref(t).data_ptr();
  });
  return r;
}

mgt_tensor mgt_empty(mgt_device *d, int dtype, const int64_t *sizes, int64_t dim, int kept) {
  return make(d, [&] {
    const LargePages pages(kept != 0);
    return at::empty(shape(sizes, dim), at::TensorOptions(type(dtype)).device(d->device));
  });
}
mgt_tensor mgt_full(mgt_device *d, int dtype, double value, const int64_t *sizes, int64_t dim) {
  return make(d, [&] { return at::full(shape(sizes, dim), value, at::TensorOptions(type(dtype)).device(d->device)); });
}
mgt_tensor mgt_from_host(mgt_device *d, const void *data, int dtype, const int64_t *sizes, int64_t dim) {
  return make(d, [&] {
    auto t = at::empty(shape(sizes, dim), at::TensorOptions(type(dtype)).device(d->device));
    if (d->device.is_cpu()) {
      if (t.numel()) std::memcpy(t.data_ptr(), data, t.nbytes());
    } else {
      fill_from(t, data, dtype);
    }
    return t;
  });
}
char *mgt_to_host(mgt_device *d, void *t, int dtype, void *out, int64_t numel) {
  return run(d, [&] {
    const auto &from = ref(t);
    TORCH_CHECK(from.numel() == numel, from.numel(), " elements for a buffer of ", numel);
    if (from.is_cuda() && from.scalar_type() == type(dtype) && from.is_contiguous() && from.nbytes() >= kStaged) {
      the_cuda_part->to_host(from, out);
      return;
    }
    auto x = from.detach().to(at::kCPU, type(dtype)).contiguous();
    if (numel) std::memcpy(out, x.const_data_ptr(), x.nbytes());
  });
}
char *mgt_set_host_(mgt_device *d, void *t, const void *data, int dtype, int64_t numel) {
  return run(d, [&] {
    TORCH_CHECK(ref(t).numel() == numel, ref(t).numel(), " elements from a buffer of ", numel);
    fill_from(ref(t), data, dtype);
  });
}
char *mgt_copy_(mgt_device *d, void *t, void *src) {
  return run(d, [&] { ref(t).copy_(ref(src)); });
}
mgt_scalar mgt_item(mgt_device *d, void *t) {
  mgt_scalar r{};
  r.error = run(d, [&] { r.value = ref(t).item().toDouble(); });
  return r;
}
mgt_tensor mgt_to(mgt_device *d, void *t, int dtype) {
  return make(d, [&] { return ref(t).to(type(dtype)); });
}
mgt_tensor mgt_contiguous(mgt_device *d, void *t) {
  return make(d, [&] { return ref(t).contiguous(); });
}
mgt_tensor mgt_clone(mgt_device *d, void *t) {
  return make(d, [&] { return ref(t).clone(); });
}
mgt_tensor mgt_detach(mgt_device *d, void *t) {
  return make(d, [&] { return ref(t).detach(); });
}

mgt_tensor mgt_view(mgt_device *d, void *t, const int64_t *sizes, int64_t dim) {
  return make(d, [&] { return ref(t).view(shape(sizes, dim)); });
}
mgt_tensor mgt_narrow(mgt_device *d, void *t, int64_t dim, int64_t start, int64_t length) {
  return make(d, [&] { return ref(t).narrow(dim, start, length); });
}
mgt_tensor mgt_select(mgt_device *d, void *t, int64_t dim, int64_t index) {
  return make(d, [&] { return ref(t).select(dim, index); });
}
mgt_tensor mgt_transpose(mgt_device *d, void *t, int64_t dim0, int64_t dim1) {
  return make(d, [&] { return ref(t).transpose(dim0, dim1); });
}
mgt_tensor mgt_concat(mgt_device *d, void *a, void *b) {
  return make(d, [&] { return at::cat({ref(a), ref(b)}, -1); });
}

mgt_tensor mgt_index_select(mgt_device *d, void *t, int64_t dim, void *index) {
  return make(d, [&] { return ref(t).index_select(dim, ref(index)); });
}
char *mgt_index_copy_(mgt_device *d, void *t, int64_t dim, void *index, void *src) {
  return run(d, [&] { ref(t).index_copy_(dim, ref(index).to(at::kLong), ref(src)); });
}

mgt_tensor mgt_add(mgt_device *d, void *a, void *b) {
  return make(d, [&] { return at::add(ref(a), ref(b)); });
}
mgt_tensor mgt_mul(mgt_device *d, void *a, void *b) {
  return make(d, [&] { return at::mul(ref(a), ref(b)); });
}
mgt_tensor mgt_scale(mgt_device *d, void *t, double factor) {
  return make(d, [&] { return at::mul(ref(t), factor); });
}
mgt_tensor mgt_matmul(mgt_device *d, void *a, void *b) {
  return make(d, [&] {
    const at::Tensor &x = ref(a), &y = ref(b);
    // The result does not round, and our kernel records nothing for a gradient.
    const bool recorded = at::GradMode::is_enabled() && (x.requires_grad() || y.requires_grad());
    return x.dim() == 2 && y.dim() == 2 && !recorded && rounding() == Rounding::none ? product(x, y) : at::matmul(x, y);
  });
}
// Without gradients on a CPU each value is computed alone. LibTorch's vectors round differently from the rest after the last vector, so a
// row's bits would depend on the number of rows.
mgt_tensor mgt_sigmoid(mgt_device *d, void *t) {
  return make(d, [&] {
    const auto &x = ref(t);
    if (records(x) || !x.is_cpu() || x.scalar_type() != at::kFloat) return at::sigmoid(x);
    auto y = x.clone(at::MemoryFormat::Contiguous);
    for (float *v = y.data_ptr<float>(), *end = v + y.numel(); v != end; v++) *v = 1 / (1 + std::exp(-*v));
    return y;
  });
}
mgt_tensor mgt_gelu(mgt_device *d, void *t) {
  return make(d, [&] {
    const auto &x = ref(t);
    if (records(x) || !x.is_cpu() || x.scalar_type() != at::kFloat) return at::gelu(x, "tanh");
    auto y = x.clone(at::MemoryFormat::Contiguous);
    for (float *v = y.data_ptr<float>(), *end = v + y.numel(); v != end; v++)
      *v = *v / 2 * (1 + std::tanh(0.7978845608f * (*v + 0.044715f * *v * *v * *v)));
    return y;
  });
}
mgt_tensor mgt_sum(mgt_device *d, void *t) {
  return make(d, [&] {
    const auto &x = ref(t);
    if (records(x)) return at::sum(x, at::kDouble);
    return reduce_pieces(x, [](const at::Tensor &piece) { return piece.sum(); });
  });
}
mgt_tensor mgt_norm(mgt_device *d, void *t) {
  return make(d, [&] {
    const auto &x = ref(t);
    if (records(x)) return at::linalg_vector_norm(x.to(at::kDouble), 2);
    return reduce_pieces(x, [](const at::Tensor &piece) { return piece.dot(piece); }).sqrt_();
  });
}
mgt_scalar mgt_equal(mgt_device *d, void *a, void *b) {
  mgt_scalar r{};
  r.error = run(d, [&] { r.value = at::equal(ref(a), ref(b)); });
  return r;
}
char *mgt_add_scaled_(mgt_device *d, void *t, void *u, double factor) {
  return run(d, [&] { ref(t).add_(ref(u), factor); });
}
char *mgt_scale_(mgt_device *d, void *t, double factor) {
  return run(d, [&] { ref(t).mul_(factor); });
}
char *mgt_fill_(mgt_device *d, void *t, double value) {
  return run(d, [&] { ref(t).fill_(value); });
}
