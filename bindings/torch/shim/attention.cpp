// Attention over packed sequences, for training and scoring, and over a key-value cache, for generation.
// CPU float32 runs our kernels; other tensors run LibTorch's attention.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "guard.h"
#include "kernel.h"
#include "mgrpo/nn.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor packed(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu, double scale, at::Tensor *lse_out) {
  auto out = at::empty_like(q), lse = at::empty({q.size(0), q.size(1)}, q.options());
  check_status(mgrpo_attention_packed_cpu(q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
                                          cu.const_data_ptr<int32_t>(), cu.size(0) - 1, out.mutable_data_ptr<float>(),
                                          lse.mutable_data_ptr<float>(), q.size(1), k.size(1), q.size(2), float(scale)));
  if (lse_out) *lse_out = lse;
  return out;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                            const at::Tensor &cu, double scale) {
    at::Tensor lse;
    auto out = packed(q, k, v, cu, scale, &lse);
    ctx->save_for_backward({q, k, v, cu, out, lse});
    ctx->saved_data["scale"] = scale;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &cu = saved[3], &out = saved[4], &lse = saved[5];
    auto dout = grads[0].contiguous(), dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    check_status(mgrpo_attention_packed_bwd_cpu(
        dout.const_data_ptr<float>(), q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
        out.const_data_ptr<float>(), lse.const_data_ptr<float>(), cu.const_data_ptr<int32_t>(), cu.size(0) - 1,
        dq.mutable_data_ptr<float>(), dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>(), q.size(1), k.size(1),
        q.size(2), float(ctx->saved_data["scale"].toDouble())));
    return {dq, dk, dv, {}, {}};
  }
};

std::vector<int64_t> read_offsets(const at::Tensor &cu) {
  auto host = cu.to(at::kCPU, at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// The offsets on the host. A model asks with the same tensor in every layer, so the last answer is kept
// for a GPU, where each copy would wait for all work before it.
std::vector<int64_t> offsets(const at::Tensor &cu) {
  using Strong = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  thread_local struct {
    std::optional<Weak> tensor;
    int64_t version = 0;
    std::vector<int64_t> values;
  } last;
  if (cu.is_cpu()) return read_offsets(cu);
  auto known = last.tensor ? last.tensor->lock() : Strong();
  if (!known.defined() || known.get() != cu.unsafeGetTensorImpl() || last.version != int64_t(cu._version())) {
    last.values = read_offsets(cu);
    last.tensor = Weak(cu.getIntrusivePtr());
    last.version = cu._version();
  }
  return last.values;
}

void check_offsets(const std::vector<int64_t> &cu, int64_t rows) {
  bool ordered = cu.front() == 0 && cu.back() == rows && std::is_sorted(cu.begin(), cu.end());
  TORCH_CHECK(ordered, "cu must rise from 0 to the number of rows, ", rows);
}

at::Tensor packed_composite(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu,
                            const std::vector<int64_t> &at_host, double scale) {
  bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (q.is_cuda() && half && q.size(2) <= 256 && q.size(2) % 8 == 0) {
    int64_t longest = 0;
    for (size_t i = 1; i < at_host.size(); i++) longest = std::max(longest, at_host[i] - at_host[i - 1]);
    return std::get<0>(at::_flash_attention_forward(q, k, v, cu, cu, longest, longest, 0.0, /*is_causal=*/true, false, scale));
  }
  std::vector<at::Tensor> outs;
  for (size_t i = 1; i < at_host.size(); i++) {
    int64_t from = at_host[i - 1], n = at_host[i] - from;
    if (n == 0) continue;
    auto part = [&](const at::Tensor &t) { return t.narrow(0, from, n).transpose(0, 1).unsqueeze(0); };
    outs.push_back(at::scaled_dot_product_attention(part(q), part(k), part(v), {}, 0.0, true, scale, true).squeeze(0).transpose(0, 1));
  }
  return outs.empty() ? at::empty_like(q) : at::cat(outs, 0);
}

// Each row's keys and values are gathered; the query heads of a group are the rows of one small attention.
at::Tensor cached_composite(const at::Tensor &q, const at::Tensor &kc, const at::Tensor &vc, const at::Tensor &slot,
                            const at::Tensor &length, double scale) {
  int64_t rows = q.size(0), heads = q.size(1), kv = kc.size(1), hd = q.size(2);
  if (rows == 0) return at::empty_like(q);
  int64_t longest = length.max().item<int64_t>(), shortest = length.min().item<int64_t>();
  TORCH_CHECK(shortest >= 1 && longest <= kc.size(2), "lengths must be from 1 to ", kc.size(2));
  auto k = kc.narrow(2, 0, longest).index_select(0, slot), v = vc.narrow(2, 0, longest).index_select(0, slot);
  auto seen = at::arange(longest, length.options()).unsqueeze(0) < length.unsqueeze(1);
  auto out = at::scaled_dot_product_attention(q.reshape({rows, kv, heads / kv, hd}), k, v, seen.view({rows, 1, 1, longest}), 0.0, false, scale);
  return out.reshape({rows, heads, hd});
}

void check_cache(const at::Tensor &cache, int64_t kv, int64_t hd, const at::Tensor &like) {
  TORCH_CHECK(cache.dim() == 4 && cache.size(1) == kv && cache.size(3) == hd && cache.is_contiguous() && cache.scalar_type() == like.scalar_type(),
              "the cache must be [S, ", kv, ", L, ", hd, "] of ", like.scalar_type(), " and contiguous");
}

}  // namespace

mgt_tensor mgt_attention_packed(mgt_device *d, void *q, void *k, void *v, void *cu, double scale) {
  return make(d, [&] {
    const auto &Q = ref(q), &K = ref(k), &V = ref(v), &CU = ref(cu);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 3 && K.sizes() == V.sizes() && Q.size(0) == K.size(0) && Q.size(2) == K.size(2) &&
                    K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], k and v [T, KV, hd] with H a multiple of KV");
    TORCH_CHECK(Q.scalar_type() == K.scalar_type() && Q.scalar_type() == V.scalar_type(), "q, k and v must have one dtype");
    TORCH_CHECK(CU.dim() == 1 && CU.size(0) >= 1, "cu must be int32 [B+1]");
    int32s(CU, CU.size(0), "cu");
    auto at_host = offsets(CU);
    check_offsets(at_host, Q.size(0));
    if (!cpu_fp32(Q, K, V)) return packed_composite(Q, K, V, CU, at_host, scale);
    auto qc = Q.contiguous(), kc = K.contiguous(), vc = V.contiguous();
    return recorded(Q, K, V) ? Packed::apply(qc, kc, vc, CU, scale) : packed(qc, kc, vc, CU, scale, nullptr);
  });
}

