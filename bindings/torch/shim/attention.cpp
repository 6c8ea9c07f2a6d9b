// Attention over packed sequences, for training and scoring, and over a key-value cache, for generation.
// Float32 on a CPU uses our kernels. So do rows over a cache on a GPU in float32, and decoded rows there in bfloat16. All other rows use
// LibTorch's attention.
#include "mgrpo/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "pages.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaybeTensor = std::optional<at::Tensor>;

const float *sinks_or_null(const MaybeTensor &t) { return t ? t->const_data_ptr<float>() : nullptr; }

// Returns the gradient of sinks [H], given out and its gradient, [T, H, hd], and lse [T, H], which includes the sinks. exp(sink - lse) is a
// sink's share of a row. Its value vector is zero.
at::Tensor gradient_of_sinks(const at::Tensor &sinks, const at::Tensor &dout, const at::Tensor &out, const at::Tensor &lse) {
  auto along = (dout.to(at::kFloat) * out.to(at::kFloat)).sum(2);
  return (at::exp(sinks.to(at::kFloat).unsqueeze(0) - lse) * along).sum(0).neg().to(sinks.scalar_type());
}

at::Tensor packed(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu, const MaybeTensor &follows,
                  const MaybeTensor &sinks, double scale, int64_t window, at::Tensor *lse_out) {
  auto out = at::empty_like(q), lse = at::empty({q.size(0), q.size(1)}, q.options());
  check_status(mgrpo_attention_packed_cpu(q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
                                          cu.const_data_ptr<int32_t>(), int32s_or_null(follows), cu.size(0) - 1, sinks_or_null(sinks),
                                          out.mutable_data_ptr<float>(), lse.mutable_data_ptr<float>(), q.size(1), k.size(1), q.size(2),
                                          float(scale), window));
  if (lse_out) *lse_out = lse;
  return out;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu,
                            const MaybeTensor &follows, const MaybeTensor &sinks, double scale, int64_t window) {
    at::Tensor lse;
    auto out = packed(q, k, v, cu, follows, sinks, scale, window, &lse);
    ctx->save_for_backward({q, k, v, cu, follows.value_or(at::Tensor()), out, lse, sinks.value_or(at::Tensor())});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &cu = saved[3], &out = saved[5], &lse = saved[6];
    auto dout = grads[0].contiguous(), dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    check_status(mgrpo_attention_packed_bwd_cpu(
        dout.const_data_ptr<float>(), q.const_data_ptr<float>(), k.const_data_ptr<float>(), v.const_data_ptr<float>(),
        out.const_data_ptr<float>(), lse.const_data_ptr<float>(), cu.const_data_ptr<int32_t>(), int32s_or_null(saved[4]), cu.size(0) - 1,
        dq.mutable_data_ptr<float>(), dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>(), q.size(1), k.size(1), q.size(2),
        float(ctx->saved_data["scale"].toDouble()), ctx->saved_data["window"].toInt()));
    return {dq, dk, dv, {}, {}, saved[7].defined() ? gradient_of_sinks(saved[7], dout, out, lse) : at::Tensor(), {}, {}};
  }
};

