// Frozen matrices in the blocks of a GGUF file (mgrpo/quant.h).
#pragma once
#include <ATen/core/Tensor.h>

// Rows of one type: uint8 [rows, bytes of a row of k weights].
struct Blocks {
  at::Tensor data;
  int32_t type;
  int64_t k;

  int64_t rows() const { return data.size(0); }
};

// Throws unless data are whole rows of k weights of this type on the device of `like`.
Blocks blocks(const at::Tensor &data, int32_t type, int64_t k, const at::Tensor &like);

// y = x w^T: x [R, k], y [R, w.rows()], whose rows may be apart, both float32 or bfloat16, or on a GPU y float32 and x bfloat16. Weights
// are widened a few rows at a time. On the CPU a row of y depends only on that row of x.
void quant_product(const at::Tensor &x, const Blocks &w, at::Tensor y);

// The gradient of x: dx = dy w, or dx += dy w if add. dx [R, k] is contiguous, of dy's type or float32. Products with the pieces of w are
// added up in float32, and rounded once if dx is not float32.
void quant_product_bwd(const at::Tensor &dy, const Blocks &w, at::Tensor dx, bool add);

// A head's w is [V, D], or V rows of D weights in blocks of a type. Throws unless h [N, D] fits w and has its dtype if that is not
// quantised.
void check_head(const at::Tensor &h, const at::Tensor &w, int32_t type);

// logits = h w^T, of the type logits_type(h) (kernel.h).
void head_product(at::Tensor &logits, const at::Tensor &h, const at::Tensor &w, int32_t type);

// The gradient of h: dh = dlogits w.
void head_product_bwd(at::Tensor &dh, const at::Tensor &dlogits, const at::Tensor &w, int32_t type);
