// Gated activations of mgrpo/glu.h, which autograd does not record. gates is a number of enum mgrpo_gates.
#pragma once
#include <ATen/core/Tensor.h>

// Our kernels, for contiguous tensors.
at::Tensor glu(int64_t gates, const at::Tensor &gate_up);
at::Tensor glu_bwd(int64_t gates, const at::Tensor &dy, const at::Tensor &gate_up);

// LibTorch's operators, for other dtypes.
at::Tensor glu_composite(int64_t gates, const at::Tensor &gate, const at::Tensor &up);
