// Attention over packed sequences, for training and scoring, and over a key-value cache, for generation.
// CPU float32 runs our kernels; other tensors run LibTorch's attention, except that rows which are decoded on a GPU, in float32
// or bfloat16, run ours too.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "mgrpo/nn.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaybeTensor = std::optional<at::Tensor>;

const int32_t *data_or_null(const MaybeTensor &t) { return t ? t->const_data_ptr<int32_t>() : nullptr; }

at::Tensor packed(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu,
                  const MaybeTensor &follows, double scale, int64_t window, at::Tensor *lse_out) {
  auto out = at::empty_like(q), lse = at::empty({q.size(0), q.size(1)}, q.options());
  check_status(mgrpo_attention_packed_cpu(q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
                                          cu.const_data_ptr<int32_t>(), data_or_null(follows), cu.size(0) - 1,
                                          out.mutable_data_ptr<float>(), lse.mutable_data_ptr<float>(), q.size(1), k.size(1),
                                          q.size(2), float(scale), window));
  if (lse_out) *lse_out = lse;
  return out;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                            const at::Tensor &cu, const MaybeTensor &follows, double scale, int64_t window) {
    at::Tensor lse;
    auto out = packed(q, k, v, cu, follows, scale, window, &lse);
    ctx->save_for_backward({q, k, v, cu, follows.value_or(at::Tensor()), out, lse});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &cu = saved[3], &out = saved[5], &lse = saved[6];
    MaybeTensor follows = saved[4].defined() ? MaybeTensor(saved[4]) : std::nullopt;
    auto dout = grads[0].contiguous(), dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    check_status(mgrpo_attention_packed_bwd_cpu(
        dout.const_data_ptr<float>(), q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
        out.const_data_ptr<float>(), lse.const_data_ptr<float>(), cu.const_data_ptr<int32_t>(),
        data_or_null(follows), cu.size(0) - 1, dq.mutable_data_ptr<float>(),
        dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>(), q.size(1), k.size(1), q.size(2),
        float(ctx->saved_data["scale"].toDouble()), ctx->saved_data["window"].toInt()));
    return {dq, dk, dv, {}, {}, {}, {}};
  }
};

