// Kernels that LibTorch has for GPUs alone, as operations of float32: FlashAttention's of varying lengths, one segment after the other,
// and products of 16-bit numbers whose sums are float32.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

namespace {

using at::Tensor;
using Size = std::optional<int64_t>;

struct Masked {
  bool causal;
  int64_t before, after;  // keys before and after a query's own that it sees; -1: all

  // Scores of keys that a query does not see are -Inf. The last query and the last key are at one position.
  Tensor of(const Tensor &scores) const {
    const int64_t n = scores.size(1), m = scores.size(2);
    auto position = at::arange(m - n, m, scores.options().dtype(at::kLong)).unsqueeze(1),
         key = at::arange(m, position.options()).unsqueeze(0);
    auto hidden = key > position + (causal ? 0 : after < 0 ? m : after);
    if (before >= 0) hidden = hidden.logical_or(key < position - before);
    return scores.masked_fill(hidden, -INFINITY);
  }
};

std::vector<int64_t> numbers(const Tensor &cu) {
  auto host = cu.to(at::kCPU).to(at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// Rows [from, to) of t [T, heads, d], each head repeated, as float32 [heads, rows, d].
Tensor part(const Tensor &t, int64_t from, int64_t to, int64_t repeat) {
  return t.narrow(0, from, to - from).to(at::kFloat).repeat_interleave(repeat, 1, t.size(1) * repeat).transpose(0, 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(const Tensor &q, const Tensor &k, const Tensor &v,
                                                           const std::optional<Tensor> &cu_q, const std::optional<Tensor> &cu_k, int64_t,
                                                           int64_t, double, bool causal, bool, std::optional<double> scale, Size before,
                                                           Size after, const std::optional<Tensor> &, const std::optional<Tensor> &) {
  TORCH_CHECK(cu_q && cu_k && q.scalar_type() != at::kFloat, "the emulated GPU's flash attention takes ragged batches of 16-bit numbers");
  const auto queries = numbers(*cu_q), keys = numbers(*cu_k);
  const int64_t group = q.size(1) / k.size(1);
  const double by = scale.value_or(1 / std::sqrt(double(q.size(2))));
  const Masked mask{causal, before.value_or(-1), after.value_or(-1)};
  auto out = at::empty_like(q), sums = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for (size_t s = 0; s + 1 < queries.size(); s++) {
    const int64_t from = queries[s], n = queries[s + 1] - from;
    if (n == 0) continue;
    auto scores = mask.of(at::matmul(part(q, from, from + n, 1), part(k, keys[s], keys[s + 1], group).transpose(1, 2)) * by);
    auto lse = scores.logsumexp(2);
    out.narrow(0, from, n).copy_(at::matmul((scores - lse.unsqueeze(2)).exp(), part(v, keys[s], keys[s + 1], group)).transpose(0, 1));
    sums.narrow(1, from, n).copy_(lse);
  }
  auto none = at::empty({0}, q.options());
  return {out, sums, at::empty({2}, q.options().dtype(at::kLong)), none, none};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor &dout, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &out,
                                            const Tensor &sums, const Tensor &cu_q, const Tensor &cu_k, int64_t, int64_t, double,
                                            bool causal, const Tensor &, const Tensor &, std::optional<double> scale, Size before,
                                            Size after) {
  const auto queries = numbers(cu_q), keys = numbers(cu_k);
  const int64_t heads = k.size(1), group = q.size(1) / heads, d = q.size(2);
  const double by = scale.value_or(1 / std::sqrt(double(d)));
  const Masked mask{causal, before.value_or(-1), after.value_or(-1)};
  auto dq = at::empty_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  for (size_t s = 0; s + 1 < queries.size(); s++) {
    const int64_t from = queries[s], n = queries[s + 1] - from, first = keys[s], m = keys[s + 1] - first;
    if (n == 0) continue;
    auto Q = part(q, from, from + n, 1), K = part(k, first, first + m, group), V = part(v, first, first + m, group),
         D = part(dout, from, from + n, 1);
    auto P = (mask.of(at::matmul(Q, K.transpose(1, 2)) * by) - sums.narrow(1, from, n).unsqueeze(2)).exp();
    auto dP = at::matmul(D, V.transpose(1, 2)), row = (D * part(out, from, from + n, 1)).sum(2, true);
    auto dS = P * (dP - row) * by;
    auto grouped = [&](const Tensor &t) { return t.reshape({heads, group, m, d}).sum(1).transpose(0, 1); };
    dq.narrow(0, from, n).copy_(at::matmul(dS, K).transpose(0, 1));
    dk.narrow(0, first, m).copy_(grouped(at::matmul(dS.transpose(1, 2), Q)));
    dv.narrow(0, first, m).copy_(grouped(at::matmul(P.transpose(1, 2), D)));
  }
  return {dq, dk, dv};
}

void check_wide(const Tensor &a, const Tensor &b, at::ScalarType out) {
  TORCH_CHECK((a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf) && a.scalar_type() == b.scalar_type() && out == at::kFloat,
              "a GPU gives products of 16-bit numbers in float32, not those of ", a.scalar_type(), " and ", b.scalar_type(), " in ", out);
}

Tensor mm_wide(const Tensor &a, const Tensor &b, at::ScalarType out) {
  check_wide(a, b, out);
  return at::mm(a.to(out), b.to(out));
}

Tensor &mm_wide_out(const Tensor &a, const Tensor &b, at::ScalarType type, Tensor &out) {
  check_wide(a, b, type);
  TORCH_CHECK(out.scalar_type() == type, "the product's type is not the result's");
  return out.copy_(at::mm(a.to(type), b.to(type)));
}

Tensor &addmm_wide_out(const Tensor &self, const Tensor &a, const Tensor &b, at::ScalarType type, const at::Scalar &beta,
                       const at::Scalar &alpha, Tensor &out) {
  check_wide(a, b, type);
  TORCH_CHECK(out.scalar_type() == type && self.scalar_type() == type, "the product's type is not the sum's");
  return out.copy_(at::addmm(self, a.to(type), b.to(type), beta, alpha));
}

// Rows of x by the matrix of their group, w [groups, in, out]. The rows of group g end before
// ends[g]. The host does not receive the numbers.
Tensor grouped(const Tensor &x, const Tensor &w, const std::optional<Tensor> &ends, const std::optional<Tensor> &bias,
               std::optional<at::ScalarType> type) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && w.scalar_type() == at::kBFloat16 && !bias && !type && ends &&
                  ends->scalar_type() == at::kInt && x.dim() == 2 && w.dim() == 3 && ends->size(0) == w.size(0),
              "the emulated GPU multiplies groups of rows in bfloat16 alone");
  for (const auto &t : {x, w}) {
    TORCH_CHECK(reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0, "a factor of a grouped product is not on 16 bytes");
    const bool across = t.stride(-1) == 1;
    TORCH_CHECK((across || t.stride(-2) == 1) && t.stride(across ? -2 : -1) % 8 == 0,
                "rows of a grouped product's factor are not of whole 16 bytes");
  }
  auto row = at::ones({x.size(0)}, ends->options()).cumsum(0, at::kInt) - 1;
  auto y = at::zeros({x.size(0), w.size(2)}, x.options().dtype(at::kFloat));
  for (int64_t g = 0; g < w.size(0); g++) {
    auto mine = row < ends->select(0, g);
    if (g > 0) mine = mine * (row >= ends->select(0, g - 1));
    y = y + mine.unsqueeze(1) * at::mm(x.to(at::kFloat), w.select(0, g).to(at::kFloat));
  }
  return y.to(at::kBFloat16);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("mm.dtype", TORCH_FN(mm_wide));
  m.impl("mm.dtype_out", TORCH_FN(mm_wide_out));
  m.impl("addmm.dtype_out", TORCH_FN(addmm_wide_out));
  m.impl("_grouped_mm", TORCH_FN(grouped));
  m.impl("_flash_attention_forward", TORCH_FN(forward));
  m.impl("_flash_attention_backward", TORCH_FN(backward));
}

}  // namespace
