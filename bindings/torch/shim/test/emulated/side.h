// Counts the groups of messages that the emulated NCCL was given on a side stream, and the groups that are done.
#pragma once
#include <atomic>
#include <cstdint>

struct emulated_side {
  std::atomic<uint64_t> given{0}, done{0};
};