std::vector<int64_t> read_int64s(const at::Tensor &t) {
  auto host = t.to(at::kCPU, at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// Which keys each row attends to, in the form that LibTorch's attention takes.
struct Segments {
  std::vector<int64_t> cu, follows;  // follows is empty where every segment is a sequence
  std::vector<int64_t> seen, key_cu; // the last row of segment s sees seen[key_cu[s]] to seen[key_cu[s+1]-1], by position
  int64_t longest = 0, longest_keys = 0;
  at::Tensor seen_rows, key_offsets; // seen (int64) and key_cu (int32) on the device; undefined where follows is empty

  int64_t size() const { return int64_t(cu.size()) - 1; }
};

Segments read_segments(const at::Tensor &cu, const MaybeTensor &follows, int64_t rows) {
  Segments g;
  g.cu = read_int64s(cu);
  TORCH_CHECK(g.cu.front() == 0 && g.cu.back() == rows && std::is_sorted(g.cu.begin(), g.cu.end()),
              "cu must rise from 0 to the number of rows, ", rows);
  if (follows) g.follows = read_int64s(*follows);
  for (size_t s = 0; s < g.follows.size(); s++)
    TORCH_CHECK(g.follows[s] >= -1 && g.follows[s] < g.cu[s], "segment ", s, " must follow a row before its first, ", g.cu[s], ", got ", g.follows[s]);
  return g;
}

// The rows that each segment sees, which our own kernels do not need.
void list_keys(Segments &g, at::Device device) {
  g.key_cu.push_back(0);
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t row = g.follows.empty() ? -1 : g.follows[s];
    if (row >= 0) {
      int64_t p = std::upper_bound(g.cu.begin(), g.cu.end(), row) - g.cu.begin() - 1; // holds the row
      int64_t n = g.key_cu[p + 1] - g.key_cu[p] - (g.cu[p + 1] - 1 - row);
      for (int64_t i = g.key_cu[p]; i < g.key_cu[p] + n; i++) g.seen.push_back(int64_t(g.seen[i]));
    }
    for (int64_t r = g.cu[s]; r < g.cu[s + 1]; r++) g.seen.push_back(r);
    g.key_cu.push_back(int64_t(g.seen.size()));
    g.longest = std::max(g.longest, g.cu[s + 1] - g.cu[s]);
    g.longest_keys = std::max(g.longest_keys, g.key_cu[s + 1] - g.key_cu[s]);
  }
  if (g.follows.empty()) return;
  auto on_device = [&](const std::vector<int64_t> &v) { return at::tensor(v, at::kLong).to(device); };
  g.seen_rows = on_device(g.seen);
  g.key_offsets = on_device(g.key_cu).to(at::kInt);
}

// Identifies a tensor and its contents at one moment, without keeping it alive.
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

// Every layer of a model passes the same tensors. On a GPU each copy to the host would wait for all work before it, so
// the last result is kept.
const Segments &gpu_segments(const at::Tensor &cu, const MaybeTensor &follows, int64_t rows) {
  struct Answer {
    Moment cu;
    std::optional<Moment> follows;
    Segments segments;
  };
  thread_local std::optional<Answer> last;
  bool known = last && last->cu.is(cu) && last->follows.has_value() == follows.has_value() && (!follows || last->follows->is(*follows));
  if (!known) {
    last.reset();
    auto g = read_segments(cu, follows, rows);
    list_keys(g, cu.device());
    last.emplace(Answer{Moment(cu), follows ? std::optional(Moment(*follows)) : std::nullopt, std::move(g)});
  }
  TORCH_CHECK(last->segments.cu.back() == rows, "cu must rise from 0 to the number of rows, ", rows);
  return last->segments;
}

// Of a mask, which LibTorch holds as a whole.
constexpr int64_t kMostMasked = 16 << 20;

// One segment after the other. The last query sees the last key, where SDPA's own causal mask would let the first one see the
// first: a mask of our own says so, for as many rows at a time as it may have elements.
at::Tensor attend_in_turn(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const Segments &g, double scale, int64_t window) {
  std::vector<at::Tensor> outs;
  auto part = [](const at::Tensor &t, int64_t from, int64_t n) { return t.narrow(0, from, n).transpose(0, 1).unsqueeze(0); };
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t n = g.cu[s + 1] - g.cu[s], keys = g.key_cu[s + 1] - g.key_cu[s];
    bool windowed = window > 0 && window < keys, masked = keys > n || windowed;
    int64_t at_once = masked ? std::max<int64_t>(1, kMostMasked / std::max<int64_t>(1, keys)) : n;
    for (int64_t from = 0, rows; from < n; from += rows) {
      rows = std::min(at_once, n - from);
      int64_t position = keys - n + from, first = windowed ? std::max<int64_t>(0, position + 1 - window) : 0, seen = position + rows - first;
      MaybeTensor mask;
      if (masked) mask = at::ones({rows, seen}, q.options().dtype(at::kBool)).tril(position - first);
      if (windowed) mask = mask->triu(position - first - window + 1);
      auto out = at::scaled_dot_product_attention(part(q, g.cu[s] + from, rows), part(k, g.key_cu[s] + first, seen),
                                                  part(v, g.key_cu[s] + first, seen), mask, 0.0, /*is_causal=*/!masked, scale, true);
      outs.push_back(out.squeeze(0).transpose(0, 1));
    }
  }
  return outs.empty() ? at::empty_like(q) : at::cat(outs, 0);
}

