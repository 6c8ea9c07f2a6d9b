// Numbers of blocks and threads of the kernels for a Qwen3 of 1.7B. They must occupy a GPU of 132 multiprocessors.
#include "qwen3.h"

namespace {

struct Row {
  const char *call, *launches;  // launches: blocks x threads, and the number of blocks that share a row
};

// A micro-batch of 4,096 rows, 134.5M parameters, and a decoding pass of 128 sequences with 2,048 keys each.
constexpr Row kTable[] = {
    {"split_heads", "1024 x 256"},
    {"split_heads_bwd", "768 x 256"},
    {"split_heads_bwd, weights", "768 x 256, 8 x 1024"},
    {"cache_heads", "192 x 256"},
    {"rms_norm", "1024 x 256"},
    {"add_rms_norm", "1024 x 256"},
    {"rms_norm_bwd", "512 x 256, 64 x 1024"},
    {"swiglu", "8193 x 256"},
    {"swiglu_bwd", "8193 x 256"},
    {"token_logprob", "4096 x 512"},
    {"token_logprob_bwd", "264 x 512 by 4"},
    {"adamw", "131363 x 256"},
    {"grad_norm", "8211 x 256, 1 x 1024"},
    {"attention_cached", "4096 x 128, 2048 x 128"},
    {"sample", "256 x 512 by 2"},
    {"sample, top_p", "256 x 512 by 2"},
    {"sample, top_k", "256 x 512 by 2"},
    {"moe_sort", "128 x 32, 1 x 1024, 128 x 32"},
};

std::string described(const std::vector<emulator::Planned> &launches) {
  std::string all;
  for (const auto &l : launches) {
    all += (all.empty() ? "" : ", ") + std::to_string(l.blocks) + " x " + std::to_string(l.threads);
    if (l.cluster > 1) all += " by " + std::to_string(l.cluster);
  }
  return all;
}

TEST(Launches, OfQwen3) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const int64_t few = std::exchange(emulator::max_blocks, 1 << 20);
  const std::vector<qwen3::Call> calls = qwen3::calls(
      {.rows = 4096, .logit_rows = 4096, .vocab = 151936, .parameters = 134515008, .sequences = 128, .keys = 2048, .tokens = 16384});
  EXPECT_EQ(std::size(kTable), calls.size());
  for (size_t i = 0; i < calls.size(); i++) {
    qwen3::DeviceArrays arrays(false);
    std::vector<emulator::Planned> launches;
    emulator::plan(&launches);
    calls[i].run(arrays);  // some check results, which do not exist here
    emulator::plan(nullptr);
    const Row want = i < std::size(kTable) ? kTable[i] : Row{"", ""};
    EXPECT_STREQ(want.call, calls[i].name);
    EXPECT_EQ(want.launches, described(launches)) << calls[i].name;
  }
  emulator::max_blocks = few;
}

}  // namespace