std::vector<int64_t> read_int64s(const at::Tensor &t) {
  auto host = t.to(at::kCPU, at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// The keys that each row attends to, in the form that LibTorch's attention needs.
struct Segments {
  std::vector<int64_t> cu, follows;   // follows is empty if every segment is a sequence
  std::vector<int64_t> seen, key_cu;  // the last row of segment s sees seen[key_cu[s]] to seen[key_cu[s+1]-1], by position
  int64_t longest = 0, longest_keys = 0;
  at::Tensor seen_rows, key_offsets;  // seen (int64) and key_cu (int32) on the device; undefined if follows is empty
  at::Tensor places;                  // int32 [rows, max_count] on the device: the places of a row in seen, in order, then -1

  int64_t size() const { return int64_t(cu.size()) - 1; }
};

Segments read_segments(const at::Tensor &cu, const MaybeTensor &follows, int64_t rows) {
  Segments g;
  g.cu = read_int64s(cu);
  TORCH_CHECK(g.cu.front() == 0 && g.cu.back() == rows && std::is_sorted(g.cu.begin(), g.cu.end()),
              "cu must rise from 0 to the number of rows, ", rows);
  if (follows) g.follows = read_int64s(*follows);
  for (size_t s = 0; s < g.follows.size(); s++)
    TORCH_CHECK(g.follows[s] >= -1 && g.follows[s] < g.cu[s], "segment ", s, " must follow a row before its first, ", g.cu[s], ", got ",
                g.follows[s]);
  return g;
}

at::Tensor on_device(const std::vector<int64_t> &v, at::Device device) { return at::tensor(v, at::kLong).to(device); }

at::Tensor places_of(const std::vector<int64_t> &seen, int64_t rows) {
  std::vector<int64_t> count(static_cast<size_t>(rows), 0);
  for (int64_t r : seen) count[r]++;
  int64_t max_count = rows > 0 ? *std::max_element(count.begin(), count.end()) : 0;
  auto places = at::full({rows, max_count}, -1, at::kInt);
  auto *to = places.mutable_data_ptr<int32_t>();
  std::fill(count.begin(), count.end(), 0);
  for (size_t i = 0; i < seen.size(); i++) to[seen[i] * max_count + count[seen[i]]++] = int32_t(i);
  return places;
}

// Lists the rows that each segment attends to. Our own kernels do not need them.
void list_keys(Segments &g, at::Device device) {
  g.key_cu.push_back(0);
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t row = g.follows.empty() ? -1 : g.follows[s];
    if (row >= 0) {
      int64_t p = std::upper_bound(g.cu.begin(), g.cu.end(), row) - g.cu.begin() - 1;  // the segment that contains the row
      int64_t n = g.key_cu[p + 1] - g.key_cu[p] - (g.cu[p + 1] - 1 - row);
      for (int64_t i = g.key_cu[p]; i < g.key_cu[p] + n; i++) g.seen.push_back(int64_t(g.seen[i]));
    }
    for (int64_t r = g.cu[s]; r < g.cu[s + 1]; r++) g.seen.push_back(r);
    g.key_cu.push_back(int64_t(g.seen.size()));
    g.longest = std::max(g.longest, g.cu[s + 1] - g.cu[s]);
    g.longest_keys = std::max(g.longest_keys, g.key_cu[s + 1] - g.key_cu[s]);
  }
  if (g.follows.empty()) return;
  g.seen_rows = on_device(g.seen, device);
  g.key_offsets = on_device(g.key_cu, device).to(at::kInt);
  g.places = places_of(g.seen, g.cu.back()).to(device);
}

// A tensor and its version counter, by a reference that does not keep the tensor alive. It identifies contents at one time.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor &t) : tensor_(t.getIntrusivePtr()), version_(int64_t(t._version())) {}
  bool is(const at::Tensor &t) const {
    auto known = tensor_.lock();
    return known.defined() && known.get() == t.unsafeGetTensorImpl() && version_ == int64_t(t._version());
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  int64_t version_;
};

// Every layer of a model passes the same tensors. On a GPU each copy to the host would wait for all earlier work, so
// the last result is kept.
const Segments &gpu_segments(const at::Tensor &cu, const MaybeTensor &follows, int64_t rows) {
  struct Cached {
    TensorVersion cu;
    std::optional<TensorVersion> follows;
    Segments segments;
  };
  thread_local std::optional<Cached> last;
  bool known = last && last->cu.is(cu) && last->follows.has_value() == follows.has_value() && (!follows || last->follows->is(*follows));
  if (!known) {
    last.reset();
    auto g = read_segments(cu, follows, rows);
    list_keys(g, cu.device());
    last.emplace(Cached{TensorVersion(cu), follows ? std::optional(TensorVersion(*follows)) : std::nullopt, std::move(g)});
  }
  TORCH_CHECK(last->segments.cu.back() == rows, "cu must rise from 0 to the number of rows, ", rows);
  return last->segments;
}

// Returns the gradient of x, given the gradient dy of x.index_select(0, seen_rows). The parts of a row that several segments attend to are
// added in float32, in the order of the segments. index_select's own gradient adds in the tensor's type, on a GPU in no fixed order.
at::Tensor gradient_of_seen(const at::Tensor &dy_any, const at::Tensor &seen_rows, const at::Tensor &places) {
  auto dy = dy_any.contiguous();
  auto sizes = dy.sizes().vec();
  sizes[0] = places.size(0);
  if (!dy.is_cuda() || !ours(dy)) {
    auto wide = wide_of(dy);
    return at::zeros(sizes, dy.options().dtype(wide)).index_add_(0, seen_rows, dy.to(wide)).to(dy.scalar_type());
  }
  auto dx = at::empty(sizes, dy.options());
  check_status(the_cuda_part->moe_combine(dy.const_data_ptr(), places.const_data_ptr<int32_t>(), nullptr, int32_t(dy.scalar_type()),
                                          dx.mutable_data_ptr(), sizes[0], places.size(1), sizes[1] * sizes[2], stream_of(dy)));
  return dx;
}

// The rows that the segments attend to, one after the other.
struct Seen : torch::autograd::Function<Seen> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &seen_rows, const at::Tensor &places) {
    ctx->save_for_backward({seen_rows, places});
    return x.index_select(0, seen_rows);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    return {gradient_of_seen(grads[0], saved[0], saved[1]), {}, {}};
  }
};

