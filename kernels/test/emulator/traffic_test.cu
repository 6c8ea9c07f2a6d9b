// Compares the global memory traffic that the kernels request with the minimum. A cache may serve part of it, and a GPU executes other
// instructions than this program. But a second pass over a tensor is visible.
#include "qwen3.h"

namespace {

struct Row {
  const char *call;
  double asked;  // bytes requested per byte that must be moved
};

constexpr Row kTable[] = {
    {"split_heads", 1.67},
    {"split_heads_bwd", 1.25},
    {"split_heads_bwd, weights", 1.26},
    {"cache_heads", 2.98},
    {"rms_norm", 1.51},
    {"add_rms_norm", 1.26},
    {"rms_norm_bwd", 1.23},
    {"swiglu", 1.00},
    {"swiglu_bwd", 1.00},
    {"token_logprob", 1.02},
    {"token_logprob_bwd", 1.03},
    {"adamw", 1.00},
    {"grad_norm", 1.01},
    {"attention_cached", 1.08},
    {"sample", 1.37},
    {"sample, top_p", 5.51},
    {"sample, top_k", 3.36},
    {"moe_sort", 2.18},
};
constexpr double kLeeway = 0.02;

TEST(Traffic, OfQwen3) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const int64_t few = std::exchange(emulator::max_blocks, 1 << 12);
  const std::vector<qwen3::Call> calls =
      qwen3::calls({.rows = 512, .logit_rows = 8, .vocab = 151936, .parameters = 100000, .sequences = 2, .keys = 640, .tokens = 512});
  EXPECT_EQ(std::size(kTable), calls.size());
  for (size_t i = 0; i < calls.size(); i++) {
    qwen3::DeviceArrays arrays(true);
    emulator::races::bytes_asked = 0;
    EXPECT_EQ(calls[i].run(arrays), MGRPO_OK);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    const double asked = static_cast<double>(emulator::races::bytes_asked) / static_cast<double>(calls[i].bytes);
    const Row want = i < std::size(kTable) ? kTable[i] : Row{"", 0};
    EXPECT_STREQ(want.call, calls[i].name);
    EXPECT_LE(asked, want.asked) << calls[i].name << " requests more";
    EXPECT_GE(asked, want.asked - kLeeway) << calls[i].name << " requests less: lower its row";
  }
  emulator::max_blocks = few;
}

}  // namespace
