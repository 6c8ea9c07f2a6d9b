// Which tensors our own kernels accept, the rules of matrix products, and the conversion of statuses to exceptions.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "guard.h"
#include "mgrpo/isa.h"
#include "mgrpo/status.h"

inline bool cpu_fp32(const at::Tensor &t) { return t.is_cpu() && t.scalar_type() == at::kFloat; }

template <class... T>
bool cpu_fp32(const at::Tensor &t, const T &...rest) {
  return cpu_fp32(t) && cpu_fp32(rest...);
}

// Returns the number of a tensor's type in mgrpo/dtype.h, which has PyTorch's numbers.
inline int32_t dtype_of(const at::Tensor &t) { return int32_t(t.scalar_type()); }

// Returns the type in which LibTorch's operators compute a layer.
inline at::ScalarType wide_of(const at::Tensor &x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Reports whether our kernels of layers accept these tensors: of one dtype and device, float32, on a GPU also bfloat16.
template <class... T>
bool ours(const at::Tensor &t, const T &...rest) {
  bool has = t.scalar_type() == at::kFloat ? t.is_cpu() || t.is_cuda() : t.is_cuda() && t.scalar_type() == at::kBFloat16;
  return has && ((rest.device() == t.device() && rest.scalar_type() == t.scalar_type()) && ...);
}

// Reports whether an operation on these tensors must be recorded for the backward pass.
template <class... T>
bool recorded(const T &...t) {
  return at::GradMode::is_enabled() && ((t.defined() && t.requires_grad()) || ...);
}

// Reports whether this thread trains and products of float32 on the CPU round their factors in training. Passes of training without
// gradients must round, too. Otherwise they would compute another policy than the passes with gradients.
bool rounds_factors();

// Returns t as a factor of a product. Some processors multiply float32 faster than bfloat16, and products of bfloat16 are exact in it.
// Without bfloat16 instructions LibTorch needs a hundred times as long.
inline at::Tensor factor(const at::Tensor &t) {
#if defined(__x86_64__)
  static const bool slow = mgrpo_cpu_bf16_is_faster() == 0;
  if (slow && t.is_cpu() && t.scalar_type() == at::kBFloat16) return t.to(at::kFloat);
#endif
  return t;
}

// Returns the type of the product of x with a head. A GPU adds products of bfloat16 in float32; logits near 16 would be 0.125 apart in
// bfloat16.
inline at::ScalarType logits_type(const at::Tensor &x) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 ? at::kFloat : x.scalar_type();
}

inline void check_status(int32_t status, const char *hint = "") {
  if (status != MGRPO_OK) throw kernel_error(status, c10::str(mgrpo_status_string(status), hint));
}

// Return the data of a tensor, or NULL if it is undefined or absent.
inline float *floats_or_null(const at::Tensor &t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; }
inline const int32_t *int32s_or_null(const std::optional<at::Tensor> &t) {
  return t && t->defined() ? t->const_data_ptr<int32_t>() : nullptr;
}

// Returns the data of an int32 tensor of n elements, such as positions and slots. The second function requires the device of `like`.
inline const int32_t *int32s(const at::Tensor &t, int64_t n, const char *name) {
  TORCH_CHECK(t.scalar_type() == at::kInt && t.dim() == 1 && t.size(0) == n && t.is_contiguous(), name, " must be int32 [", n,
              "] and contiguous");
  return t.const_data_ptr<int32_t>();
}
inline const int32_t *int32s(const at::Tensor &t, int64_t n, const char *name, const at::Tensor &like) {
  TORCH_CHECK(t.device() == like.device(), name, " must be on ", like.device());
  return int32s(t, n, name);
}
