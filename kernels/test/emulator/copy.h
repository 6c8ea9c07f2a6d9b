// cp.async for a block of fibers. A copy is made as late as possible: when its thread waits for its group. Until then the destination
// holds other bytes. A thread that ends without waiting for all its groups is an error.
#pragma once
#include "cuda_runtime.h"

namespace emulator {

struct Copy {
  uint4 *to;
  const void *from;
};
void note_copy(const Copy &copy);
void end_copies();  // ends the current group
// Takes a copy of a group that the thread committed before the last `left` groups. Returns false without one.
bool take_copy(size_t left, Copy *copy);

inline void copy_ahead(uint4 *to, const void *from) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fail("a copy of 16 bytes is not aligned");
  *to = {~0u, ~0u, ~0u, ~0u};
  note_copy({to, from});
}
inline void wait_for_copies(size_t left) {
  for (Copy copy; take_copy(left, &copy);) *copy.to = *static_cast<const uint4 *>(copy.from);
}

}  // namespace emulator
