#include "product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <atomic>

#include "kernel.h"
#include "mgrpo/matmul.h"

namespace {

std::atomic<Rounding> by{Rounding::none};

// Returns t for the kernel. If a tensor has one row or one column, its stride can have any value.
mgrpo_matrix matrix(const at::Tensor &t) {
  int64_t row = t.stride(0), column = t.stride(1);
  if (t.size(0) == 1) row = column == 1 ? t.size(1) : 1;
  if (t.size(1) == 1) column = row == 1 ? t.size(0) : 1;
  return {t.const_data_ptr<float>(), row, column};
}

bool is_line(const at::Tensor &t) {
  return (t.stride(1) == 1 && t.stride(0) >= t.size(1)) || (t.stride(0) == 1 && t.stride(1) >= t.size(0));
}

bool ours_rounds(const at::Tensor &y, const at::Tensor &a, const at::Tensor &b) {
  return rounding() == Rounding::ours && cpu_fp32(y, a, b) && y.is_contiguous();
}

void rounded_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b, bool add) {
  TORCH_CHECK(a.size(1) == b.size(0) && y.size(0) == a.size(0) && y.size(1) == b.size(1), "the product of ", a.sizes(), " and ", b.sizes(),
              " is not ", y.sizes());
  const auto A = is_line(a) ? a : a.contiguous(), B = is_line(b) ? b : b.contiguous();
  check_status(mgrpo_matmul_bf16_cpu(matrix(A), matrix(B), y.mutable_data_ptr<float>(), y.size(1), a.size(0), a.size(1), b.size(1), add));
}

}  // namespace

Rounding rounding() { return by.load(std::memory_order_relaxed); }
void set_rounding(Rounding r) { by = r; }

void product_out(at::Tensor &y, const at::Tensor &a, const at::Tensor &b) {
  if (ours_rounds(y, a, b)) return rounded_product(y, a, b, false);
  at::mm_out(y, a, b);
}

at::Tensor product(const at::Tensor &a, const at::Tensor &b) {
  if (rounding() != Rounding::ours) return at::mm(a, b);
  auto y = at::empty({a.size(0), b.size(1)}, a.options());
  product_out(y, a, b);
  return y;
}

void add_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b) {
  if (ours_rounds(y, a, b)) return rounded_product(y, a, b, true);
  if (y.scalar_type() == a.scalar_type())
    y.addmm_(a, b);
  else if (a.is_cuda() && y.scalar_type() == at::kFloat)
    at::addmm_out(y, y, a, b, at::kFloat);
  else
    y.add_(at::mm(a, b));
}
