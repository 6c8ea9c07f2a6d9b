// libmgrpo_torch_cuda: the functions of libmgrpo_torch that need CUDA.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda_part.h"
#include "mgrpo/cuda_error.h"
#include "mgrpo/memory.h"
#include "nccl_abi.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace {

int device_count() { return c10::cuda::device_count(); }

// The scratch memory of our kernels comes from LibTorch's allocator, so neither keeps memory that the other needs.
void *allocate_scratch(int64_t bytes, void *stream) {
  try {
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(size_t(bytes), static_cast<cudaStream_t>(stream));
  } catch (...) {
    return nullptr;
  }
}

void release_scratch(void *memory, void *) {
  try {
    c10::cuda::CUDACachingAllocator::raw_delete(memory);
  } catch (...) {  // the device is lost
  }
}

// Micro-batches differ in size, and growing segments have no holes between them. If the driver cannot map memory like this, as in some
// virtual machines, segments do not grow.
void let_segments_grow() {
  if (std::getenv("PYTORCH_ALLOC_CONF") || std::getenv("PYTORCH_CUDA_ALLOC_CONF")) return;
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  try {
    c10::cuda::CUDACachingAllocator::raw_delete(c10::cuda::CUDACachingAllocator::raw_alloc(4 << 20));
  } catch (const c10::Error &) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  }
}

void settle() {
  auto &settings = at::globalContext();
  settings.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);  // parts of a sum are added in float32
  settings.setSDPUseCuDNN(false);      // cuDNN needs more time to plan a shape than a prompt's attention takes
  settings.lazyInitDevice(at::kCUDA);  // memory is queried before the first tensor
  let_segments_grow();
  static const mgrpo_scratch scratch{allocate_scratch, release_scratch};
  mgrpo_set_scratch_cuda(&scratch);
}

// LibTorch leaves the context to the thread's first call of CUDA's runtime, and cuBLAS warns if a product is that call.
void enter(int index) { C10_CUDA_CHECK(cudaSetDevice(index)); }

void open(int index) {
  enter(index);
  static std::once_flag once;
  std::call_once(once, settle);
}

void wait(int index) { c10::cuda::getCurrentCUDAStream(c10::DeviceIndex(index)).synchronize(); }

int capability(int index) {
  int major, minor;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
  return 10 * major + minor;
}

void *stream(int index) { return c10::cuda::getCurrentCUDAStream(c10::DeviceIndex(index)).stream(); }

struct Event {
  cudaEvent_t event;
  Event() { C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event &) = delete;
};

// Two pieces of pinned memory: one receives the next part from the GPU while the threads copy the other one. For memory that is not pinned,
// the driver would copy with one thread, through its own pieces.
class Staging {
 public:
  Staging() { C10_CUDA_CHECK(cudaMallocHost(reinterpret_cast<void **>(&memory_), 2 * kPiece)); }
  void copy(const char *from, char *to, size_t bytes, cudaStream_t stream) {
    const size_t pieces = (bytes + kPiece - 1) / kPiece;
    const auto size = [&](size_t i) { return std::min(kPiece, bytes - i * kPiece); };
    const auto fetch = [&](size_t i) {
      if (i >= pieces) return;
      C10_CUDA_CHECK(cudaMemcpyAsync(memory_ + i % 2 * kPiece, from + i * kPiece, size(i), cudaMemcpyDeviceToHost, stream));
      C10_CUDA_CHECK(cudaEventRecord(arrived_[i % 2].event, stream));
    };
    fetch(0), fetch(1);
    for (size_t i = 0; i < pieces; i++, fetch(i + 1)) {
      C10_CUDA_CHECK(cudaEventSynchronize(arrived_[i % 2].event));
      at::parallel_for(0, int64_t(size(i)), 1 << 20, [&](int64_t begin, int64_t end) {
        std::memcpy(to + i * kPiece + begin, memory_ + i % 2 * kPiece + begin, size_t(end - begin));
      });
    }
  }

