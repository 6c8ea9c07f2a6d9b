// Makes gotch v0.9.1, written for LibTorch 2.1, compile unmodified against LibTorch 2.11. The compiler flag -include
// puts it before gotch's C++ file; see ../env.sh.
//
// gotch writes torch::name(...) throughout. Namespace torch reaches ATen's functions through a
// using-directive, so a function of the same name declared in torch itself is found first. Below are the
// four functions whose C++ signature differs from gotch's calls, each with gotch's arguments.
#pragma once
#ifdef __cplusplus
#include <torch/torch.h>

namespace torch {

using MaybeTensor = std::optional<at::Tensor>;

// The 2.11 form has a new argument enable_gqa. gotch passes an undefined tensor for no mask, which 2.11 refuses.
inline at::Tensor scaled_dot_product_attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                                               const MaybeTensor &mask, double dropout, bool causal, std::optional<double> scale) {
  const bool masked = mask && mask->defined();
  return at::scaled_dot_product_attention(query, key, value, masked ? mask : std::nullopt, dropout, causal, scale);
}

// The 2.11 form has alpha and out_dtype before transpose.
inline at::Tensor _cslt_sparse_mm(const at::Tensor &compressed, const at::Tensor &dense, const MaybeTensor &bias, bool transpose) {
  return at::_cslt_sparse_mm(compressed, dense, bias, std::nullopt, std::nullopt, transpose);
}

// The 2.1 forms also returned the largest absolute value of the result. Nothing in 2.11 does.
using ScaledProduct = std::tuple<at::Tensor, at::Tensor>;
[[noreturn]] inline void refuse_scaled_mm() { TORCH_CHECK(false, "gotch's _scaled_mm does not exist on LibTorch 2.11"); }

inline ScaledProduct _scaled_mm(const at::Tensor &, const at::Tensor &, const MaybeTensor &, std::optional<at::ScalarType>,
                                const MaybeTensor &, const MaybeTensor &, const MaybeTensor &) {
  refuse_scaled_mm();
}
inline ScaledProduct _scaled_mm_out(at::Tensor &, at::Tensor &, const at::Tensor &, const at::Tensor &, const MaybeTensor &,
                                    std::optional<at::ScalarType>, const MaybeTensor &, const MaybeTensor &, const MaybeTensor &) {
  refuse_scaled_mm();
}

}  // namespace torch
#endif
