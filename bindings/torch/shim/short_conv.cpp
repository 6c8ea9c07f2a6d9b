// Short convolutions: the gated one of LFM2 and the one before a gated delta rule, over packed sequences, a cache and states.
// Float32, on a GPU also bfloat16, uses our kernels. Other tensors use LibTorch's operators.
#include "mgrpo/short_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "pages.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

MaybeTensor maybe(const at::Tensor &t) { return t.defined() ? MaybeTensor(t) : std::nullopt; }

mgrpo_short_conv conv_of(const at::Tensor &w, const MaybeTensor &bias, bool silu = false) {
  return {w.size(0), w.numel() / w.size(0), w.const_data_ptr(), bias ? bias->const_data_ptr() : nullptr, silu};
}

constexpr auto kSegments = ": do the segments begin at 0, rise and follow earlier rows, and are there 1 to 8 taps?";

void check(const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, bool silu) {
  const int64_t d = w.dim() > 0 ? w.size(0) : 0;
  TORCH_CHECK(x.dim() == 2 && d > 0 && x.size(1) == (silu ? d : 3 * d) && w.numel() > 0 && w.is_contiguous(), "the product must be [T, ",
              silu ? "" : "3 ", "D] and the weights [D, width] and contiguous, got ", x.sizes(), " and ", w.sizes());
  TORCH_CHECK(!bias || (bias->dim() == 1 && bias->size(0) == d && bias->is_contiguous()), "the bias must be [", d, "]");
}

void check_segments(const at::Tensor &cu, const MaybeTensor &follows, const at::Tensor &x) {
  TORCH_CHECK(cu.dim() == 1 && cu.size(0) > 0, "cu must be [B + 1]");
  int32s(cu, cu.size(0), "cu", x);
  if (follows) int32s(*follows, cu.size(0) - 1, "follows", x);
}

at::Tensor packed(const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, bool silu, const at::Tensor &cu,
                  const MaybeTensor &follows) {
  auto y = at::empty({x.size(0), w.size(0)}, x.options());
  const int64_t batch = cu.size(0) - 1;
  if (x.is_cuda()) {
    check_status(the_cuda_part->short_conv_packed(x.const_data_ptr(), conv_of(w, bias, silu), cu.const_data_ptr<int32_t>(),
                                                  int32s_or_null(follows), batch, dtype_of(x), y.mutable_data_ptr(), x.size(0),
                                                  stream_of(x)));
    return y;
  }
  TORCH_CHECK(cu.const_data_ptr<int32_t>()[batch] == x.size(0), "cu must rise from 0 to the number of rows, ", x.size(0));
  check_status(mgrpo_short_conv_packed_cpu(x.const_data_ptr<float>(), conv_of(w, bias, silu), cu.const_data_ptr<int32_t>(),
                                           int32s_or_null(follows), batch, y.mutable_data_ptr<float>()),
               kSegments);
  return y;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, bool silu,
                            const at::Tensor &cu, const MaybeTensor &follows) {
    ctx->save_for_backward({x, w, bias.value_or(at::Tensor()), cu, follows.value_or(at::Tensor())});
    ctx->saved_data["silu"] = silu;
    return packed(x, w, bias, silu, cu, follows);
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &w = saved[1], &cu = saved[3];
    const bool silu = ctx->saved_data["silu"].toBool();
    const MaybeTensor bias = maybe(saved[2]), follows = maybe(saved[4]);
    auto dy = grads[0].contiguous(), dx = at::empty_like(x);
    at::Tensor dw, dbias;
    if (ctx->needs_input_grad(1)) dw = at::zeros(w.sizes(), w.options().dtype(at::kFloat));
    if (bias && ctx->needs_input_grad(2)) dbias = at::zeros(bias->sizes(), w.options().dtype(at::kFloat));
    const int64_t batch = cu.size(0) - 1;
    if (x.is_cuda())
      check_status(the_cuda_part->short_conv_packed_bwd(
          dy.const_data_ptr(), x.const_data_ptr(), conv_of(w, bias, silu), cu.const_data_ptr<int32_t>(), int32s_or_null(follows), batch,
          dtype_of(x), dx.mutable_data_ptr(), floats_or_null(dw), floats_or_null(dbias), x.size(0), stream_of(x)));
    else
      check_status(mgrpo_short_conv_packed_bwd_cpu(dy.const_data_ptr<float>(), x.const_data_ptr<float>(), conv_of(w, bias, silu),
                                                   cu.const_data_ptr<int32_t>(), int32s_or_null(follows), batch,
                                                   dx.mutable_data_ptr<float>(), floats_or_null(dw), floats_or_null(dbias)),
                   kSegments);
    const auto of_type = [&](const at::Tensor &t) { return t.defined() ? t.to(w.scalar_type()) : t; };
    return {dx, of_type(dw), of_type(dbias), {}, {}, {}};
  }
};

