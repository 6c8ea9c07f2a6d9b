#include "backend.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#ifdef MGRPO_CUDA
#include <cuda_runtime_api.h>
#endif

namespace conformance {
namespace {

const float *floats(const void *p) { return static_cast<const float *>(p); }
float *floats(void *p) { return static_cast<float *>(p); }

// Calls a layer on the CPU, which supports float32 only.
#define MGRPO_FLOAT32_ONLY(call) dtype == MGRPO_FLOAT32 ? call : MGRPO_UNSUPPORTED

}  // namespace

const Backend &cpu() {
  static const Backend backend{
      "cpu",
      false,
      [] { return true; },
      [](size_t n) { return std::malloc(n); },
      [](void *p) { std::free(p); },
      [](void *to, const void *from, size_t n) { std::memcpy(to, from, n); },
      [](void *to, const void *from, size_t n) { std::memcpy(to, from, n); },
      mgrpo_group_advantage_cpu,
      mgrpo_token_logprob_cpu,
      mgrpo_token_logprob_bwd_cpu,
      mgrpo_policy_loss_cpu,
      mgrpo_policy_gradient_from_logits_cpu,
      mgrpo_policy_loss_from_logits_cpu,
      mgrpo_grad_norm_cpu,
      mgrpo_adamw_cpu,
      mgrpo_sample_cpu,
      [](const void *x, const void *w, int32_t dtype, float offset, double eps, void *y, float *inv_rms, int64_t rows, int64_t d)
          -> int32_t { return MGRPO_FLOAT32_ONLY(mgrpo_rms_norm_cpu(floats(x), floats(w), offset, eps, floats(y), inv_rms, rows, d)); },
      [](const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps, void *sum, void *y, float *inv_rms,
         int64_t rows, int64_t d) -> int32_t {
        return MGRPO_FLOAT32_ONLY(
            mgrpo_add_rms_norm_cpu(floats(x), floats(residual), floats(w), offset, eps, floats(sum), floats(y), inv_rms, rows, d));
      },
      [](const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more, int32_t dtype, float offset, void *dx,
         float *dw, int64_t rows, int64_t d) -> int32_t {
        return MGRPO_FLOAT32_ONLY(
            mgrpo_rms_norm_bwd_cpu(floats(dy), floats(x), floats(w), offset, inv_rms, floats(dx_more), floats(dx), dw, rows, d));
      },
      [](int32_t gates, const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_glu_cpu(gates, floats(gate_up), floats(y), rows, f));
      },
      [](int32_t gates, const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_glu_bwd_cpu(gates, floats(dy), floats(gate_up), floats(dgate_up), rows, f));
      },
      [](const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k, void *v, float *inv_q, float *inv_k,
         int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_split_heads_cpu(floats(qkv), layout, floats(q), floats(k), floats(v), inv_q, inv_k, rows));
      },
      [](const void *dq, const void *dk, const void *dv, const void *qkv, mgrpo_heads layout, const float *inv_q, const float *inv_k,
         int32_t dtype, void *dqkv, float *dw_q, float *dw_k, int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_split_heads_bwd_cpu(floats(dq), floats(dk), floats(dv), floats(qkv), layout, inv_q, inv_k,
                                                            floats(dqkv), dw_q, dw_k, rows));
      },
      [](const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k_cache, void *v_cache, mgrpo_pages pages,
         const int32_t *sequence, int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_cache_heads_cpu(floats(qkv), layout, floats(q), k_cache, v_cache, dtype, pages, sequence, rows));
      },
      [](const void *q, const void *k_cache, const void *v_cache, mgrpo_pages pages, const int32_t *sequence, const int32_t *length,
         const float *sinks, int32_t dtype, void *out, int64_t rows, int64_t heads, float scale, int64_t window) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_attention_cached_cpu(floats(q), k_cache, v_cache, dtype, pages, sequence, length, sinks,
                                                             floats(out), rows, heads, scale, window));
      },
      [](const mgrpo_lora *adapters, int64_t count, const int32_t *which, const void *x, int32_t dtype, void *y, int64_t rows, int64_t k,
         int64_t n) -> int32_t { return MGRPO_FLOAT32_ONLY(mgrpo_lora_add_cpu(adapters, count, which, floats(x), floats(y), rows, k, n)); },
      mgrpo_moe_route_cpu,
      mgrpo_moe_route_bwd_cpu,
      mgrpo_moe_sort_cpu,
      [](const void *x, const int32_t *source, int32_t dtype, void *y, int64_t tokens, int64_t k, int64_t d) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_moe_gather_cpu(floats(x), source, floats(y), tokens, k, d));
      },
      [](const void *x, const void *w, const int32_t *first, int32_t dtype, void *y, int64_t entries, int64_t experts, int64_t in,
         int64_t out) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_moe_linear_cpu(floats(x), floats(w), first, floats(y), entries, experts, in, out));
      },
      [](const void *x, const int32_t *place, const float *weight, int32_t dtype, void *y, int64_t tokens, int64_t k,
         int64_t d) -> int32_t { return MGRPO_FLOAT32_ONLY(mgrpo_moe_combine_cpu(floats(x), place, weight, floats(y), tokens, k, d)); },
      [](void *g, void *a, const int32_t *source, const float *weight, int32_t dtype, float *dweight, int64_t entries, int64_t d)
          -> int32_t { return MGRPO_FLOAT32_ONLY(mgrpo_moe_weigh_cpu(floats(g), floats(a), source, weight, dweight, entries, d)); },
      [](const void *w, int32_t type, const int32_t *rows, int32_t dtype, void *y, int64_t count, int64_t n, int64_t k) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_dequantise_cpu(w, type, rows, floats(y), count, n, k));
      },
      [](const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows, int64_t batch, int32_t dtype, void *y,
         int64_t) -> int32_t { return MGRPO_FLOAT32_ONLY(mgrpo_short_conv_packed_cpu(floats(bcx), conv, cu, follows, batch, floats(y))); },
      [](const void *dy, const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows, int64_t batch, int32_t dtype,
         void *dbcx, float *dw, float *dbias, int64_t) -> int32_t {
        return MGRPO_FLOAT32_ONLY(
            mgrpo_short_conv_packed_bwd_cpu(floats(dy), floats(bcx), conv, cu, follows, batch, floats(dbcx), dw, dbias));
      },
      [](const void *bcx, mgrpo_short_conv conv, int32_t dtype, void *cache, mgrpo_pages pages, const int32_t *sequence, const int32_t *pos,
         void *y, int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_short_conv_cached_cpu(floats(bcx), conv, floats(cache), pages, sequence, pos, floats(y), rows));
      },
      [](const void *u, mgrpo_short_conv conv, int32_t dtype, void *states, int64_t slots, const int32_t *slot, const int32_t *pos, void *y,
         int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_short_conv_states_cpu(floats(u), conv, floats(states), slots, slot, pos, floats(y), rows));
      },
      [](const void *x, const void *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *y, float *r, float *states,
         int64_t) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_delta_rule_packed_cpu(floats(x), floats(ba), rule, pieces, floats(y), r, states));
      },
      [](const void *dy, const void *x, const void *ba, const float *r, const float *states, mgrpo_delta_rule rule, mgrpo_pieces pieces,
         int32_t dtype, void *dx, void *dba, float *da_log, float *ddt_bias, int64_t) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_delta_rule_packed_bwd_cpu(floats(dy), floats(x), floats(ba), r, states, rule, pieces, floats(dx),
                                                                  floats(dba), da_log, ddt_bias));
      },
      [](const void *x, const void *ba, mgrpo_delta_rule rule, int32_t dtype, float *states, int64_t slots, const int32_t *slot,
         const int32_t *pos, void *y, int64_t rows) -> int32_t {
        return MGRPO_FLOAT32_ONLY(mgrpo_delta_rule_states_cpu(floats(x), floats(ba), rule, states, slots, slot, pos, floats(y), rows));
      },
      true,
  };
  return backend;
}