// Keys and values are gathered for each segment. Flash attention takes ragged batches, and where it is given
// more keys than queries, the last of each belong together.
at::Tensor packed_composite(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu, const Segments &g, double scale,
                            int64_t window) {
  bool shared = g.seen_rows.defined(), half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  auto ks = shared ? k.index_select(0, g.seen_rows) : k, vs = shared ? v.index_select(0, g.seen_rows) : v;
  if (!q.is_cuda() || !half || q.size(2) > 256 || q.size(2) % 8 != 0) return attend_in_turn(q, ks, vs, g, scale, window);
  auto before = window > 0 ? std::optional<c10::SymInt>(window - 1) : std::nullopt, after = before ? std::optional<c10::SymInt>(0) : std::nullopt;
  return std::get<0>(at::_flash_attention_forward_symint(q, ks, vs, cu, shared ? g.key_offsets : cu, g.longest, g.longest_keys, 0.0,
                                                         /*is_causal=*/true, false, scale, before, after));
}

mgrpo_pages pages_of(const at::Tensor &cache, const at::Tensor &table) {
  return {table.const_data_ptr<int32_t>(), table.size(0), table.size(1), cache.size(0), cache.size(1), cache.size(2), cache.size(3)};
}

// Our kernel, which only enqueues its work on a GPU.
at::Tensor cached(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &table, const at::Tensor &sequence,
                  const at::Tensor &length, double scale, int64_t window) {
  auto qc = q.contiguous(), out = at::empty_like(qc);
  const auto *sequences = sequence.const_data_ptr<int32_t>(), *lengths = length.const_data_ptr<int32_t>();
  if (q.is_cuda())
    check_status(the_cuda_part->attention_cached(qc.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), pages_of(k, table), sequences, lengths,
                                                 int32_t(q.scalar_type()), out.mutable_data_ptr(), q.size(0), q.size(1), float(scale), window,
                                                 stream_of(q)));
  else
    check_status(mgrpo_attention_cached_cpu(qc.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(), pages_of(k, table),
                                            sequences, lengths, out.mutable_data_ptr<float>(), q.size(0), q.size(1), float(scale), window),
                 ": is every sequence and length inside the cache?");
  return out;
}

// The keys or values of sequences at positions [begin, begin + n), [rows, KV, n, hd], gathered from their blocks. What the tables
// name may be anything where a sequence is shorter.
at::Tensor gathered(const at::Tensor &cache, const at::Tensor &tables, int64_t begin, int64_t n) {
  int64_t rows = tables.size(0), kv = cache.size(1), block = cache.size(2), hd = cache.size(3);
  int64_t first = begin / block, blocks = (begin + n + block - 1) / block - first;
  auto which = tables.narrow(1, first, blocks).clamp(0, cache.size(0) - 1).flatten();
  auto all = cache.index_select(0, which).view({rows, blocks, kv, block, hd}).permute({0, 2, 1, 3, 4}).reshape({rows, kv, blocks * block, hd});
  return all.narrow(2, begin - first * block, n);
}

// Rows of one sequence. The n-th query heads of all groups make one batch.
at::Tensor attend_one(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &seen, double scale) {
  int64_t rows = q.size(0), heads = q.size(1), kv = k.size(0), hd = q.size(2), group = heads / kv;
  auto qs = q.reshape({rows, kv, group, hd}).permute({2, 1, 0, 3});
  auto each = [&](const at::Tensor &t) { return t.unsqueeze(0).expand({group, -1, -1, -1}); };
  auto out = at::scaled_dot_product_attention(qs, each(k), each(v), seen.unsqueeze(0).unsqueeze(0), 0.0, false, scale);
  return out.permute({2, 1, 0, 3}).reshape({rows, heads, hd});
}

// One row for each sequence: the query heads of a group are the rows of one small attention.
at::Tensor attend_each(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &seen, double scale) {
  int64_t rows = q.size(0), heads = q.size(1), kv = k.size(1), hd = q.size(2);
  auto out = at::scaled_dot_product_attention(q.reshape({rows, kv, heads / kv, hd}), k, v, seen.unsqueeze(1).unsqueeze(1), 0.0, false, scale);
  return out.reshape({rows, heads, hd});
}

