// The blocks that share a row: a cluster in the code for sm_90 and sm_100, one block in that for sm_80.
#pragma once
#include <cooperative_groups.h>

#include "device.h"

namespace mgrpo::cuda {

constexpr int kMaxCluster = 8;  // what every GPU with clusters can schedule

#if __CUDA_ARCH__ >= 900
__device__ inline cooperative_groups::cluster_group cluster() { return cooperative_groups::this_cluster(); }
#else
struct LoneBlock {
  __device__ static unsigned num_blocks() { return 1; }
  __device__ static unsigned block_rank() { return 0; }
  __device__ static void sync() { __syncthreads(); }
  template <class T>
  __device__ static T *map_shared_rank(T *shared, unsigned) {
    return shared;
  }
};
__device__ inline LoneBlock cluster() { return {}; }
#endif

// Waits until every thread of the blocks that share a row is here. Afterwards any thread may overwrite values that were read before the
// call, and threads of the same block see each other's writes. Threads of other blocks see a thread's writes only if it has called publish:
// cluster().sync() would have every thread wait for all of its writes.
__device__ inline void sync_row() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  __syncthreads();
  if (cluster().num_blocks() > 1)
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#else
  cluster().sync();
#endif
}
__device__ inline void publish() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}

// The largest number of blocks that may share a row on the current device. A later GPU compiles sm_80's code, which has
// no clusters.
inline int32_t largest_cluster(int *blocks) {
  *blocks = 1;
  int device, major;
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major == 9 || major == 10) *blocks = kMaxCluster;
  return MGRPO_OK;
}

}  // namespace mgrpo::cuda
