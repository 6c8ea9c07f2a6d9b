// The gated delta rule of Qwen3.5, over packed sequences and over states. Float32, on a GPU also bfloat16, uses our kernels. On a CPU
// bfloat16 is converted, and float64 uses LibTorch's operators.
#include "mgrpo/delta_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The first integers of a description of pieces: the numbers of pieces, chains, levels and rows, and the index of each array.
enum { kCount, kChains, kLevels, kRows, kFirst, kBefore, kChain, kOrder, kLevel, kHeader };

mgrpo_pieces pieces_of(const at::Tensor &host, const at::Tensor &device) {
  TORCH_CHECK(host.is_cpu() && host.scalar_type() == at::kInt && host.numel() > kHeader && host.is_contiguous() &&
                  device.scalar_type() == at::kInt && device.numel() == host.numel() && device.is_contiguous(),
              "pieces must be the result of mgt_pieces");
  const auto *h = host.const_data_ptr<int32_t>(), *d = device.const_data_ptr<int32_t>();
  return {h[kCount], h[kChains], h[kLevels], d + h[kFirst], d + h[kBefore], d + h[kChain], d + h[kOrder], h + h[kLevel]};
}

at::Tensor described(const at::Tensor &cu, const at::Tensor &follows) {
  const int64_t batch = cu.size(0) - 1;
  const int64_t rows = cu.const_data_ptr<int32_t>()[batch], size = mgrpo_pieces_size(rows, batch);
  TORCH_CHECK(size >= 0, "cu must rise from 0 to the number of rows, ", rows);
  auto to = at::empty({kHeader + size}, at::kInt);
  auto *header = to.mutable_data_ptr<int32_t>();
  mgrpo_pieces p;
  check_status(mgrpo_pieces_of(cu.const_data_ptr<int32_t>(), int32s_or_null(follows), batch, header + kHeader, &p),
               ": do the segments begin at 0, rise and follow earlier rows?");
  const auto place = [&](const int32_t *array) { return int32_t(array - header); };
  const int32_t values[kHeader] = {int32_t(p.count), int32_t(p.chains), int32_t(p.levels), int32_t(rows), place(p.first),
                                   place(p.before),  place(p.chain),    place(p.order),    place(p.level)};
  std::copy(values, values + kHeader, header);
  return to;
}

struct Sizes {
  int64_t key_heads, value_heads, key_dim, value_dim;

  mgrpo_delta_rule rule(const at::Tensor &a_log, const at::Tensor &dt_bias) const {
    return {key_heads, value_heads, key_dim, value_dim, a_log.const_data_ptr<float>(), dt_bias.const_data_ptr<float>()};
  }
  int64_t width() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

void check(const at::Tensor &x, const at::Tensor &ba, const Sizes &sizes, const at::Tensor &a_log, const at::Tensor &dt_bias) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == sizes.width() && ba.dim() == 2 && ba.size(0) == x.size(0) && ba.size(1) == 2 * sizes.value_heads,
              "x must be [T, ", sizes.width(), "] and ba [T, ", 2 * sizes.value_heads, "], got ", x.sizes(), " and ", ba.sizes());
  for (const auto &t : {a_log, dt_bias})
    TORCH_CHECK(
        t.scalar_type() == wide_of(x) && t.dim() == 1 && t.size(0) == sizes.value_heads && t.is_contiguous() && t.device() == x.device(),
        "a_log and dt_bias must be float32 [", sizes.value_heads, "] and contiguous");
}

// The definition of the rule, computed row by row with LibTorch's operators.
struct Composite {
  at::Tensor q, k, v, beta, decay;  // [T, value_heads, ...]

  Composite(const at::Tensor &x, const at::Tensor &ba, const Sizes &s, const at::Tensor &a_log, const at::Tensor &dt_bias) {
    const int64_t keys = s.key_heads * s.key_dim, heads = s.value_heads;
    const auto normalised = [&](int64_t from) {
      const auto heads_of = x.narrow(1, from, keys).reshape({-1, s.key_heads, s.key_dim});
      return (heads_of / at::sqrt(heads_of.square().sum(-1, true) + 1e-6)).repeat_interleave(heads / s.key_heads, 1);
    };
    q = normalised(0) / std::sqrt(static_cast<double>(s.key_dim)), k = normalised(keys);
    v = x.narrow(1, 2 * keys, heads * s.value_dim).reshape({-1, heads, s.value_dim});
    beta = at::sigmoid(ba.narrow(1, 0, heads));
    decay = at::exp(-at::exp(a_log) * at::softplus(ba.narrow(1, heads, heads) + dt_bias));
  }
  // Advances a state by a row, and returns the row's result.
  at::Tensor step(int64_t row, at::Tensor &state) const {
    const auto key = k[row].unsqueeze(2);
    state = state * decay[row].view({-1, 1, 1});
    const auto r = v[row] - (state * key).sum(1);
    state = state + key * (beta[row].unsqueeze(1) * r).unsqueeze(1);
    return (state * q[row].unsqueeze(2)).sum(1).flatten();
  }
};