at::Tensor seen(const at::Tensor &x, const Segments &g) {
  return recorded(x) ? Seen::apply(x, g.seen_rows, g.places) : x.index_select(0, g.seen_rows);
}

// The maximum number of elements of a mask. LibTorch needs the whole mask in memory.
constexpr int64_t kMostMasked = 16 << 20;

// Attention by LibTorch with one more key for each query. Its score is the sink of the query's head, and its value vector zero. q [B, H, n,
// hd], k and v [B, KV, m, hd], seen bool and sinks as broadcast to [B, H, n, m] and [B, H, n, 1].
at::Tensor attend_with_sinks(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &seen, const at::Tensor &sinks,
                             double scale) {
  auto with_key = [](const at::Tensor &t) { return at::cat({t, at::zeros_like(t.narrow(2, 0, 1))}, 2); };
  const int64_t b = q.size(0), heads = q.size(1), n = q.size(2), m = k.size(2);
  auto scores = at::zeros(seen.sizes(), q.options()).masked_fill(seen.logical_not(), -INFINITY).expand({b, heads, n, m});
  auto mask = at::cat({scores, sinks.to(q.scalar_type()).expand({b, heads, n, 1})}, 3);
  return std::get<0>(
      at::_scaled_dot_product_attention_math(q, with_key(k), with_key(v), mask, 0.0, /*is_causal=*/false, std::nullopt, scale, true));
}

// Attends one segment after the other. The last query must attend to the last key, but SDPA's causal mask aligns the first query with the
// first key. So we pass our own mask, for as many rows at a time as kMostMasked allows.
at::Tensor attend_in_turn(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const Segments &g, const MaybeTensor &sinks,
                          double scale, int64_t window) {
  std::vector<at::Tensor> outs;
  auto part = [](const at::Tensor &t, int64_t from, int64_t n) { return t.narrow(0, from, n).transpose(0, 1).unsqueeze(0); };
  for (int64_t s = 0; s < g.size(); s++) {
    int64_t n = g.cu[s + 1] - g.cu[s], keys = g.key_cu[s + 1] - g.key_cu[s];
    bool windowed = window > 0 && window < keys;
    bool masked = keys > n || windowed || sinks;
    int64_t at_once = masked ? std::max<int64_t>(1, kMostMasked / std::max<int64_t>(1, sinks ? keys * q.size(1) : keys)) : n;
    for (int64_t from = 0, rows; from < n; from += rows) {
      rows = std::min(at_once, n - from);
      int64_t position = keys - n + from, first = windowed ? std::max<int64_t>(0, position + 1 - window) : 0,
              seen = position + rows - first;
      MaybeTensor mask;
      if (masked) mask = at::ones({rows, seen}, q.options().dtype(at::kBool)).tril(position - first);
      if (windowed) mask = mask->triu(position - first - window + 1);
      auto Q = part(q, g.cu[s] + from, rows), K = part(k, g.key_cu[s] + first, seen), V = part(v, g.key_cu[s] + first, seen);
      auto out = sinks ? attend_with_sinks(Q, K, V, *mask, sinks->view({1, -1, 1, 1}), scale)
                       : at::scaled_dot_product_attention(Q, K, V, mask, 0.0, /*is_causal=*/!masked, scale, true);
      outs.push_back(out.squeeze(0).transpose(0, 1));
    }
  }
  return outs.empty() ? at::empty_like(q) : at::cat(outs, 0);
}

