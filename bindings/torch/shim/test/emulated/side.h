// A stream next to the current one, as far as the emulated NCCL works on it: the number of
// groups of messages that it was given, and the number that are done.
#pragma once
#include <atomic>
#include <cstdint>

struct emulated_side {
  std::atomic<uint64_t> given{0}, done{0};
};
