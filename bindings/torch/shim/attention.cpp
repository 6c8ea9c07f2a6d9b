// Attention over packed sequences, for training and scoring, and over a key-value cache, for generation.
// CPU float32 runs our kernels; other tensors run LibTorch's attention.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tril.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "guard.h"
#include "kernel.h"
#include "mgrpo/nn.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaybeTensor = std::optional<at::Tensor>;

const int32_t *data_or_null(const MaybeTensor &t) { return t ? t->const_data_ptr<int32_t>() : nullptr; }

at::Tensor packed(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu,
                  const MaybeTensor &parent, double scale, at::Tensor *lse_out) {
  auto out = at::empty_like(q), lse = at::empty({q.size(0), q.size(1)}, q.options());
  check_status(mgrpo_attention_packed_cpu(q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
                                          cu.const_data_ptr<int32_t>(), data_or_null(parent), cu.size(0) - 1,
                                          out.mutable_data_ptr<float>(), lse.mutable_data_ptr<float>(), q.size(1), k.size(1),
                                          q.size(2), float(scale)));
  if (lse_out) *lse_out = lse;
  return out;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                            const at::Tensor &cu, const MaybeTensor &parent, double scale) {
    at::Tensor lse;
    auto out = packed(q, k, v, cu, parent, scale, &lse);
    ctx->save_for_backward({q, k, v, cu, parent.value_or(at::Tensor()), out, lse});
    ctx->saved_data["scale"] = scale;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &cu = saved[3], &out = saved[5], &lse = saved[6];
    MaybeTensor parent = saved[4].defined() ? MaybeTensor(saved[4]) : std::nullopt;
    auto dout = grads[0].contiguous(), dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    check_status(mgrpo_attention_packed_bwd_cpu(
        dout.const_data_ptr<float>(), q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
        out.const_data_ptr<float>(), lse.const_data_ptr<float>(), cu.const_data_ptr<int32_t>(),
        data_or_null(parent), cu.size(0) - 1, dq.mutable_data_ptr<float>(),
        dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>(), q.size(1), k.size(1), q.size(2),
        float(ctx->saved_data["scale"].toDouble())));
    return {dq, dk, dv, {}, {}, {}};
  }
};

