// Kernel calls of a Qwen3 with 1.7B parameters in bfloat16: 16 query and 8 key/value heads of 128, width 2,048, inner width 6,144.
#pragma once
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "mgrpo/adamw.h"
#include "mgrpo/attention.h"
#include "mgrpo/glu.h"
#include "mgrpo/heads.h"
#include "mgrpo/logprob.h"
#include "mgrpo/memory.h"
#include "mgrpo/moe.h"
#include "mgrpo/rms_norm.h"
#include "mgrpo/sample.h"

namespace qwen3 {

// Arrays of a call. Unless `real` is set, they are addresses without memory and must not be read.
class DeviceArrays {
 public:
  explicit DeviceArrays(bool real) : real_(real) {}
  DeviceArrays(const DeviceArrays &) = delete;
  DeviceArrays &operator=(const DeviceArrays &) = delete;
  ~DeviceArrays() {
    for (void *p : all_) cudaFree(p);
  }

  // Element i is f(i).
  template <class T, class F>
  T *array(int64_t n, const F &f) {
    if (!real_) return reinterpret_cast<T *>(uintptr_t{1} << 40);
    std::vector<T> host;
    for (int64_t i = 0; i < n; i++) host.push_back(static_cast<T>(f(i)));
    void *p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, static_cast<size_t>(n) * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    all_.push_back(p);
    return static_cast<T *>(p);
  }
  template <class T>
  T *normal(int64_t n, float scale = 1) {
    std::normal_distribution<float> draw(0, scale);
    return array<T>(n, [&](int64_t) { return draw(generator_); });
  }

