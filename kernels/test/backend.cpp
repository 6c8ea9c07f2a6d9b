#include "backend.h"

#include <cstdlib>

#ifdef MGRPO_CUDA
#include <cuda_runtime_api.h>
#endif

namespace conformance {

const Backend &cpu() {
  static const Backend backend{
      "cpu",
      [] { return true; },
      [](size_t n) { return std::malloc(n); },
      [](void *p) { std::free(p); },
      [](void *to, const void *from, size_t n) { std::memcpy(to, from, n); },
      [](void *to, const void *from, size_t n) { std::memcpy(to, from, n); },
      mgrpo_group_advantage_cpu,
      mgrpo_group_advantage_f32_cpu,
      mgrpo_token_logprob_cpu,
      mgrpo_token_logprob_bwd_cpu,
      mgrpo_policy_loss_cpu,
      mgrpo_policy_gradient_from_logits_cpu,
      mgrpo_policy_loss_from_logits_cpu,
      mgrpo_grad_norm_cpu,
      mgrpo_adamw_cpu,
      mgrpo_sample_cpu,
      mgrpo_first_non_finite_cpu,
  };
  return backend;
}

#ifdef MGRPO_CUDA
namespace {

// A GPU call on the default stream, with the CPU call's arguments.
template <auto kCall, class>
struct OnDefaultStream;
template <auto kCall, class... Arguments>
struct OnDefaultStream<kCall, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... arguments) { return kCall(arguments..., nullptr); }
};
#define MGRPO_ON_DEFAULT_STREAM(name) OnDefaultStream<mgrpo_##name##_cuda, decltype(&mgrpo_##name##_cpu)>::call

const Backend &cuda() {
  static const Backend backend{
      "cuda",
      [] {
        int devices = 0;
        return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
      },
      [](size_t n) {
        void *p = nullptr;
        EXPECT_EQ(cudaMalloc(&p, n), cudaSuccess);
        return p;
      },
      [](void *p) { cudaFree(p); },
      [](void *to, const void *from, size_t n) { EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice), cudaSuccess); },
      [](void *to, const void *from, size_t n) { EXPECT_EQ(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost), cudaSuccess); },
      MGRPO_ON_DEFAULT_STREAM(group_advantage),
      MGRPO_ON_DEFAULT_STREAM(group_advantage_f32),
      MGRPO_ON_DEFAULT_STREAM(token_logprob),
      MGRPO_ON_DEFAULT_STREAM(token_logprob_bwd),
      MGRPO_ON_DEFAULT_STREAM(policy_loss),
      MGRPO_ON_DEFAULT_STREAM(policy_gradient_from_logits),
      MGRPO_ON_DEFAULT_STREAM(policy_loss_from_logits),
      MGRPO_ON_DEFAULT_STREAM(grad_norm),
      MGRPO_ON_DEFAULT_STREAM(adamw),
      MGRPO_ON_DEFAULT_STREAM(sample),
      MGRPO_ON_DEFAULT_STREAM(first_non_finite),
  };
  return backend;
}

}  // namespace
#endif

std::vector<const Backend *> backends() {
  std::vector<const Backend *> all{&cpu()};
#ifdef MGRPO_CUDA
  all.push_back(&cuda());
#endif
  return all;
}

}  // namespace conformance
