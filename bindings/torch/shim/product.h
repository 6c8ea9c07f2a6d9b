// Products of matrices in training.
#pragma once
#include <ATen/core/Tensor.h>

// Who rounds the factors of float32's products in training on the CPU to bfloat16, as mgt_round_factors says: nobody; LibTorch,
// in all of its products; or our kernel, in those below, on processors with avx512_bf16 for whose float32 LibTorch does not use it.
// Unless it is nobody, our products with bfloat16 weights are asked to round, in training or not.
enum class Rounding { none, libtorch, ours };
Rounding rounding();
void set_rounding(Rounding r);

// y = a b.  a [m, k], b [k, n] and y [m, n] have one dtype.
void product_out(at::Tensor &y, const at::Tensor &a, const at::Tensor &b);
at::Tensor product(const at::Tensor &a, const at::Tensor &b);

// y += a b, where y may be float32 while a and b are bfloat16.
void add_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b);