// The end of the rows that one call attends with: consecutive rows of one sequence, as in a prompt, or rows of which each
// has another sequence than the next, as in decoding.
int64_t cached_run(const std::vector<int64_t> &sequences, const std::vector<int64_t> &lengths, int64_t from) {
  int64_t rows = int64_t(sequences.size()), end = from + 1, longest = lengths[from];
  auto continues = [&](int64_t r) { return r < rows && sequences[r] == sequences[r - 1]; };
  for (bool prompt = continues(end); end < rows && (prompt ? continues(end) : !continues(end + 1)); end++) {
    longest = std::max(longest, lengths[end]);
    if (prompt && (end + 1 - from) * longest > kMostMasked) break;
  }
  return end;
}

at::Tensor cached_composite(const at::Tensor &q, const at::Tensor &kc, const at::Tensor &vc, const at::Tensor &table, const at::Tensor &sequence,
                            const at::Tensor &length, double scale, int64_t window) {
  auto out = at::empty(q.sizes(), q.options());
  auto sequences = read_int64s(sequence), lengths = read_int64s(length);
  int64_t most = table.size(1) * kc.size(2);
  for (int64_t n : lengths) TORCH_CHECK(n >= 1 && n <= most, "lengths must be from 1 to ", most);
  for (int64_t from = 0, end; from < q.size(0); from = end) {
    end = cached_run(sequences, lengths, from);
    int64_t rows = end - from;
    auto [shortest, longest] = std::minmax_element(lengths.begin() + from, lengths.begin() + end);
    int64_t begin = window > 0 ? std::max<int64_t>(0, *shortest - window) : 0, keys = *longest - begin;
    auto key = at::arange(begin, *longest, length.options()).unsqueeze(0), ends = length.narrow(0, from, rows).unsqueeze(1), seen = key < ends;
    if (window > 0) seen = seen & (key >= ends - window);
    auto part = q.narrow(0, from, rows), to = out.narrow(0, from, rows), which = sequence.narrow(0, from, rows);
    if (rows > 1 && sequences[from] == sequences[from + 1]) {
      auto one = table.narrow(0, sequences[from], 1);
      to.copy_(attend_one(part, gathered(kc, one, begin, keys)[0], gathered(vc, one, begin, keys)[0], seen, scale));
    } else if (ours(q)) {
      to.copy_(cached(part, kc, vc, table, which, length.narrow(0, from, rows), scale, window));
    } else {
      auto each = table.index_select(0, which);
      to.copy_(attend_each(part, gathered(kc, each, begin, keys), gathered(vc, each, begin, keys), seen, scale));
    }
  }
  return out;
}

void check_cache(const at::Tensor &cache, const at::Tensor &table, int64_t kv, int64_t hd, const at::Tensor &like) {
  TORCH_CHECK(cache.dim() == 4 && cache.size(1) == kv && cache.size(3) == hd && cache.is_contiguous() && cache.scalar_type() == like.scalar_type() &&
                  cache.device() == like.device(),
              "the cache must be [N, ", kv, ", B, ", hd, "] of ", like.scalar_type(), ", contiguous and on ", like.device());
  TORCH_CHECK(table.dim() == 2 && table.is_contiguous() && table.scalar_type() == at::kInt && table.device() == like.device(),
              "the table must be int32 [S, W], contiguous and on ", like.device());
}

}  // namespace