char *mgt_cache_write_(mgt_device *d, void *cache, void *x, void *slot, void *pos) {
  return run(d, [&] {
    at::NoGradGuard no_grad;
    auto &C = ref(cache);
    const auto &X = ref(x), &S = ref(slot), &P = ref(pos);
    TORCH_CHECK(X.dim() == 3, "x must be [T, KV, hd]");
    int64_t rows = X.size(0);
    check_cache(C, X.size(1), X.size(2), X);
    auto slots = int32s(S, rows, "slot"), positions = int32s(P, rows, "pos");
    if (cpu_fp32(C)) {
      auto xc = X.contiguous();
      check_status(mgrpo_cache_write_cpu(C.mutable_data_ptr<float>(), xc.const_data_ptr<float>(), slots, positions, rows, C.size(0),
                                         C.size(1), C.size(2), C.size(3)),
                   ": is every slot and position inside the cache?");
      return;
    }
    C.transpose(1, 2).index_put_({S, P}, X);
  });
}

mgt_tensor mgt_attention_cached(mgt_device *d, void *q, void *k_cache, void *v_cache, void *slot, void *length, double scale) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    const auto &Q = ref(q), &K = ref(k_cache), &V = ref(v_cache), &S = ref(slot), &L = ref(length);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 4 && K.sizes() == V.sizes() && K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], the caches [S, KV, L, hd] with H a multiple of KV");
    for (const auto *cache : {&K, &V}) check_cache(*cache, K.size(1), Q.size(2), Q);
    auto slots = int32s(S, Q.size(0), "slot"), lengths = int32s(L, Q.size(0), "length");
    if (!cpu_fp32(Q)) return cached_composite(Q, K, V, S, L, scale);
    auto qc = Q.contiguous(), out = at::empty_like(qc);
    check_status(mgrpo_attention_cached_cpu(qc.const_data_ptr<float>(), K.const_data_ptr<float>(), V.const_data_ptr<float>(), slots,
                                            lengths, out.mutable_data_ptr<float>(), Q.size(0), K.size(0), Q.size(1), K.size(1),
                                            K.size(2), Q.size(2), float(scale)),
                 ": is every slot and length inside the cache?");
    return out;
  });
}