at::Tensor packed_composite(const at::Tensor &x, const Composite &c, const Sizes &s, const mgrpo_pieces &pieces) {
  std::vector<at::Tensor> states, rows;
  for (int64_t p = 0; p < pieces.count; p++) {
    auto state = pieces.before[p] < 0 ? at::zeros({s.value_heads, s.key_dim, s.value_dim}, x.options()) : states[pieces.before[p]];
    for (int64_t r = pieces.first[p]; r < pieces.first[p + 1]; r++) rows.push_back(c.step(r, state));
    states.push_back(state);
  }
  return rows.empty() ? at::zeros({0, s.value_heads * s.value_dim}, x.options()) : at::stack(rows);
}

struct Forward {
  at::Tensor y, r, states;
};

Forward packed(const at::Tensor &x, const at::Tensor &ba, const mgrpo_delta_rule &rule, const mgrpo_pieces &pieces) {
  const auto floats = x.options().dtype(at::kFloat);
  const int64_t width = rule.value_heads * rule.value_dim;
  Forward f{at::empty({x.size(0), width}, x.options()), at::empty({x.size(0), width}, floats),
            at::empty({pieces.count, rule.value_heads, rule.key_dim, rule.value_dim}, floats)};
  float *r = f.r.mutable_data_ptr<float>(), *states = f.states.mutable_data_ptr<float>();
  if (x.is_cuda())
    check_status(the_cuda_part->delta_rule_packed(x.const_data_ptr(), ba.const_data_ptr(), rule, pieces, dtype_of(x),
                                                  f.y.mutable_data_ptr(), r, states, x.size(0), stream_of(x)));
  else
    check_status(mgrpo_delta_rule_packed_cpu(x.const_data_ptr<float>(), ba.const_data_ptr<float>(), rule, pieces,
                                             f.y.mutable_data_ptr<float>(), r, states));
  return f;
}

struct Packed : torch::autograd::Function<Packed> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x, const at::Tensor &ba, const at::Tensor &a_log,
                            const at::Tensor &dt_bias, const at::Tensor &host, const at::Tensor &device, std::vector<int64_t> sizes) {
    const Sizes s{sizes[0], sizes[1], sizes[2], sizes[3]};
    auto f = packed(x, ba, s.rule(a_log, dt_bias), pieces_of(host, device));
    ctx->save_for_backward({x, ba, a_log, dt_bias, host, device, f.r, f.states});
    ctx->saved_data["sizes"] = sizes;
    return f.y;
  }
  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &ba = saved[1], &a_log = saved[2], &dt_bias = saved[3], &r = saved[6], &states = saved[7];
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const auto rule = Sizes{sizes[0], sizes[1], sizes[2], sizes[3]}.rule(a_log, dt_bias);
    const auto pieces = pieces_of(saved[4], saved[5]);
    auto dy = grads[0].contiguous(), dx = at::empty_like(x), dba = at::empty_like(ba);
    at::Tensor da_log, ddt_bias;
    if (ctx->needs_input_grad(2)) da_log = at::zeros_like(a_log);
    if (ctx->needs_input_grad(3)) ddt_bias = at::zeros_like(dt_bias);
    const float *R = r.const_data_ptr<float>(), *S = states.const_data_ptr<float>();
    if (x.is_cuda())
      check_status(the_cuda_part->delta_rule_packed_bwd(dy.const_data_ptr(), x.const_data_ptr(), ba.const_data_ptr(), R, S, rule, pieces,
                                                        dtype_of(x), dx.mutable_data_ptr(), dba.mutable_data_ptr(), floats_or_null(da_log),
                                                        floats_or_null(ddt_bias), x.size(0), stream_of(x)));
    else
      check_status(mgrpo_delta_rule_packed_bwd_cpu(dy.const_data_ptr<float>(), x.const_data_ptr<float>(), ba.const_data_ptr<float>(), R, S,
                                                   rule, pieces, dx.mutable_data_ptr<float>(), dba.mutable_data_ptr<float>(),
                                                   floats_or_null(da_log), floats_or_null(ddt_bias)));
    return {dx, dba, da_log, ddt_bias, {}, {}, {}};
  }
};

bool in_double(const at::Tensor &x) { return x.scalar_type() == at::kDouble; }

// Returns x and ba in a dtype and layout that the kernels accept.
std::pair<at::Tensor, at::Tensor> inputs(const at::Tensor &x, const at::Tensor &ba) {
  if (ours(x, ba)) return {x.contiguous(), ba.contiguous()};
  TORCH_CHECK(x.is_cpu(), "the gated delta rule on a GPU needs float32 or bfloat16");
  return {x.to(at::kFloat).contiguous(), ba.to(at::kFloat).contiguous()};
}

