// The blocks that share a row. In the code for sm_90 and sm_100 they are a cluster. In the code for sm_80 one block has the whole row.
#pragma once
#include <cooperative_groups.h>

#include "device.h"

namespace mgrpo::cuda {

constexpr int kMaxCluster = 8;  // every GPU with clusters can schedule clusters of this size

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

// Waits until every thread of the blocks that share a row has called it. Afterwards any thread may overwrite values that were read before
// the call, and the threads of a block see each other's writes. The threads of other blocks see a thread's writes only if that thread has
// called publish. cluster().sync() would make every thread wait for all of its writes.
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

// Sets *blocks to the largest number of blocks that may share a row on the current device. GPUs after sm_100 compile the PTX code of sm_80,
// which has no clusters.
inline int32_t max_cluster_blocks(int *blocks) {
  *blocks = 1;
  int device, major;
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major == 9 || major == 10) *blocks = kMaxCluster;
  return MGRPO_OK;
}

}  // namespace mgrpo::cuda