#ifdef MGRPO_CUDA
namespace {

// Calls the GPU version of a backend's function on the default stream.
template <auto kCall, class>
struct OnDefaultStream;
template <auto kCall, class... Arguments>
struct OnDefaultStream<kCall, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... arguments) { return kCall(arguments..., nullptr); }
};
#define MGRPO_ON_DEFAULT_STREAM(name) OnDefaultStream<mgrpo_##name##_cuda, decltype(Backend::name)>::call

Backend cuda(const char *name, bool is_emulated, bool (*available)()) {
  return {
      name,
      is_emulated,
      available,
      [](size_t n) {
        void *p = nullptr;
        EXPECT_EQ(cudaMalloc(&p, n), cudaSuccess);
        return p;
      },
      [](void *p) { cudaFree(p); },
      [](void *to, const void *from, size_t n) { EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice), cudaSuccess); },
      [](void *to, const void *from, size_t n) { EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost), cudaSuccess); },
      MGRPO_ON_DEFAULT_STREAM(group_advantage),
      MGRPO_ON_DEFAULT_STREAM(token_logprob),
      MGRPO_ON_DEFAULT_STREAM(token_logprob_bwd),
      MGRPO_ON_DEFAULT_STREAM(policy_loss),
      MGRPO_ON_DEFAULT_STREAM(policy_gradient_from_logits),
      MGRPO_ON_DEFAULT_STREAM(policy_loss_from_logits),
      MGRPO_ON_DEFAULT_STREAM(grad_norm),
      MGRPO_ON_DEFAULT_STREAM(adamw),
      MGRPO_ON_DEFAULT_STREAM(sample),
      MGRPO_ON_DEFAULT_STREAM(rms_norm),
      MGRPO_ON_DEFAULT_STREAM(add_rms_norm),
      MGRPO_ON_DEFAULT_STREAM(rms_norm_bwd),
      MGRPO_ON_DEFAULT_STREAM(glu),
      MGRPO_ON_DEFAULT_STREAM(glu_bwd),
      MGRPO_ON_DEFAULT_STREAM(split_heads),
      MGRPO_ON_DEFAULT_STREAM(split_heads_bwd),
      MGRPO_ON_DEFAULT_STREAM(cache_heads),
      MGRPO_ON_DEFAULT_STREAM(attention_cached),
      MGRPO_ON_DEFAULT_STREAM(lora_add),
      MGRPO_ON_DEFAULT_STREAM(moe_route),
      MGRPO_ON_DEFAULT_STREAM(moe_route_bwd),
      MGRPO_ON_DEFAULT_STREAM(moe_sort),
      MGRPO_ON_DEFAULT_STREAM(moe_gather),
      MGRPO_ON_DEFAULT_STREAM(moe_linear),
      MGRPO_ON_DEFAULT_STREAM(moe_combine),
      MGRPO_ON_DEFAULT_STREAM(moe_weigh),
      MGRPO_ON_DEFAULT_STREAM(dequantise),
      MGRPO_ON_DEFAULT_STREAM(short_conv_packed),
      MGRPO_ON_DEFAULT_STREAM(short_conv_packed_bwd),
      MGRPO_ON_DEFAULT_STREAM(short_conv_cached),
      MGRPO_ON_DEFAULT_STREAM(short_conv_states),
      MGRPO_ON_DEFAULT_STREAM(delta_rule_packed),
      MGRPO_ON_DEFAULT_STREAM(delta_rule_packed_bwd),
      MGRPO_ON_DEFAULT_STREAM(delta_rule_states),
      false,
  };
}

