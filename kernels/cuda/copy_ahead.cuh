// Asynchronous copies from global to shared memory (sm_80 and later). A thread starts a copy and waits for it later. Other threads see the
// copied data after a barrier.
#pragma once
#include <cuda_runtime.h>

#ifndef __CUDACC__
#include "copy.h"  // kernels/test/emulator
#endif

namespace mgrpo::cuda {

// Starts a copy of 16 bytes. Both addresses are aligned to 16 bytes.
__device__ inline void copy_ahead(uint4 *to, const void *from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(__cvta_generic_to_global(from))
               : "memory");
#else
  emulator::copy_ahead(to, from);
#endif
}

// Ends a group of copies: the copies that the thread started since the previous call. A group may be empty.
__device__ inline void end_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::end_copies();
#endif
}

// Waits for all groups of copies that the thread has ended, except the last kGroups.
template <int kGroups>
__device__ inline void wait_for_all_but() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  emulator::wait_for_copies(kGroups);
#endif
}

// Waits at least for all groups of copies that the thread has ended, except the last `groups`.
__device__ inline void wait_for_copies(int groups) {
  switch (groups) {
    case 0:
      return wait_for_all_but<0>();
    case 1:
      return wait_for_all_but<1>();
    case 2:
      return wait_for_all_but<2>();
    default:
      return wait_for_all_but<3>();
  }
}

}  // namespace mgrpo::cuda