 private:
  const bool real_;
  std::mt19937 generator_{7};
  std::vector<void *> all_;
};

struct Sizes {
  int64_t rows, logit_rows, vocab, parameters, sequences, keys, tokens;
};

struct Call {
  const char *name;
  int64_t bytes;  // number of bytes that it must move; it reads or writes each number once
  std::function<int32_t(DeviceArrays &)> run;
};

inline std::vector<Call> calls(const Sizes &of) {
  using Bf16 = __nv_bfloat16;
  constexpr int64_t kHeads = 16, kKeyHeads = 8, kHd = 128, kHalf = kHd / 2, kWidth = (kHeads + 2 * kKeyHeads) * kHd, kHidden = 2048,
                    kWithin = 6144, kBlock = 16, kExperts = 128, kChosen = 8;
  constexpr int32_t kType = MGRPO_BFLOAT16;
  const int64_t rows = of.rows, logit_rows = of.logit_rows, vocab = of.vocab, n = of.parameters, sequences = of.sequences, keys = of.keys,
                entries = of.tokens * kChosen;
  const auto heads = [](DeviceArrays &d, int64_t rows, int64_t longest) {
    const auto one = [](int64_t) { return 1.0f; };
    return mgrpo_heads{kHeads,
                       kKeyHeads,
                       kHd,
                       d.normal<Bf16>(kHd),
                       d.normal<Bf16>(kHd),
                       0,
                       0,
                       1e-6,
                       d.array<float>(longest * kHalf, one),
                       d.array<float>(longest * kHalf, one),
                       kHd,
                       longest,
                       d.array<int32_t>(rows, [=](int64_t r) { return r % longest; })};
  };
  const auto pages = [=](DeviceArrays &d) {
    const int64_t width = (keys + kBlock - 1) / kBlock;
    return mgrpo_pages{
        d.array<int32_t>(sequences * width, [](int64_t i) { return i; }), sequences, width, sequences * width, kKeyHeads, kBlock, kHd};
  };
  const auto numbered = [](DeviceArrays &d, int64_t n) { return d.array<int32_t>(n, [](int64_t i) { return i; }); };
  const auto sample = [=](DeviceArrays &d, double top_p, int32_t top_k) {
    const std::vector<mgrpo_sampling> settings(
        static_cast<size_t>(sequences), {.temperature = 1, .top_p = top_p, .min_p = 0, .top_k = top_k, .key = {1, 2}, .position = 3});
    int64_t bad;
    return mgrpo_sample_cuda(d.normal<float>(sequences * vocab, 3), MGRPO_FLOAT32, sequences, vocab, vocab, settings.data(),
                             d.array<int32_t>(sequences, [](int64_t) { return 0; }), nullptr, nullptr, &bad, nullptr);
  };
  const auto heads_back = [=](DeviceArrays &d, bool weights) {
    const auto zeros = [&](int64_t n) { return weights ? d.array<float>(n, [](int64_t) { return 0; }) : nullptr; };
    return mgrpo_split_heads_bwd_cuda(d.normal<Bf16>(rows * kHeads * kHd), d.normal<Bf16>(rows * kKeyHeads * kHd),
                                      d.normal<Bf16>(rows * kKeyHeads * kHd), d.normal<Bf16>(rows * kWidth), heads(d, rows, 512),
                                      d.normal<float>(rows * kHeads), d.normal<float>(rows * kKeyHeads), kType,
                                      d.normal<Bf16>(rows * kWidth), zeros(kHd), zeros(kHd), rows, nullptr);
  };
  return {
      {"split_heads", 4 * rows * kWidth,
       [=](DeviceArrays &d) {
         return mgrpo_split_heads_cuda(d.normal<Bf16>(rows * kWidth), heads(d, rows, 512), kType, d.normal<Bf16>(rows * kHeads * kHd),
                                       d.normal<Bf16>(rows * kKeyHeads * kHd), d.normal<Bf16>(rows * kKeyHeads * kHd),
                                       d.normal<float>(rows * kHeads), d.normal<float>(rows * kKeyHeads), rows, nullptr);
       }},
      {"split_heads_bwd", 4 * rows * kWidth + 2 * rows * (kHeads + kKeyHeads) * kHd, [=](DeviceArrays &d) { return heads_back(d, false); }},
      {"split_heads_bwd, weights", 4 * rows * kWidth + 2 * rows * (kHeads + kKeyHeads) * kHd,
       [=](DeviceArrays &d) { return heads_back(d, true); }},
      {"cache_heads", 4 * sequences * kWidth,
       [=](DeviceArrays &d) {
         const mgrpo_pages to = pages(d);
         const int64_t all = to.blocks * kKeyHeads * kBlock * kHd;
         return mgrpo_cache_heads_cuda(d.normal<Bf16>(sequences * kWidth), heads(d, sequences, keys), kType,
                                       d.normal<Bf16>(sequences * kHeads * kHd), d.normal<Bf16>(all), d.normal<Bf16>(all), to,
                                       numbered(d, sequences), sequences, nullptr);
       }},
      {"rms_norm", 4 * rows * kHidden,
       [=](DeviceArrays &d) {
         return mgrpo_rms_norm_cuda(d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(kHidden), kType, 0, 1e-6, d.normal<Bf16>(rows * kHidden),
                                    d.normal<float>(rows), rows, kHidden, nullptr);
       }},
      {"add_rms_norm", 8 * rows * kHidden,
       [=](DeviceArrays &d) {
         return mgrpo_add_rms_norm_cuda(d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(kHidden), kType, 0,
                                        1e-6, d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(rows * kHidden), d.normal<float>(rows), rows,
                                        kHidden, nullptr);
       }},
      {"rms_norm_bwd", 8 * rows * kHidden,
       [=](DeviceArrays &d) {
         return mgrpo_rms_norm_bwd_cuda(d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(rows * kHidden), d.normal<Bf16>(kHidden),
                                        d.normal<float>(rows), d.normal<Bf16>(rows * kHidden), kType, 0, d.normal<Bf16>(rows * kHidden),
                                        d.normal<float>(kHidden), rows, kHidden, nullptr);
       }},
      {"swiglu", 6 * rows * kWithin,
       [=](DeviceArrays &d) {
         return mgrpo_glu_cuda(MGRPO_SWIGLU, d.normal<Bf16>(2 * rows * kWithin), kType, d.normal<Bf16>(rows * kWithin), rows, kWithin,
                               nullptr);
       }},
      {"swiglu_bwd", 10 * rows * kWithin,
       [=](DeviceArrays &d) {
         return mgrpo_glu_bwd_cuda(MGRPO_SWIGLU, d.normal<Bf16>(rows * kWithin), d.normal<Bf16>(2 * rows * kWithin), kType,
                                   d.normal<Bf16>(2 * rows * kWithin), rows, kWithin, nullptr);
       }},
      {"token_logprob", 2 * logit_rows * vocab,
       [=](DeviceArrays &d) {
         int64_t bad;
         return mgrpo_token_logprob_cuda(d.normal<Bf16>(logit_rows * vocab), kType, logit_rows, vocab, vocab, numbered(d, logit_rows),
                                         nullptr, 1, d.normal<float>(logit_rows), d.normal<float>(logit_rows), &bad, nullptr);
       }},
      {"token_logprob_bwd", 4 * logit_rows * vocab,
       [=](DeviceArrays &d) {
         int64_t bad;
         return mgrpo_token_logprob_bwd_cuda(d.normal<Bf16>(logit_rows * vocab), kType, logit_rows, vocab, vocab, numbered(d, logit_rows),
                                             nullptr, 1, d.normal<float>(logit_rows), nullptr, &bad, nullptr);
       }},
      {"adamw", 30 * n,
       [=](DeviceArrays &d) {
         const mgrpo_adamw_config config{
             .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 1, .step = 1};
         return mgrpo_adamw_cuda(d.normal<float>(n), d.normal<float>(n), d.array<float>(n, [](int64_t) { return 1; }), d.normal<float>(n),
                                 d.array<uint16_t>(n, [](int64_t) { return 0; }), n, 1, &config, nullptr);
       }},
      {"grad_norm", 4 * n,
       [=](DeviceArrays &d) {
         double norm;
         return mgrpo_grad_norm_cuda(d.normal<float>(n), n, &norm, nullptr);
       }},
      {"attention_cached", 4 * sequences * keys * kKeyHeads * kHd,
       [=](DeviceArrays &d) {
         const mgrpo_pages at = pages(d);
         const int64_t all = at.blocks * kKeyHeads * kBlock * kHd;
         return mgrpo_attention_cached_cuda(d.normal<Bf16>(sequences * kHeads * kHd), d.normal<Bf16>(all), d.normal<Bf16>(all), at,
                                            numbered(d, sequences), d.array<int32_t>(sequences, [=](int64_t) { return keys; }), nullptr,
                                            kType, d.normal<Bf16>(sequences * kHeads * kHd), sequences, kHeads, 0.088f, 0, nullptr);
       }},
      {"sample", 4 * sequences * vocab, [=](DeviceArrays &d) { return sample(d, 1, 0); }},
      {"sample, top_p", 4 * sequences * vocab, [=](DeviceArrays &d) { return sample(d, 0.95, 0); }},
      {"sample, top_k", 4 * sequences * vocab, [=](DeviceArrays &d) { return sample(d, 1, 40); }},
      {"moe_sort", 12 * entries,
       [=](DeviceArrays &d) {
         return mgrpo_moe_sort_cuda(d.array<int32_t>(entries, [=](int64_t i) { return i * 37 % kExperts; }),
                                    d.array<int32_t>(kExperts + 1, [](int64_t) { return 0; }),
                                    d.array<int32_t>(entries, [](int64_t) { return 0; }),
                                    d.array<int32_t>(entries, [](int64_t) { return 0; }), entries, kExperts, nullptr);
       }},
  };
}

}  // namespace qwen3