// Selects the device when available() is called, at the start of each test.
template <int kDevice>
bool use_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > kDevice && cudaSetDevice(kDevice) == cudaSuccess;
}

}  // namespace
#endif

bool gpu_required() {
  const char *set = std::getenv("MGRPO_REQUIRE_GPU");
  return set && std::string(set) == "1";
}

namespace {

std::map<std::string, int> runs;  // number of tests by backend, without the CPU

class PrintRuns : public testing::Environment {
 public:
  void TearDown() override {
    for (const auto &[name, tests] : runs) std::printf("%d tests ran on %s\n", tests, name.c_str());
    if (gpu_required() && runs.empty()) ADD_FAILURE() << "no test ran on a GPU, and MGRPO_REQUIRE_GPU is set";
  }
};

[[maybe_unused]] const auto *const print_runs = testing::AddGlobalTestEnvironment(new PrintRuns);

}  // namespace

void count_run(const Backend &backend) {
  if (&backend != &cpu()) runs[backend.name]++;
}

std::vector<const Backend *> backends() {
#if defined(MGRPO_CUDA_EMULATED)
  static const Backend sm90 = cuda("cuda_sm90_emulated", true, use_device<0>), sm80 = cuda("cuda_sm80_emulated", true, use_device<1>);
  return {&sm90, &sm80};
#elif defined(MGRPO_CUDA)
  static const Backend gpu = cuda("cuda", false, use_device<0>);
  return {&cpu(), &gpu};
#else
  return {&cpu()};
#endif
}

}  // namespace conformance
