#include "backend.h"

#include <cstdlib>

#ifdef MGRPO_CUDA
#include <cuda_runtime_api.h>
#endif

namespace conformance {

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
}

// available() is asked at the start of each test, and chooses the device.
template <int kDevice>
bool use_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > kDevice && cudaSetDevice(kDevice) == cudaSuccess;
}

}  // namespace
#endif

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