// Flash attention accepts ragged batches. With more keys than queries, it aligns the last query with the last key.
bool flashes(const at::Tensor &q) {
  bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return q.is_cuda() && half && q.size(2) <= 256 && q.size(2) % 8 == 0;
}

// Flash attention's arguments other than the tensors.
struct Ragged {
  int64_t longest, longest_keys;
  double scale;
  std::optional<c10::SymInt> before, after;  // keys that a row attends to on either side; none: all

  Ragged(int64_t longest, int64_t longest_keys, double scale, int64_t window) : longest(longest), longest_keys(longest_keys), scale(scale) {
    if (window > 0) before = window - 1, after = 0;
  }
  auto forward(const at::Tensor &q, const at::Tensor &ks, const at::Tensor &vs, const at::Tensor &cu, const at::Tensor &key_cu) const {
    return at::_flash_attention_forward_symint(q, ks, vs, cu, key_cu, longest, longest_keys, 0.0, /*is_causal=*/true, false, scale, before,
                                               after);
  }
};

// Puts sinks into the results of flash attention: lse [H, T], and out [T, H, hd], which it returns.
at::Tensor put_sinks(const at::Tensor &out, at::Tensor &lse, const at::Tensor &sinks) {
  TORCH_CHECK(lse.dim() == 2 && lse.size(0) == out.size(1) && lse.size(1) == out.size(0), "flash attention's sums are ", lse.sizes(),
              ", not those of each head and row: sinks cannot be added to them");
  auto all = at::logaddexp(lse, sinks.to(lse.scalar_type()).unsqueeze(1));
  auto share = at::exp(lse - all).t().unsqueeze(2);
  lse = all;
  return (out.to(at::kFloat) * share).to(out.scalar_type());
}

// Flash attention of segments that attend to rows of other segments (seen_rows), or with sinks. The backward pass gathers k and v again.
// Otherwise each layer would keep a copy of a row for every segment that attends to it. LibTorch's backward function computes probabilities
// from the sums, so sums that include sinks need no change.
struct OurFlash : torch::autograd::Function<OurFlash> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu,
                            const at::Tensor &key_cu, const MaybeTensor &seen_rows, const MaybeTensor &places, const MaybeTensor &sinks,
                            int64_t longest, int64_t longest_keys, double scale, int64_t window) {
    auto all = [&](const at::Tensor &t) { return seen_rows ? t.index_select(0, *seen_rows) : t; };
    auto [out, lse, state, unused, mask] = Ragged(longest, longest_keys, scale, window).forward(q, all(k), all(v), cu, key_cu);
    if (sinks) out = put_sinks(out, lse, *sinks);
    const at::Tensor none;
    ctx->save_for_backward(
        {q, k, v, cu, key_cu, seen_rows.value_or(none), places.value_or(none), out, lse, state, unused, sinks.value_or(none)});
    ctx->saved_data["longest"] = longest;
    ctx->saved_data["longest_keys"] = longest_keys;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    return out;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &cu = saved[3], &key_cu = saved[4], &seen_rows = saved[5], &places = saved[6],
               &out = saved[7], &lse = saved[8], &state = saved[9], &unused = saved[10], &sinks = saved[11];
    const Ragged r(ctx->saved_data["longest"].toInt(), ctx->saved_data["longest_keys"].toInt(), ctx->saved_data["scale"].toDouble(),
                   ctx->saved_data["window"].toInt());
    auto all = [&](const at::Tensor &t) { return seen_rows.defined() ? t.index_select(0, seen_rows) : t; };
    auto dout = grads[0].contiguous();
    auto [dq, dks, dvs] =
        at::_flash_attention_backward_symint(dout, q, all(k), all(v), out, lse, cu, key_cu, r.longest, r.longest_keys, 0.0,
                                             /*is_causal=*/true, state, unused, r.scale, r.before, r.after);
    auto of_rows = [&](const at::Tensor &t) { return seen_rows.defined() ? gradient_of_seen(t, seen_rows, places) : t; };
    auto dsinks = sinks.defined() ? gradient_of_sinks(sinks, dout, out, lse.t()) : at::Tensor();
    return {dq, of_rows(dks), of_rows(dvs), {}, {}, {}, {}, dsinks, {}, {}, {}, {}};
  }
};

