#include <atomic>

#include "device.h"
#include "mgrpo/memory.h"

namespace mgrpo::cuda {
namespace {
std::atomic<const mgrpo_scratch *> current{nullptr};
}

int32_t allocate_scratch(size_t bytes, cudaStream_t stream, const mgrpo_scratch **source, void **memory) {
  *source = current.load();
  if (*source == nullptr) {
    const cudaError_t error = cudaMallocAsync(memory, bytes, stream);
    return error == cudaSuccess ? MGRPO_OK : report(error, "cudaMallocAsync");
  }
  *memory = (*source)->allocate(static_cast<int64_t>(bytes), stream);
  return *memory != nullptr ? MGRPO_OK : report(cudaErrorMemoryAllocation, "scratch");
}

void release_scratch(const mgrpo_scratch *source, void *memory, cudaStream_t stream) {
  if (source == nullptr) {
    cudaFreeAsync(memory, stream);
  } else {
    source->release(memory, stream);
  }
}

}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

void mgrpo_set_scratch_cuda(const mgrpo_scratch *scratch_or_null) { current = scratch_or_null; }

int32_t mgrpo_allocate_cuda(int64_t bytes, void **memory, void *stream) {
  if (!memory || bytes < 0) return MGRPO_INVALID_ARGUMENT;
  *memory = nullptr;
  MGRPO_CUDA_TRY(cudaMallocAsync(memory, static_cast<size_t>(bytes), stream_of(stream)));
  return MGRPO_OK;
}

int32_t mgrpo_release_cuda(void *memory, void *stream) {
  if (memory) MGRPO_CUDA_TRY(cudaFreeAsync(memory, stream_of(stream)));
  return MGRPO_OK;
}

int32_t mgrpo_upload_cuda(void *memory, const void *host, int64_t bytes, void *stream) {
  if (bytes < 0) return MGRPO_INVALID_ARGUMENT;
  if (bytes == 0) return MGRPO_OK;
  // CUDA copies host memory that is not pinned to a buffer of its own before the call returns.
  MGRPO_CUDA_TRY(cudaMemcpyAsync(memory, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_of(stream)));
  return MGRPO_OK;
}

int32_t mgrpo_download_cuda(void *host, const void *memory, int64_t bytes, void *stream) {
  if (bytes < 0) return MGRPO_INVALID_ARGUMENT;
  if (bytes > 0) MGRPO_CUDA_TRY(cudaMemcpyAsync(host, memory, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_of(stream)));
  MGRPO_CUDA_TRY(cudaStreamSynchronize(stream_of(stream)));
  return MGRPO_OK;
}
