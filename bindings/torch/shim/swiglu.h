// SwiGLU where our kernels take the tensors, without a trace for autograd.
#pragma once
#include <ATen/core/Tensor.h>

at::Tensor swiglu(const at::Tensor &gate_up);
at::Tensor swiglu_bwd(const at::Tensor &dy, const at::Tensor &gate_up);  // both contiguous