// Attends with each segment's gathered keys and values. cu and key_cu are g's on the device. If flash attention is used, the gradient of
// sinks is not recorded.
at::Tensor attend_ragged(const at::Tensor &q, const at::Tensor &ks, const at::Tensor &vs, const at::Tensor &cu, const at::Tensor &key_cu,
                         const Segments &g, const MaybeTensor &sinks, double scale, int64_t window) {
  if (!flashes(q)) return attend_in_turn(q, ks, vs, g, sinks, scale, window);
  auto [out, lse, state, unused, mask] = Ragged(g.longest, g.longest_keys, scale, window).forward(q, ks, vs, cu, key_cu);
  return sinks ? put_sinks(out, lse, *sinks) : out;
}

at::Tensor packed_composite(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &cu, const Segments &g,
                            const MaybeTensor &sinks, double scale, int64_t window) {
  const bool shared = g.seen_rows.defined();
  const auto &key_cu = shared ? g.key_offsets : cu;
  if (flashes(q) && recorded(q, k, v, sinks.value_or(at::Tensor())) && (shared || sinks)) {
    auto given = [&](const at::Tensor &t) { return shared ? MaybeTensor(t) : std::nullopt; };
    return OurFlash::apply(q, k, v, cu, key_cu, given(g.seen_rows), given(g.places), sinks, g.longest, g.longest_keys, scale, window);
  }
  return attend_ragged(q, shared ? seen(k, g) : k, shared ? seen(v, g) : v, cu, key_cu, g, sinks, scale, window);
}

// Calls our kernel, which only enqueues its work on a GPU.
at::Tensor cached(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &table, const at::Tensor &sequence,
                  const at::Tensor &length, const MaybeTensor &sinks, double scale, int64_t window) {
  auto qc = q.contiguous(), out = at::empty_like(qc);
  const auto *sequences = sequence.const_data_ptr<int32_t>(), *lengths = length.const_data_ptr<int32_t>();
  if (q.is_cuda())
    check_status(the_cuda_part->attention_cached(qc.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), pages_of(k, table), sequences,
                                                 lengths, sinks_or_null(sinks), int32_t(q.scalar_type()), out.mutable_data_ptr(), q.size(0),
                                                 q.size(1), float(scale), window, stream_of(q)));
  else
    check_status(mgrpo_attention_cached_cpu(qc.const_data_ptr<float>(), k.const_data_ptr(), v.const_data_ptr(), int32_t(k.scalar_type()),
                                            pages_of(k, table), sequences, lengths, sinks_or_null(sinks), out.mutable_data_ptr<float>(),
                                            q.size(0), q.size(1), float(scale), window),
                 ": is every sequence and length inside the cache?");
  return out;
}