std::vector<int64_t> read_int64s(const at::Tensor &t) {
  auto host = t.to(at::kCPU, at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// How packed rows see each other, as LibTorch's attention wants it.
struct Segments {
  std::vector<int64_t> cu, parent;   // parent is empty where there are none
  std::vector<int64_t> seen, key_cu; // rows that segment s sees, in the order of their positions: seen[key_cu[s]] to seen[key_cu[s+1]-1]
  int64_t longest = 0, longest_keys = 0;
  at::Tensor seen_rows, key_offsets; // seen (int64) and key_cu (int32) on the device of cu, for a GPU

  int64_t size() const { return int64_t(cu.size()) - 1; }
  int64_t rows(int64_t s) const { return cu[s + 1] - cu[s]; }
  int64_t keys(int64_t s) const { return parent.empty() ? rows(s) : key_cu[s + 1] - key_cu[s]; }
};

Segments read_segments(const at::Tensor &cu, const MaybeTensor &parent, int64_t rows) {
  Segments g;
  g.cu = read_int64s(cu);
  TORCH_CHECK(g.cu.front() == 0 && g.cu.back() == rows && std::is_sorted(g.cu.begin(), g.cu.end()),
              "cu must rise from 0 to the number of rows, ", rows);
  if (parent) g.parent = read_int64s(*parent);
  for (size_t s = 0; s < g.parent.size(); s++)
    TORCH_CHECK(g.parent[s] >= -1 && g.parent[s] < int64_t(s), "the parent of segment ", s, " must come before it, got ", g.parent[s]);
  return g;
}

// The rows each segment sees, which our own kernels do not need.
void list_keys(Segments &g, const at::Tensor &cu) {
  g.key_cu.push_back(0);
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t p = g.parent.empty() ? -1 : g.parent[s];
    if (p >= 0)
      for (int64_t i = g.key_cu[p]; i < g.key_cu[p + 1]; i++) g.seen.push_back(int64_t(g.seen[i]));
    for (int64_t r = g.cu[s]; r < g.cu[s + 1]; r++) g.seen.push_back(r);
    g.key_cu.push_back(int64_t(g.seen.size()));
    g.longest = std::max(g.longest, g.rows(s));
    g.longest_keys = std::max(g.longest_keys, g.keys(s));
  }
  if (!cu.is_cuda() || g.parent.empty()) return;
  g.seen_rows = at::empty({int64_t(g.seen.size())}, at::kLong);
  std::copy(g.seen.begin(), g.seen.end(), g.seen_rows.mutable_data_ptr<int64_t>());
  g.key_offsets = at::empty({int64_t(g.key_cu.size())}, at::kInt);
  std::copy(g.key_cu.begin(), g.key_cu.end(), g.key_offsets.mutable_data_ptr<int32_t>());
  g.seen_rows = g.seen_rows.to(cu.device());
  g.key_offsets = g.key_offsets.to(cu.device());
}

// A tensor as it was at one moment, without keeping it alive.
class Moment {
 public:
  explicit Moment(const at::Tensor &t) : tensor_(t.getIntrusivePtr()), version_(int64_t(t._version())) {}
  bool is(const at::Tensor &t) const {
    auto known = tensor_.lock();
    return known.defined() && known.get() == t.unsafeGetTensorImpl() && version_ == int64_t(t._version());
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  int64_t version_;
};

// A model asks with the same tensors in every layer, so the last answer is kept for a GPU, where each copy
// to the host would wait for all work before it.
const Segments &gpu_segments(const at::Tensor &cu, const MaybeTensor &parent, int64_t rows) {
  struct Answer {
    Moment cu;
    std::optional<Moment> parent;
    Segments segments;
  };
  thread_local std::optional<Answer> last;
  bool known = last && last->cu.is(cu) && last->parent.has_value() == parent.has_value() && (!parent || last->parent->is(*parent));
  if (!known) {
    last.reset();
    auto g = read_segments(cu, parent, rows);
    list_keys(g, cu);
    last.emplace(Answer{Moment(cu), parent ? std::optional(Moment(*parent)) : std::nullopt, std::move(g)});
  }
  TORCH_CHECK(last->segments.cu.back() == rows, "cu must rise from 0 to the number of rows, ", rows);
  return last->segments;
}

// One segment after the other. The last query sees the last key, where SDPA's own causal mask would let the
// first one see the first.
at::Tensor packed_composite(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const Segments &g, double scale) {
  std::vector<at::Tensor> outs;
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t from = g.cu[s], n = g.rows(s), keys = g.keys(s);
    if (n == 0) continue;
    auto batched = [](const at::Tensor &t) { return t.transpose(0, 1).unsqueeze(0); };
    at::Tensor ks = k.narrow(0, from, n), vs = v.narrow(0, from, n), mask;
    if (keys > n) {
      std::vector<at::Tensor> kp{ks}, vp{vs};
      for (int64_t a = g.parent[s]; a >= 0; a = g.parent[a]) {
        kp.insert(kp.begin(), k.narrow(0, g.cu[a], g.rows(a)));
        vp.insert(vp.begin(), v.narrow(0, g.cu[a], g.rows(a)));
      }
      ks = at::cat(kp, 0), vs = at::cat(vp, 0);
      mask = at::ones({n, keys}, q.options().dtype(at::kBool)).tril(keys - n);
    }
    outs.push_back(at::scaled_dot_product_attention(batched(q.narrow(0, from, n)), batched(ks), batched(vs),
                                                    mask.defined() ? std::optional(mask) : std::nullopt, 0.0, !mask.defined(), scale, true)
                       .squeeze(0)
                       .transpose(0, 1));
  }
  return outs.empty() ? at::empty_like(q) : at::cat(outs, 0);
}

// Flash attention over ragged batches: where there are more keys than queries, the last of each belong together.
at::Tensor packed_flash(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu, const Segments &g, double scale) {
  bool shared = !g.parent.empty();
  auto ks = shared ? k.index_select(0, g.seen_rows) : k, vs = shared ? v.index_select(0, g.seen_rows) : v;
  return std::get<0>(at::_flash_attention_forward(q, ks, vs, cu, shared ? g.key_offsets : cu, g.longest, g.longest_keys, 0.0,
                                                  /*is_causal=*/true, false, scale));
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

mgt_tensor mgt_attention_packed(mgt_device *d, void *q, void *k, void *v, void *cu, void *parent_or_null, double scale) {
  return make(d, [&] {
    const auto &Q = ref(q), &K = ref(k), &V = ref(v), &CU = ref(cu);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 3 && K.sizes() == V.sizes() && Q.size(0) == K.size(0) && Q.size(2) == K.size(2) &&
                    K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], k and v [T, KV, hd] with H a multiple of KV");
    TORCH_CHECK(Q.scalar_type() == K.scalar_type() && Q.scalar_type() == V.scalar_type(), "q, k and v must have one dtype");
    TORCH_CHECK(CU.dim() == 1 && CU.size(0) >= 1, "cu must be int32 [B+1]");
    int32s(CU, CU.size(0), "cu");
    auto parent = parent_or_null ? MaybeTensor(ref(parent_or_null)) : std::nullopt;
    if (parent) int32s(*parent, CU.size(0) - 1, "parent");
    if (Q.is_cuda()) {
      const auto &g = gpu_segments(CU, parent, Q.size(0));
      bool half = Q.scalar_type() == at::kHalf || Q.scalar_type() == at::kBFloat16;
      bool flash = half && Q.size(2) <= 256 && Q.size(2) % 8 == 0;
      return flash ? packed_flash(Q, K, V, CU, g, scale) : packed_composite(Q, K, V, g, scale);
    }
    auto g = read_segments(CU, parent, Q.size(0));
    if (!cpu_fp32(Q, K, V)) {
      list_keys(g, CU);
      return packed_composite(Q, K, V, g, scale);
    }
    auto qc = Q.contiguous(), kc = K.contiguous(), vc = V.contiguous();
    return recorded(Q, K, V) ? Packed::apply(qc, kc, vc, CU, parent, scale) : packed(qc, kc, vc, CU, parent, scale, nullptr);
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