Sizes sizes_of(const mgt_delta_rule &r) { return {r.key_heads, r.value_heads, r.key_dim, r.value_dim}; }

}  // namespace

mgt_pair mgt_pieces(mgt_device *d, void *cu, void *follows_or_null) {
  mgt_pair pair{};
  pair.error = run(d, [&] {
    const auto &C = ref(cu);
    TORCH_CHECK(C.dim() == 1 && C.size(0) > 0 && C.scalar_type() == at::kInt, "cu must be int32 [B + 1]");
    at::Tensor follows;
    if (follows_or_null != nullptr) {
      int32s(ref(follows_or_null), C.size(0) - 1, "follows", C);
      follows = ref(follows_or_null).cpu();
    }
    const auto host = described(C.cpu().contiguous(), follows);
    own(pair.first, host);
    own(pair.second, host.to(C.device()));
  });
  return pair;
}

mgt_tensor mgt_delta_rule_packed(mgt_device *d, void *x, void *ba, mgt_delta_rule rule, void *pieces, void *pieces_on_device) {
  return make(d, [&] {
    const auto &X = ref(x), &A = ref(rule.a_log), &T = ref(rule.dt_bias), &P = ref(pieces), &D = ref(pieces_on_device);
    const Sizes sizes = sizes_of(rule);
    check(X, ref(ba), sizes, A, T);
    const auto divided = pieces_of(P, D);
    TORCH_CHECK(P.const_data_ptr<int32_t>()[kRows] == X.size(0), "the pieces have ", P.const_data_ptr<int32_t>()[kRows], " rows, x has ",
                X.size(0));
    if (in_double(X)) return packed_composite(X, Composite(X, ref(ba), sizes, A, T), sizes, pieces_of(P, P));
    const auto [in, gates] = inputs(X, ref(ba));
    auto y =
        recorded(X, ref(ba), A, T)
            ? Packed::apply(in, gates, A, T, P, D, std::vector<int64_t>{sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim})
            : packed(in, gates, sizes.rule(A, T), divided).y;
    return y.to(X.scalar_type());
  });
}

mgt_tensor mgt_delta_rule_states(mgt_device *d, void *x, void *ba, mgt_delta_rule rule, void *states, void *slot, void *pos) {
  return make(d, [&] {
    at::NoGradGuard no_grad;
    auto &S = ref(states);
    const auto &X = ref(x), &A = ref(rule.a_log), &T = ref(rule.dt_bias);
    const Sizes sizes = sizes_of(rule);
    check(X, ref(ba), sizes, A, T);
    TORCH_CHECK(S.dim() == 4 && S.size(1) == sizes.value_heads && S.size(2) == sizes.key_dim && S.size(3) == sizes.value_dim &&
                    S.scalar_type() == wide_of(X) && S.is_contiguous() && S.device() == X.device(),
                "states must be float32 [slots, ", sizes.value_heads, ", ", sizes.key_dim, ", ", sizes.value_dim, "] and contiguous, got ",
                S.sizes());
    const auto slots = int32s(ref(slot), X.size(0), "slot", X), positions = int32s(ref(pos), X.size(0), "pos", X);
    if (in_double(X)) {
      const Composite c(X, ref(ba), sizes, A, T);
      const auto of_row = ref(slot).cpu(), at_row = ref(pos).cpu();
      const auto *number = of_row.const_data_ptr<int32_t>(), *position = at_row.const_data_ptr<int32_t>();
      auto y = at::empty({X.size(0), sizes.value_heads * sizes.value_dim}, X.options());
      for (int64_t r = 0; r < X.size(0); r++) {
        TORCH_CHECK(number[r] >= 0 && number[r] < S.size(0), "is every slot among the states?");
        auto state = position[r] == 0 ? at::zeros_like(S[0]) : S[number[r]].clone();
        y[r].copy_(c.step(r, state));
        S[number[r]].copy_(state);
      }
      return y;
    }
    const auto [in, gates] = inputs(X, ref(ba));
    auto y = at::empty({in.size(0), sizes.value_heads * sizes.value_dim}, in.options());
    if (in.is_cuda())
      check_status(the_cuda_part->delta_rule_states(in.const_data_ptr(), gates.const_data_ptr(), sizes.rule(A, T), dtype_of(in),
                                                    S.mutable_data_ptr<float>(), S.size(0), slots, positions, y.mutable_data_ptr(),
                                                    in.size(0), stream_of(in)));
    else
      check_status(
          mgrpo_delta_rule_states_cpu(in.const_data_ptr<float>(), gates.const_data_ptr<float>(), sizes.rule(A, T),
                                      S.mutable_data_ptr<float>(), S.size(0), slots, positions, y.mutable_data_ptr<float>(), in.size(0)),
          ": is every slot among the states?");
    return y.to(X.scalar_type());
  });
}