// Returns the keys or values of sequences at positions [begin, begin + n), [rows, KV, n, hd], gathered from their blocks. After the end of
// a shorter sequence the tables may have any value.
at::Tensor gathered(const at::Tensor &cache, const at::Tensor &tables, int64_t begin, int64_t n) {
  int64_t rows = tables.size(0), kv = cache.size(1), block = cache.size(2), hd = cache.size(3);
  int64_t first = begin / block, blocks = (begin + n + block - 1) / block - first;
  auto which = tables.narrow(1, first, blocks).clamp(0, cache.size(0) - 1).flatten();
  auto all =
      cache.index_select(0, which).view({rows, blocks, kv, block, hd}).permute({0, 2, 1, 3, 4}).reshape({rows, kv, blocks * block, hd});
  return all.narrow(2, begin - first * block, n);
}

// Computes attention of one row for each sequence. The query heads of a group are the rows of one small attention.
at::Tensor attend_each(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v, const at::Tensor &seen, const MaybeTensor &sinks,
                       double scale) {
  int64_t rows = q.size(0), heads = q.size(1), kv = k.size(1), hd = q.size(2);
  auto grouped = q.reshape({rows, kv, heads / kv, hd}), mask = seen.unsqueeze(1).unsqueeze(1);
  auto out = sinks ? attend_with_sinks(grouped, k, v, mask, sinks->view({1, kv, heads / kv, 1}), scale)
                   : at::scaled_dot_product_attention(grouped, k, v, mask, 0.0, false, scale);
  return out.reshape({rows, heads, hd});
}

// Consecutive rows of some sequences, such as prompts, with their keys and values. One call computes their attention.
struct Prompts {
  Segments segments;                              // with key_cu, longest and longest_keys
  std::vector<int64_t> which;                     // the rows
  std::vector<int64_t> sequence, column, offset;  // of each key: the place of its block in the tables, and its place in the block
  at::Tensor rows, cu, key_cu, sequences, columns, offsets;  // the same on the device

  void add(int64_t from, int64_t rows, int64_t of, int64_t begin, int64_t end, int64_t block) {
    for (int64_t r = from; r < from + rows; r++) which.push_back(r);
    for (int64_t at = begin; at < end; at++) {
      sequence.push_back(of);
      column.push_back(at / block);
      offset.push_back(at % block);
    }
    segments.cu.push_back(int64_t(which.size()));
    segments.key_cu.push_back(int64_t(sequence.size()));
    segments.longest = std::max(segments.longest, rows);
    segments.longest_keys = std::max(segments.longest_keys, end - begin);
  }
  void upload(at::Device device) {
    rows = on_device(which, device);
    cu = on_device(segments.cu, device).to(at::kInt);
    key_cu = on_device(segments.key_cu, device).to(at::kInt);
    sequences = on_device(sequence, device);
    columns = on_device(column, device);
    offsets = on_device(offset, device);
  }
};

// The division of the rows of a pass into single rows, as in decoding, and prompts. The keys are gathered for a few prompts at a time.
struct Plan {
  std::vector<int64_t> alone, lengths;
  at::Tensor alone_rows;
  std::vector<Prompts> prompts;
};

constexpr size_t kMostKeys = 1 << 16;  // the maximum number of keys of the prompts of one call; a single prompt may have more

