// Inputs that a backward function computes again.
//
// Norms and gated activations cost little time and keep their inputs anyway. Keeping their results for the linear maps that read them, too,
// would take a third of a decoder's activations.
#pragma once
#include <ATen/core/Tensor.h>

// Reports whether x is the result of a norm or of a gated activation. Its node can compute the same bits again until that node's
// backward pass.
bool can_recompute(const at::Tensor &x);

// For a backward function: returns its input number i, which has a gradient. The node that computed this input computes it again.
at::Tensor recomputed_input(uint32_t i);