mgt_tensor mgt_attention_packed(mgt_device *d, void *q, void *k, void *v, void *cu, void *follows_or_null, double scale,
                                int64_t window) {
  return make(d, [&] {
    const auto &Q = ref(q), &K = ref(k), &V = ref(v), &CU = ref(cu);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 3 && K.sizes() == V.sizes() && Q.size(0) == K.size(0) && Q.size(2) == K.size(2) &&
                    K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], k and v [T, KV, hd] with H a multiple of KV");
    TORCH_CHECK(Q.scalar_type() == K.scalar_type() && Q.scalar_type() == V.scalar_type(), "q, k and v must have one dtype");
    TORCH_CHECK(CU.dim() == 1 && CU.size(0) >= 1, "cu must be int32 [B+1]");
    TORCH_CHECK(window >= 0, "the window must not be negative, got ", window);
    int32s(CU, CU.size(0), "cu");
    auto follows = follows_or_null ? MaybeTensor(ref(follows_or_null)) : std::nullopt;
    if (follows) int32s(*follows, CU.size(0) - 1, "follows");
    if (Q.is_cuda()) return packed_composite(Q, K, V, CU, gpu_segments(CU, follows, Q.size(0)), scale, window);
    auto g = read_segments(CU, follows, Q.size(0));
    if (!cpu_fp32(Q, K, V)) {
      list_keys(g, at::kCPU);
      return packed_composite(Q, K, V, CU, g, scale, window);
    }
    auto qc = Q.contiguous(), kc = K.contiguous(), vc = V.contiguous();
    return recorded(Q, K, V) ? Packed::apply(qc, kc, vc, CU, follows, scale, window) : packed(qc, kc, vc, CU, follows, scale, window, nullptr);
  });
}

char *mgt_cache_write_(mgt_device *d, void *cache, void *x, void *table, void *sequence, void *pos) {
  return run(d, [&] {
    at::NoGradGuard no_grad;
    auto &C = ref(cache);
    const auto &X = ref(x), &T = ref(table), &S = ref(sequence), &P = ref(pos);
    TORCH_CHECK(X.dim() == 3, "x must be [T, KV, hd]");
    int64_t rows = X.size(0), block = C.size(2);
    check_cache(C, T, X.size(1), X.size(2), X);
    auto sequences = int32s(S, rows, "sequence", X), positions = int32s(P, rows, "pos", X);
    auto xc = X.contiguous();
    if (C.is_cuda() && ours(C)) {
      check_status(the_cuda_part->cache_write(C.mutable_data_ptr(), xc.const_data_ptr(), pages_of(C, T), sequences, positions,
                                              int32_t(C.scalar_type()), rows, stream_of(C)));
      return;
    }
    if (cpu_fp32(C)) {
      check_status(mgrpo_cache_write_cpu(C.mutable_data_ptr<float>(), xc.const_data_ptr<float>(), pages_of(C, T), sequences, positions, rows),
                   ": is every sequence and position inside the cache?");
      return;
    }
    auto which = T.index({S, P.floor_divide(block)});
    C.transpose(1, 2).index_put_({which, P.remainder(block)}, xc);
  });
}

mgt_tensor mgt_attention_cached(mgt_device *d, void *q, void *k_cache, void *v_cache, void *table, void *sequence, void *length, double scale,
                                int64_t window) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    const auto &Q = ref(q), &K = ref(k_cache), &V = ref(v_cache), &T = ref(table), &S = ref(sequence), &L = ref(length);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 4 && K.sizes() == V.sizes() && K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], the caches [N, KV, B, hd] with H a multiple of KV");
    TORCH_CHECK(window >= 0, "the window must not be negative, got ", window);
    for (const auto *cache : {&K, &V}) check_cache(*cache, T, K.size(1), Q.size(2), Q);
    int32s(S, Q.size(0), "sequence", Q);
    int32s(L, Q.size(0), "length", Q);
    // More rows than sequences: there is a prompt among them. On a GPU LibTorch takes it, as products of matrices.
    bool decodes = Q.size(0) <= T.size(0);
    return cpu_fp32(Q) || (ours(Q) && decodes) ? cached(Q, K, V, T, S, L, scale, window) : cached_composite(Q, K, V, T, S, L, scale, window);
  });
}