// Returns the gates B, the gates C and the inputs of a product.
std::array<at::Tensor, 3> thirds(const at::Tensor &x) {
  const int64_t d = x.size(1) / 3;
  return {x.narrow(1, 0, d), x.narrow(1, d, d), x.narrow(1, 2 * d, d)};
}

// Returns the convolution. row_before(n) is u of the rows n places before each row, or 0 before the beginning of a sequence.
template <class Taken>
at::Tensor convolved(const at::Tensor &u, const at::Tensor &w, const MaybeTensor &bias, const Taken &row_before) {
  const auto wide = wide_of(u);
  const auto taps = w.reshape({w.size(0), -1}).to(wide);
  auto sum = bias ? bias->to(wide).expand(u.sizes()) : at::zeros(u.sizes(), u.options().dtype(wide));
  for (int64_t n = taps.size(1) - 1; n >= 0; n--) sum = sum + taps.select(1, taps.size(1) - 1 - n) * row_before(n).to(wide);
  return sum;
}

// Computes other dtypes. u has an additional last row of zeros for the rows before the beginning of a sequence.
at::Tensor packed_composite(const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, bool silu, const at::Tensor &cu,
                            const MaybeTensor &follows) {
  const int64_t rows = x.size(0);
  const auto starts = cu.to(at::kCPU), parents = follows ? follows->to(at::kCPU) : at::Tensor();
  const auto *start = starts.const_data_ptr<int32_t>();
  TORCH_CHECK(start[0] == 0 && start[cu.size(0) - 1] == rows, "cu must rise from 0 to the number of rows, ", rows);
  std::vector<int64_t> before(rows + 1, rows);
  for (int64_t s = 0; s + 1 < cu.size(0); s++) {
    const int64_t parent = parents.defined() ? parents.const_data_ptr<int32_t>()[s] : -1;
    TORCH_CHECK(start[s] <= start[s + 1] && parent >= -1 && parent < start[s], "segment ", s, kSegments);
    for (int64_t r = start[s]; r < start[s + 1]; r++) before[r] = r > start[s] ? r - 1 : parent >= 0 ? parent : rows;
  }
  const auto in = silu ? x : thirds(x)[0] * thirds(x)[2], u = at::cat({in, at::zeros({1, w.size(0)}, x.options())});
  std::vector<std::vector<int64_t>> back(1, std::vector<int64_t>(rows));
  for (int64_t r = 0; r < rows; r++) back[0][r] = r;
  for (int64_t n = 1; n < w.numel() / w.size(0); n++) {
    back.push_back(back.back());
    for (auto &r : back.back()) r = before[r];
  }
  auto sum = convolved(in, w, bias, [&](int64_t n) { return u.index_select(0, at::tensor(back[n], at::kLong).to(x.device())); });
  return (silu ? at::silu(sum) : thirds(x)[1].to(sum.scalar_type()) * sum).to(x.scalar_type());
}

at::Tensor cached_composite(const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, at::Tensor &cache, const at::Tensor &table,
                            const at::Tensor &sequence, const at::Tensor &pos) {
  const auto [b, c, in] = thirds(x);
  const auto u = b * in;
  const auto places = cache.view({-1, w.size(0)});
  const auto place = [&](const at::Tensor &at) {
    return table.index({sequence, at.floor_divide(cache.size(2))}) * cache.size(2) + at.remainder(cache.size(2));
  };
  places.index_put_({place(pos)}, u);
  const auto sum = convolved(
      u, w, bias, [&](int64_t n) { return places.index({place((pos - n).clamp_min(0))}).masked_fill((pos < n).unsqueeze(1), 0); });
  return (c.to(sum.scalar_type()) * sum).to(x.scalar_type());
}

