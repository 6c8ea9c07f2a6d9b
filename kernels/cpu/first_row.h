// The first row, or group, that is refused.
#pragma once
#include <atomic>
#include <cstdint>
#include <limits>

namespace mgrpo::cpu {

// The smallest row that any thread has reported.
class FirstRow {
 public:
  void report(int64_t row) {
    int64_t seen = first_.load(std::memory_order_relaxed);
    while (row < seen && !first_.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
    }
  }
  int64_t row() const { return first_ == kNone ? -1 : first_.load(); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first_{kNone};
};

}  // namespace mgrpo::cpu
