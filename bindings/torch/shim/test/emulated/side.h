// A stream beside the current one, as far as the emulated NCCL works on it: how many groups of messages it was given, and how many are
// done.
#pragma once
#include <atomic>
#include <cstdint>

struct emulated_side {
  std::atomic<uint64_t> given{0}, done{0};
};
