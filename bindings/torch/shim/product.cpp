#include "product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <atomic>

#include "kernel.h"
#include "mgrpo/matmul.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

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

// Reports whether our kernel computes products of float32 on the CPU.
bool ours() {
  if (rounding() != Rounding::none) return rounding() == Rounding::ours;
  return has_wide_fp32() && mgrpo_matmul_cpu({}, {}, nullptr, 0, 0, 0, 0, 0, 0) == MGRPO_OK;
}

bool is_ours(const at::Tensor &y, const at::Tensor &a, const at::Tensor &b) { return cpu_fp32(y, a, b) && y.is_contiguous() && ours(); }

void our_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b, bool add) {
  TORCH_CHECK(a.size(1) == b.size(0) && y.size(0) == a.size(0) && y.size(1) == b.size(1), "shapes cannot be multiplied (", a.size(0), "x",
              a.size(1), " and ", b.size(0), "x", b.size(1), ") into ", y.sizes());
  const auto A = is_line(a) ? a : a.contiguous(), B = is_line(b) ? b : b.contiguous();
  check_status(mgrpo_matmul_cpu(matrix(A), matrix(B), y.mutable_data_ptr<float>(), y.size(1), a.size(0), a.size(1), b.size(1), add,
                                rounding() == Rounding::ours));
}

}  // namespace

bool has_wide_fp32() {
#ifdef __x86_64__
  static const bool wide = [] {
    unsigned eax = 0, ebx, ecx, edx;
    constexpr unsigned zen5 = 26;  // the processor's family
    return __builtin_cpu_is("amd") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (eax >> 8 & 15) + (eax >> 20 & 255) >= zen5;
  }();
  return wide;
#else
  return false;
#endif
}

Rounding rounding() { return by.load(std::memory_order_relaxed); }
void set_rounding(Rounding r) { by = r; }

void product_out(at::Tensor &y, const at::Tensor &a, const at::Tensor &b) {
  if (is_ours(y, a, b)) return our_product(y, a, b, false);
  at::mm_out(y, a, b);
}

at::Tensor product(const at::Tensor &a, const at::Tensor &b) {
  if (!cpu_fp32(a, b) || !ours()) return at::mm(a, b);
  auto y = at::empty({a.size(0), b.size(1)}, a.options());
  our_product(y, a, b, false);
  return y;
}

void add_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b) {
  if (is_ours(y, a, b)) return our_product(y, a, b, true);
  if (y.scalar_type() == a.scalar_type())
    y.addmm_(a, b);
  else if (a.is_cuda() && y.scalar_type() == at::kFloat)
    at::addmm_out(y, y, a, b, at::kFloat);
  else
    y.add_(at::mm(a, b));
}