Plan plan_of(const at::Tensor &sequence, const at::Tensor &length, const at::Tensor &table, int64_t block, int64_t window) {
  auto sequences = read_int64s(sequence), lengths = read_int64s(length);
  const int64_t rows = int64_t(sequences.size()), max_length = table.size(1) * block;
  for (int64_t r = 0; r < rows; r++)
    TORCH_CHECK(lengths[r] >= 1 && lengths[r] <= max_length && sequences[r] >= 0 && sequences[r] < table.size(0),
                "lengths must be from 1 to ", max_length, " and sequences below ", table.size(0));
  Plan plan;
  for (int64_t from = 0, end; from < rows; from = end) {
    for (end = from + 1; end < rows && sequences[end] == sequences[from] && lengths[end] == lengths[end - 1] + 1;) end++;
    if (end - from == 1) {
      plan.alone.push_back(from);
      plan.lengths.push_back(lengths[from]);
      continue;
    }
    int64_t begin = window > 0 ? std::max<int64_t>(0, lengths[from] - window) : 0, last = lengths[end - 1];
    if (plan.prompts.empty() || plan.prompts.back().sequence.size() + size_t(last - begin) > kMostKeys) {
      plan.prompts.emplace_back();
      plan.prompts.back().segments.cu = plan.prompts.back().segments.key_cu = {0};
    }
    plan.prompts.back().add(from, end - from, sequences[from], begin, last, block);
  }
  plan.alone_rows = on_device(plan.alone, sequence.device());
  for (auto &p : plan.prompts) p.upload(sequence.device());
  return plan;
}

// Every layer of a pass has the same rows. As in gpu_segments, the host waits for a GPU once in a pass, before it has much work.
const Plan &known_plan(const at::Tensor &sequence, const at::Tensor &length, const at::Tensor &table, int64_t block, int64_t window) {
  struct Cached {
    TensorVersion sequence, length;
    std::map<std::array<int64_t, 4>, Plan> plans;
  };
  thread_local std::optional<Cached> last;
  if (!last || !last->sequence.is(sequence) || !last->length.is(length))
    last.emplace(Cached{TensorVersion(sequence), TensorVersion(length), {}});
  const std::array key{window, block, table.size(0), table.size(1)};
  auto found = last->plans.find(key);
  if (found == last->plans.end()) found = last->plans.emplace(key, plan_of(sequence, length, table, block, window)).first;
  return found->second;
}

// Reports whether our kernel over a cache accepts these queries.
bool fits_kernel(const at::Tensor &q) { return ours(q) && (q.is_cpu() || q.size(2) <= 256); }

at::Tensor attend_alone(const at::Tensor &q, const at::Tensor &kc, const at::Tensor &vc, const at::Tensor &table,
                        const at::Tensor &sequence, const at::Tensor &length, const std::vector<int64_t> &lengths, const MaybeTensor &sinks,
                        double scale, int64_t window) {
  if (fits_kernel(q)) return cached(q, kc, vc, table, sequence, length, sinks, scale, window);
  auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
  int64_t begin = window > 0 ? std::max<int64_t>(0, *shortest - window) : 0, keys = *longest - begin;
  auto key = at::arange(begin, *longest, length.options()).unsqueeze(0), ends = length.unsqueeze(1), visible = key < ends;
  if (window > 0) visible = visible & (key >= ends - window);
  auto each = table.index_select(0, sequence);
  return attend_each(q, gathered(kc, each, begin, keys), gathered(vc, each, begin, keys), visible, sinks, scale);
}

at::Tensor cached_composite(const at::Tensor &q, const at::Tensor &kc, const at::Tensor &vc, const at::Tensor &table,
                            const at::Tensor &sequence, const at::Tensor &length, const MaybeTensor &sinks, double scale, int64_t window) {
  auto out = at::empty(q.sizes(), q.options());
  const Plan &plan = known_plan(sequence, length, table, kc.size(2), window);
  if (!plan.alone.empty()) {
    auto of = [&](const at::Tensor &t) { return t.index_select(0, plan.alone_rows); };
    out.index_copy_(0, plan.alone_rows, attend_alone(of(q), kc, vc, table, of(sequence), of(length), plan.lengths, sinks, scale, window));
  }
  for (const auto &p : plan.prompts) {
    auto blocks = table.index({p.sequences, p.columns}).to(at::kLong).clamp(0, kc.size(0) - 1);
    auto keys_of = [&](const at::Tensor &cache) { return cache.transpose(1, 2).index({blocks, p.offsets}); };
    out.index_copy_(0, p.rows,
                    attend_ragged(q.index_select(0, p.rows), keys_of(kc), keys_of(vc), p.cu, p.key_cu, p.segments, sinks, scale, window));
  }
  return out;
}

