// Clusters of thread blocks: the part of the API that kernels/cuda uses.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {

struct cluster_group {
  static void sync(MGRPO_WHERE) { emulator::cluster_barrier(where); }
  static unsigned num_blocks() { return emulator::cluster_size(); }
  static unsigned block_rank() { return emulator::cluster_rank(); }
  template <class T>
  static T *map_shared_rank(T *shared, unsigned rank) {
    return static_cast<T *>(const_cast<void *>(emulator::at_rank(shared, rank)));
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
