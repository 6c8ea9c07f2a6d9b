// The RMS norm with LibTorch's operators, for tensors that our kernels do not accept.
#pragma once
#include <ATen/core/Tensor.h>

at::Tensor rms_norm_composite(const at::Tensor &x, const at::Tensor &w, double offset, double eps);
