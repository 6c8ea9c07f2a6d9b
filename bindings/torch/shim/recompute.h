// Inputs that a backward function computes again.
//
// Norms and gated activations cost little time and keep their inputs anyway. Keeping their results for the linear maps that read them, too,
// would take a third of a decoder's activations.
#pragma once
#include <ATen/core/Tensor.h>

// Reports whether x is such a result. Its node can make the same bits again until that node's backward pass.
bool can_be_remade(const at::Tensor &x);

// For a backward function: returns its input number i, which has a gradient, computed again by the node that made it.
at::Tensor remade(uint32_t i);
