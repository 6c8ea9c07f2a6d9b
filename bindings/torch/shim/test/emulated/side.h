// A stream next to the current one, as far as the emulated NCCL works on it. It has the numbers
// of groups of messages that it was given and that are done.
#pragma once
#include <atomic>
#include <cstdint>

struct emulated_side {
  std::atomic<uint64_t> given{0}, done{0};
};
