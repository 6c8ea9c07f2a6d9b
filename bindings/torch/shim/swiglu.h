// Gated activations with our kernels, which autograd does not record.
#pragma once
#include <ATen/core/Tensor.h>

at::Tensor swiglu(const at::Tensor &gate_up);
at::Tensor swiglu_bwd(const at::Tensor &dy, const at::Tensor &gate_up);  // both contiguous
at::Tensor geglu(const at::Tensor &gate_up);
at::Tensor geglu_bwd(const at::Tensor &dy, const at::Tensor &gate_up);  // both contiguous
at::Tensor clamped_glu(const at::Tensor &gate_up);
at::Tensor clamped_glu_bwd(const at::Tensor &dy, const at::Tensor &gate_up);  // both contiguous

// Returns the clamped activation (mgrpo/glu.h) with LibTorch's operators, for other dtypes.
inline at::Tensor clamped_glu_composite(const at::Tensor &gate, const at::Tensor &up) {
  auto g = gate.clamp_max(7);
  return g * (g * 1.702).sigmoid() * (up.clamp(-7, 7) + 1);
}
