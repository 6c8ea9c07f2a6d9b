#include <cstdio>

#include "device.h"
#include "mgrpo/cuda_error.h"

namespace mgrpo::cuda {
namespace {
thread_local char last_error[256] = "";
}

int32_t report(cudaError_t error, const char *call) {
  cudaGetLastError();  // clears it: LibTorch's next check of a launch would report it as its own error
  snprintf(last_error, sizeof last_error, "%s: %s", call, cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? MGRPO_OUT_OF_MEMORY : MGRPO_CUDA_ERROR;
}

}  // namespace mgrpo::cuda

const char *mgrpo_cuda_last_error(void) { return mgrpo::cuda::last_error; }