 private:
  static constexpr size_t kPiece = 32 << 20;
  char *memory_;
  Event arrived_[2];
};

void to_host(const at::Tensor &from, void *to) {
  static thread_local auto *staging = new Staging;  // never freed: CUDA may end before the thread
  staging->copy(static_cast<const char *>(from.const_data_ptr()), static_cast<char *>(to), from.nbytes(),
                c10::cuda::getCurrentCUDAStream(from.get_device()));
}

void memory(int index, mgt_memory_stats *stats) {
  auto s = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::DeviceIndex(index));
  constexpr auto all = size_t(c10::CachingAllocator::StatType::AGGREGATE);
  stats->allocated = s.allocated_bytes[all].current;
  stats->reserved = s.reserved_bytes[all].current;
  stats->peak = s.allocated_bytes[all].peak;
}

void free_cached() { c10::cuda::CUDACachingAllocator::emptyCache(); }

void reset_peak(int index) { c10::cuda::CUDACachingAllocator::resetPeakStats(c10::DeviceIndex(index)); }

void from_host(const at::Tensor &to, const void *from) {
  C10_CUDA_CHECK(
      cudaMemcpyAsync(to.mutable_data_ptr(), from, to.nbytes(), cudaMemcpyHostToDevice, c10::cuda::getCurrentCUDAStream(to.get_device())));
}

// A graph and its stream. Work of the default stream cannot be captured.
struct Graph {
  at::cuda::CUDAGraph graph;
  const at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();  // for tensors of the captured work
  c10::cuda::CUDAStream own, before;
  bool capturing = false;

  explicit Graph(c10::DeviceIndex index) : own(capture_stream(index)), before(c10::cuda::getCurrentCUDAStream(index)) {}

  // Returns one stream for each thread. A thread belongs to one device, and LibTorch keeps a workspace for each stream.
  static c10::cuda::CUDAStream capture_stream(c10::DeviceIndex index) {
    static thread_local const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, index);
    return stream;
  }
};

// A graph registers with the GPU's random generator, which is not safe for several threads.
std::mutex generator;

void *graph_open(int index) {
  auto g = std::make_unique<Graph>(c10::DeviceIndex(index));
  g->before.synchronize();  // completes the tensors that the captured work reads
  c10::cuda::setCurrentCUDAStream(g->own);
  return g.release();
}

void graph_capture(void *graph) {
  auto *g = static_cast<Graph *>(graph);
  g->own.synchronize();
  std::lock_guard<std::mutex> lock(generator);
  // Thread-local mode: other threads may call CUDA for memory and times during the capture.
  g->capturing = true;  // also if it fails: LibTorch sets its allocators before it calls CUDA
  g->graph.capture_begin(g->pool, cudaStreamCaptureModeThreadLocal);
}

// After a lost capture, LibTorch's allocators stay in the state of a capture. They would never again reuse memory that other streams
// have freed, and would keep the tensors of the captured work.
void end_allocating(const Graph &g) {
  const auto unless_it_had_ended = [](auto &&end) {
    try {
      end();
    } catch (const c10::Error &) {
    }
  };
  unless_it_had_ended([&] {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(g.own.device_index(), g.pool);
    c10::cuda::CUDACachingAllocator::releasePool(g.own.device_index(), g.pool);
  });
  unless_it_had_ended([&] {
    at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(g.pool);
    at::getHostAllocator(at::kCUDA)->release_pool(g.pool);
  });
}

void graph_close(void *graph) {
  struct Restore {
    c10::cuda::CUDAStream before;
    ~Restore() { c10::cuda::setCurrentCUDAStream(before); }
  };
  auto *g = static_cast<Graph *>(graph);
  Restore restore{g->before};
  std::lock_guard<std::mutex> lock(generator);
  if (!std::exchange(g->capturing, false)) return;
  try {
    g->graph.capture_end();
  } catch (...) {
    end_allocating(*g);
    throw;
  }
}

