// cp.async for a block of fibers: a copy happens when its thread waits for its group, as late as it may. A kernel waits for all its
// groups before it ends.
#pragma once
#include <deque>
#include <map>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

struct Copies {
  struct One {
    uint4 *to;
    const void *from;  // null: zeros
  };
  std::vector<One> begun;
  std::deque<std::vector<One>> groups;
};
inline std::map<unsigned, Copies> copies;  // by thread of the block that runs

inline void begin_copy(uint4 *to, const void *from) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a copy of 16 bytes is not aligned");
  copies[threadIdx.x].begun.push_back({to, from});
}
inline void end_group() {
  Copies &mine = copies[threadIdx.x];
  mine.groups.push_back(std::move(mine.begun));
  mine.begun.clear();
}
inline void wait_for_groups(size_t left) {
  for (auto &groups = copies[threadIdx.x].groups; groups.size() > left; groups.pop_front())
    for (const Copies::One &copy : groups.front()) *copy.to = copy.from != nullptr ? *static_cast<const uint4 *>(copy.from) : uint4{};
}

}  // namespace emulator
