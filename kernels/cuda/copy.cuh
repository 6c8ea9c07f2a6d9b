// Copies from global to shared memory that a thread begins and does not wait for, sm_80 and up.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#ifndef __CUDACC__
#include "copy.h"  // kernels/test/emulator
#endif

namespace mgrpo::cuda {

// Begins to copy 16 bytes, which lie aligned; writes zeros, and does not read, if `reads` is false.
__device__ inline void begin_copy(uint4 *to, const void *from, bool reads) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from)), "r"(reads ? 16 : 0)
               : "memory");
#else
  emulator::begin_copy(to, reads ? from : nullptr);
#endif
}

// Makes the copies that the thread has begun since the last call a group, which may be empty.
__device__ inline void end_group() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::end_group();
#endif
}

// Waits until all groups of the thread but the last kLeft have arrived. Other threads see them after a barrier.
template <int kLeft>
__device__ void wait_for_groups() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  emulator::wait_for_groups(kLeft);
#endif
}

}  // namespace mgrpo::cuda