at::Tensor states_composite(const at::Tensor &x, const at::Tensor &w, const MaybeTensor &bias, at::Tensor &states, const at::Tensor &slots,
                            const at::Tensor &positions) {
  const auto of_row = slots.cpu(), at_row = positions.cpu();
  const auto *slot = of_row.const_data_ptr<int32_t>(), *pos = at_row.const_data_ptr<int32_t>();
  const int64_t width = states.size(1) + 1;
  const auto taps = w.reshape({w.size(0), -1}).t().to(wide_of(x));
  auto y = at::empty(x.sizes(), x.options().dtype(wide_of(x)));
  for (int64_t r = 0; r < x.size(0); r++) {
    TORCH_CHECK(slot[r] >= 0 && slot[r] < states.size(0), "is every slot among the states?");
    auto state = states[slot[r]];
    if (pos[r] == 0) state.zero_();
    const auto all = at::cat({state, x.narrow(0, r, 1)});
    const auto sum = (taps * all.to(wide_of(x))).sum(0);
    y[r].copy_(at::silu(bias ? sum + bias->to(wide_of(x)) : sum));
    state.copy_(all.narrow(0, 1, width - 1));
  }
  return y.to(x.scalar_type());
}

}  // namespace

mgt_tensor mgt_short_conv_packed(mgt_device *d, void *bcx, void *w, void *bias_or_null, int silu, void *cu, void *follows_or_null) {
  return make(d, [&] {
    const auto &X = ref(bcx), &W = ref(w), &C = ref(cu);
    const MaybeTensor bias = maybe_ref(bias_or_null), follows = maybe_ref(follows_or_null);
    check(X, W, bias, silu);
    check_segments(C, follows, X);
    if (!ours(X, W, bias.value_or(W))) return packed_composite(X, W, bias, silu, C, follows);
    auto x = X.contiguous();
    return recorded(X, W, bias.value_or(at::Tensor())) ? Packed::apply(x, W, bias, silu, C, follows) : packed(x, W, bias, silu, C, follows);
  });
}

mgt_tensor mgt_short_conv_cached(mgt_device *d, void *bcx, void *w, void *bias_or_null, void *cache, void *table, void *sequence,
                                 void *pos) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    auto &K = ref(cache);
    const auto &X = ref(bcx), &W = ref(w), &T = ref(table), &S = ref(sequence), &P = ref(pos);
    const MaybeTensor bias = maybe_ref(bias_or_null);
    check(X, W, bias, false);
    check_cache(K, T, 1, W.size(0), X);
    const auto sequences = int32s(S, X.size(0), "sequence", X), positions = int32s(P, X.size(0), "pos", X);
    if (!ours(X, W, bias.value_or(W))) return cached_composite(X, W, bias, K, T, S, P);
    auto x = X.contiguous(), y = at::empty({X.size(0), W.size(0)}, X.options());
    if (X.is_cuda())
      check_status(the_cuda_part->short_conv_cached(x.const_data_ptr(), conv_of(W, bias), dtype_of(x), K.mutable_data_ptr(), pages_of(K, T),
                                                    sequences, positions, y.mutable_data_ptr(), x.size(0), stream_of(x)));
    else
      check_status(mgrpo_short_conv_cached_cpu(x.const_data_ptr<float>(), conv_of(W, bias), K.mutable_data_ptr<float>(), pages_of(K, T),
                                               sequences, positions, y.mutable_data_ptr<float>(), x.size(0)),
                   ": is every sequence and position inside the cache?");
    return y;
  });
}

mgt_tensor mgt_short_conv_states(mgt_device *d, void *u, void *w, void *bias_or_null, void *states, void *slot, void *pos) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    auto &K = ref(states);
    const auto &X = ref(u), &W = ref(w), &S = ref(slot), &P = ref(pos);
    const MaybeTensor bias = maybe_ref(bias_or_null);
    check(X, W, bias, true);
    const int64_t width = W.numel() / W.size(0);
    TORCH_CHECK(K.dim() == 3 && K.size(1) == width - 1 && K.size(2) == W.size(0) && K.is_contiguous() &&
                    K.scalar_type() == X.scalar_type() && K.device() == X.device(),
                "states must be [slots, ", width - 1, ", ", W.size(0), "], contiguous and of the inputs' type, got ", K.sizes());
    const auto slots = int32s(S, X.size(0), "slot", X), positions = int32s(P, X.size(0), "pos", X);
    if (!ours(X, W, bias.value_or(W))) return states_composite(X, W, bias, K, S, P);
    auto x = X.contiguous(), y = at::empty_like(x);
    if (X.is_cuda())
      check_status(the_cuda_part->short_conv_states(x.const_data_ptr(), conv_of(W, bias, true), dtype_of(x), K.mutable_data_ptr(),
                                                    K.size(0), slots, positions, y.mutable_data_ptr(), x.size(0), stream_of(x)));
    else
      check_status(mgrpo_short_conv_states_cpu(x.const_data_ptr<float>(), conv_of(W, bias, true), K.mutable_data_ptr<float>(), K.size(0),
                                               slots, positions, y.mutable_data_ptr<float>(), x.size(0)),
                   ": is every slot among the states?");
    return y;
  });
}
