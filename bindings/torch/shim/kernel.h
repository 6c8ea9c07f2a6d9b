// Which tensors our own CPU kernels take, and how their statuses become exceptions.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "mgrpo/status.h"

inline bool cpu_fp32(const at::Tensor &t) { return t.is_cpu() && t.scalar_type() == at::kFloat; }

template <class... T>
bool cpu_fp32(const at::Tensor &t, const T &...rest) {
  return cpu_fp32(t) && cpu_fp32(rest...);
}

// Whether an operation on these has to leave a trace for the backward pass.
template <class... T>
bool recorded(const T &...t) {
  return at::GradMode::is_enabled() && ((t.defined() && t.requires_grad()) || ...);
}

inline void check_status(int32_t status, const char *hint = "") {
  TORCH_CHECK(status == MGRPO_OK, mgrpo_status_string(status), hint);
}

// An int32 tensor of n elements, such as positions and slots.
inline const int32_t *int32s(const at::Tensor &t, int64_t n, const char *name) {
  TORCH_CHECK(t.scalar_type() == at::kInt && t.dim() == 1 && t.size(0) == n && t.is_contiguous(), name,
              " must be int32 [", n, "] and contiguous");
  return t.const_data_ptr<int32_t>();
}