void graph_replay(void *graph) { static_cast<Graph *>(graph)->graph.replay(); }

void graph_drop(void *graph) {
  std::lock_guard<std::mutex> lock(generator);
  delete static_cast<Graph *>(graph);
}

#if __has_include(<nccl.h>)
using nccl_abi::config;
static_assert(ncclSuccess == int(nccl_abi::kSuccess) && ncclInProgress == int(nccl_abi::kInProgress) &&
              ncclUint8 == int(nccl_abi::kBytes) && sizeof(ncclUniqueId) == sizeof(nccl_abi::unique_id) &&
              offsetof(ncclConfig_t, blocking) == offsetof(config, blocking) &&
              offsetof(ncclConfig_t, netName) == offsetof(config, net_name) &&
              offsetof(ncclConfig_t, splitShare) == offsetof(config, split_share) && sizeof(ncclConfig_t) >= sizeof(config) &&
              NCCL_CONFIG_UNDEF_INT == INT_MIN);
#endif

std::string identity(int index) {
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  const auto *uuid = properties.uuid.bytes;
  std::string hex;
  for (int i = 0; i < 16; i++) hex += "0123456789abcdef"[uuid[i] >> 4 & 15], hex += "0123456789abcdef"[uuid[i] & 15];
  return hex;
}

void *side_open(int index) {
  return new c10::cuda::CUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, c10::DeviceIndex(index)));
}

void side_follow(void *side) {
  const auto &own = *static_cast<c10::cuda::CUDAStream *>(side);
  const Event so_far;
  C10_CUDA_CHECK(cudaEventRecord(so_far.event, c10::cuda::getCurrentCUDAStream(own.device_index())));
  C10_CUDA_CHECK(cudaStreamWaitEvent(own, so_far.event));
}

void *side_stream(void *side) { return static_cast<c10::cuda::CUDAStream *>(side)->stream(); }

std::shared_ptr<void> side_mark(void *side) {
  auto mark = std::make_shared<Event>();
  C10_CUDA_CHECK(cudaEventRecord(mark->event, *static_cast<c10::cuda::CUDAStream *>(side)));
  return mark;
}

bool mark_passed(void *mark) {
  const cudaError_t state = cudaEventQuery(static_cast<Event *>(mark)->event);
  if (state == cudaErrorNotReady) {
    (void)cudaGetLastError();  // it is not an error
    return false;
  }
  C10_CUDA_CHECK(state);
  return true;
}

void side_close(void *side) { delete static_cast<c10::cuda::CUDAStream *>(side); }

// The caller reports a row that a kernel refuses. A failure of CUDA is reported with CUDA's message.
int32_t refused(int32_t status) {
  TORCH_CHECK(status != MGRPO_CUDA_ERROR && status != MGRPO_OUT_OF_MEMORY, mgrpo_status_string(status), ": ", mgrpo_cuda_last_error());
  return status;
}

// Calls a kernel, and throws if it fails.
template <auto kCall, class>
struct Throwing;
template <auto kCall, class... Arguments>
struct Throwing<kCall, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... with) { return refused(kCall(with...)); }
};
#define MGT_THROWING(name) Throwing<mgrpo_##name##_cuda, decltype(&mgrpo_##name##_cuda)>::call,

}  // namespace

extern "C" MGT_API const cuda_part *mgt_cuda_part(void) {
  static const cuda_part part{device_count,  open,        enter,        wait,        stream,      capability,
                              to_host,       from_host,   memory,       reset_peak,  free_cached, graph_open,
                              graph_capture, graph_close, graph_replay, graph_drop,  identity,    side_open,
                              side_follow,   side_stream, side_mark,    mark_passed, side_close,  MGT_KERNELS(MGT_THROWING)};
  return &part;
}