// Returns the sinks for queries [T, H, hd], in float32 for our kernels.
MaybeTensor sinks_of(void *sinks_or_null, const at::Tensor &q) {
  if (!sinks_or_null) return std::nullopt;
  const auto &S = ref(sinks_or_null);
  TORCH_CHECK(S.dim() == 1 && S.size(0) == q.size(1) && S.device() == q.device() && S.is_floating_point(), "sinks must be [", q.size(1),
              "] on ", q.device());
  return q.scalar_type() == at::kDouble ? S : S.to(at::kFloat).contiguous();
}

}  // namespace

mgt_tensor mgt_attention_packed(mgt_device *d, void *q, void *k, void *v, void *cu, void *follows_or_null, void *sinks_or_null,
                                double scale, int64_t window) {
  return make(d, [&] {
    const auto &Q = ref(q), &K = ref(k), &V = ref(v), &CU = ref(cu);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 3 && K.sizes() == V.sizes() && Q.size(0) == K.size(0) && Q.size(2) == K.size(2) &&
                    K.size(1) > 0 && Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], k and v [T, KV, hd] with H a multiple of KV");
    TORCH_CHECK(Q.scalar_type() == K.scalar_type() && Q.scalar_type() == V.scalar_type(), "q, k and v must have one dtype");
    TORCH_CHECK(CU.dim() == 1 && CU.size(0) >= 1, "cu must be int32 [B+1]");
    TORCH_CHECK(window >= 0, "the window must not be negative, got ", window);
    int32s(CU, CU.size(0), "cu");
    auto follows = maybe_ref(follows_or_null);
    if (follows) int32s(*follows, CU.size(0) - 1, "follows");
    const auto sinks = sinks_of(sinks_or_null, Q);
    if (Q.is_cuda()) return packed_composite(Q, K, V, CU, gpu_segments(CU, follows, Q.size(0)), sinks, scale, window);
    auto g = read_segments(CU, follows, Q.size(0));
    if (!cpu_fp32(Q, K, V)) {
      list_keys(g, at::kCPU);
      return packed_composite(Q, K, V, CU, g, sinks, scale, window);
    }
    auto qc = Q.contiguous(), kc = K.contiguous(), vc = V.contiguous();
    return recorded(Q, K, V, sinks.value_or(at::Tensor())) ? Packed::apply(qc, kc, vc, CU, follows, sinks, scale, window)
                                                           : packed(qc, kc, vc, CU, follows, sinks, scale, window, nullptr);
  });
}

mgt_tensor mgt_attention_cached(mgt_device *d, void *q, void *k_cache, void *v_cache, void *table, void *sequence, void *length,
                                void *sinks_or_null, double scale, int64_t window) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    const auto &Q = ref(q), &K = ref(k_cache), &V = ref(v_cache), &T = ref(table), &S = ref(sequence), &L = ref(length);
    TORCH_CHECK(Q.dim() == 3 && K.dim() == 4 && K.sizes() == V.sizes() && K.scalar_type() == V.scalar_type() && K.size(1) > 0 &&
                    Q.size(1) % K.size(1) == 0,
                "q must be [T, H, hd], the caches [N, KV, B, hd] of one type with H a multiple of KV");
    TORCH_CHECK(window >= 0, "the window must not be negative, got ", window);
    for (const auto *cache : {&K, &V}) check_cache(*cache, T, K.size(1), Q.size(2), Q, true);
    int32s(S, Q.size(0), "sequence", Q);
    int32s(L, Q.size(0), "length", Q);
    // If there are more rows than sequences, one is a prompt. Flash attention, which uses matrix products, is faster for it if it accepts
    // it.
    bool decodes = Q.size(0) <= T.size(0);
    const auto sinks = sinks_of(sinks_or_null, Q);
    return fits_kernel(Q) && (decodes || !flashes(Q)) ? cached(Q, K, V, T, S, L, sinks, scale, window)
                                                      : cached_composite(Q, K, V, T, S, L, sinks, scale, window);
  });
}
