// The host's side of the GPU kernels: errors, scratch memory, copies and launches.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "mgrpo/dtype.h"
#include "mgrpo/memory.h"
#include "mgrpo/status.h"

namespace mgrpo::cuda {

// Stores the message of a failed runtime call, and returns its status.
int32_t report(cudaError_t error, const char *call);

#define MGRPO_CUDA_TRY(call)                                                                      \
  do {                                                                                            \
    const cudaError_t mgrpo_cuda_error_ = (call);                                                 \
    if (mgrpo_cuda_error_ != cudaSuccess) return ::mgrpo::cuda::report(mgrpo_cuda_error_, #call); \
  } while (0)

#define MGRPO_TRY(expression)                            \
  do {                                                   \
    const int32_t mgrpo_status_ = (expression);          \
    if (mgrpo_status_ != MGRPO_OK) return mgrpo_status_; \
  } while (0)

// The maximum number of blocks of a launch. If there are more items, each block computes several of them.
#ifndef MGRPO_MAX_BLOCKS
#define MGRPO_MAX_BLOCKS (1 << 20)
#endif

inline unsigned block_count(int64_t items) {
  const int64_t limit = MGRPO_MAX_BLOCKS;
  return static_cast<unsigned>(items < limit ? items : limit);
}

inline cudaStream_t stream_of(void *stream) { return static_cast<cudaStream_t>(stream); }

// Allocates scratch memory from the allocator of mgrpo_set_scratch_cuda (mgrpo/memory.h). release_scratch returns it to the same allocator,
// even if another allocator has been set since.
int32_t allocate_scratch(size_t bytes, cudaStream_t stream, const mgrpo_scratch **source, void **memory);
void release_scratch(const mgrpo_scratch *source, void *memory, cudaStream_t stream);

// Device memory that is allocated and released in the order of a stream.
template <class T>
class Scratch {
 public:
  explicit Scratch(cudaStream_t stream) : stream_(stream) {}
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  ~Scratch() {
    if (data_) release_scratch(source_, data_, stream_);
  }

  int32_t allocate(int64_t n) {
    void *p = nullptr;
    MGRPO_TRY(allocate_scratch(static_cast<size_t>(n > 0 ? n : 1) * sizeof(T), stream_, &source_, &p));
    data_ = static_cast<T *>(p);
    return MGRPO_OK;
  }
  // Allocates n elements and fills them from host memory.
  int32_t upload(const T *host, int64_t n) {
    MGRPO_TRY(allocate(n));
    MGRPO_CUDA_TRY(cudaMemcpyAsync(data_, host, static_cast<size_t>(n) * sizeof(T), cudaMemcpyHostToDevice, stream_));
    return MGRPO_OK;
  }
  // Copies n elements, beginning with element `from`, to host memory, and waits for the stream.
  int32_t download(T *host, int64_t n, int64_t from = 0) const {
    MGRPO_CUDA_TRY(cudaMemcpyAsync(host, data_ + from, static_cast<size_t>(n) * sizeof(T), cudaMemcpyDeviceToHost, stream_));
    MGRPO_CUDA_TRY(cudaStreamSynchronize(stream_));
    return MGRPO_OK;
  }
  // Allocates n elements and sets every byte to 0xFF. An element is then -1, or the largest unsigned number.
  int32_t allocate_ones(int64_t n) {
    MGRPO_TRY(allocate(n));
    MGRPO_CUDA_TRY(cudaMemsetAsync(data_, 0xFF, static_cast<size_t>(n) * sizeof(T), stream_));
    return MGRPO_OK;
  }
  T *get() const { return data_; }

 private:
  cudaStream_t stream_;
  const mgrpo_scratch *source_ = nullptr;
  T *data_ = nullptr;
};

// The shape of a launch. shared: bytes of dynamic shared memory of a block. cluster: the number of blocks that share a row. It divides
// `blocks`, and is above 1 only on sm_90 and later.
struct Shape {
  unsigned blocks;
  int threads;
  size_t shared = 0;
  int cluster = 1;
};

// The bytes of dynamic shared memory that each kernel may have on each device. These are not static variables of allow_shared, because the
// emulator treats those as __shared__.
inline std::mutex allowed_shared_mutex;
inline std::map<std::pair<int, const void *>, size_t> allowed_shared;

// Allows a kernel `bytes` of dynamic shared memory on the current device. The limit only rises, because another thread may be launching the
// kernel with more.
template <class Kernel>
int32_t allow_shared(Kernel *kernel, size_t bytes) {
  int device;
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  const std::lock_guard<std::mutex> lock(allowed_shared_mutex);
  size_t &allowed = allowed_shared[{device, reinterpret_cast<const void *>(kernel)}];
  if (bytes <= allowed) return MGRPO_OK;
  MGRPO_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  allowed = bytes;
  return MGRPO_OK;
}

// Returns the configuration of a launch. *cluster is the memory of its attribute.
inline cudaLaunchConfig_t configuration(const Shape &shape, cudaStream_t stream, cudaLaunchAttribute *cluster) {
  *cluster = {};
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = static_cast<unsigned>(shape.threads);
  config.dynamicSmemBytes = shape.shared;
  config.stream = stream;
  config.attrs = cluster;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  return config;
}

// Launches a kernel and returns the error of the launch. The next wait for the stream returns errors of the execution.
template <class... Parameters, class... Arguments>
int32_t launch(void (*kernel)(Parameters...), const Shape &shape, cudaStream_t stream, Arguments &&...arguments) {
  if (shape.shared > 0) MGRPO_TRY(allow_shared(kernel, shape.shared));
  cudaLaunchAttribute cluster;
  const cudaLaunchConfig_t config = configuration(shape, stream, &cluster);
  MGRPO_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
  return MGRPO_OK;
}

// Sets *count to the number of clusters of this shape, or of blocks if there is no cluster, that the current device can run at once, and to
// at least 1.
template <class Kernel>
int32_t resident_clusters(Kernel *kernel, Shape shape, unsigned *count) {
  MGRPO_TRY(allow_shared(kernel, shape.shared));
  int number = 0;
  if (shape.cluster > 1) {
    shape.blocks = static_cast<unsigned>(shape.cluster);
    cudaLaunchAttribute cluster;
    const cudaLaunchConfig_t config = configuration(shape, nullptr, &cluster);
    MGRPO_CUDA_TRY(cudaOccupancyMaxActiveClusters(&number, kernel, &config));
  } else {
    int device, multiprocessors;
    MGRPO_CUDA_TRY(cudaGetDevice(&device));
    MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    MGRPO_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&number, kernel, shape.threads, shape.shared));
    number *= multiprocessors;
  }
  *count = number > 0 ? static_cast<unsigned>(number) : 1;
  return MGRPO_OK;
}

// Returns f(). If an allocation in host memory fails, it returns a status, because no exception may leave the C functions.
template <class F>
int32_t guarded(const F &f) {
  try {
    return f();
  } catch (const std::bad_alloc &) {
    return MGRPO_OUT_OF_MEMORY;
  }
}

}  // namespace mgrpo::cuda
