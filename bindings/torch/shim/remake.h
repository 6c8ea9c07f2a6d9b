// Inputs that a backward function makes again.
//
// Norms and gated activations cost little and keep what they are computed from, whoever reads their results: keeping the
// results for the linear maps that read them, too, would be a third of a decoder's activations.
#pragma once
#include <ATen/core/Tensor.h>

// Whether x is such a result. Autograd has its bits until the backward pass of what made it.
bool can_be_remade(const at::Tensor &x);

// For a backward function: its input number i, which has a gradient, from what made it.
at::Tensor remade(uint32_t i);
