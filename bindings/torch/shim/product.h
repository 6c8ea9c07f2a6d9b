// Products of matrices in training.
#pragma once
#include <ATen/core/Tensor.h>

// Which code rounds the factors of float32 products to bfloat16 in training on the CPU (mgt_round_factors). It is none, or
// LibTorch in all of its products, or our kernel in the products below. The kernel does it on processors with avx512_bf16 if
// LibTorch does not use it for float32. Unless it is none, our products with bfloat16 weights round, too, in training or not.
enum class Rounding { none, libtorch, ours };
Rounding rounding();
void set_rounding(Rounding r);

// Reports whether the processor is AMD's Zen 5 or newer. Its AVX-512 multiplies twice as many floats as AVX2, which LibTorch's products use
// on AMD. So our kernel also computes the products below that do not round.
bool has_wide_fp32();

// y = a b.  a [m, k], b [k, n] and y [m, n] have one dtype.
void product_out(at::Tensor &y, const at::Tensor &a, const at::Tensor &b);
at::Tensor product(const at::Tensor &a, const at::Tensor &b);

// y += a b, where y may be float32 while a and b are bfloat16.
void add_product(at::Tensor &y, const at::Tensor &a, const at::Tensor &b);
