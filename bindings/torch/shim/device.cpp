// Functions of the process, of devices and of memory, and the loading of the CUDA part.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <caffe2/core/common.h>
#include <dlfcn.h>
#include <malloc.h>
#include <omp.h>
#include <sys/mman.h>
#include <torch/version.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <string>

#include "cuda_part.h"
#include "guard.h"
#include "kernel.h"
#include "mgrpo/matmul.h"
#include "product.h"

std::atomic<int64_t> mgt_handles{0};
const cuda_part *the_cuda_part = nullptr;

namespace {

// glibc gives each thread its own arena, made of heaps of 64 MiB, in which tensors of tens of megabytes leave holes. Training two models
// of 135 million parameters needed a fifth more memory than with one shared arena.
[[maybe_unused]] const int one_arena = mallopt(M_ARENA_MAX, 1);

// On AMD the bits of MKL's products depend on the addresses of the matrices, except in the strict mode of a chosen instruction set. MKL
// reads the variable at its first product. Products of our own kernels, which are most of the work, do not depend on it.
int choose_strict_mkl() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (!__builtin_cpu_is("intel") && __builtin_cpu_supports("avx2")) return setenv("MKL_CBWR", "AVX2,STRICT", 0);
#endif
  return 0;
}
[[maybe_unused]] const int strict_mkl = choose_strict_mkl();

// Sets the number of threads of LibTorch's OpenMP and MKL, and of the OpenMP of our kernels, for the calling thread. The latter may be
// another library if LibTorch brings its own under another name. A thread that uses LibTorch for the first time takes the number that was
// set last in the process. That happens here, before its own number is set.
void set_threads(int n) {
  at::get_num_threads();
  at::set_num_threads(n);
  omp_set_num_threads(n);
}

// Memory of the C library with the alignment that LibTorch's own allocator has, and a count of live bytes as the C library rounds them.
// LibTorch's allocator cannot be counted: c10::alloc_cpu takes its memory from mimalloc in some wheels (aarch64).
struct CountingAllocator final : c10::Allocator {
  std::atomic<int64_t> live{0}, peak{0};

  c10::DataPtr allocate(size_t n) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *to, const void *from, size_t n) const override { default_copy_data(to, from, n); }
};
CountingAllocator counting;

thread_local bool in_large_pages = false;
constexpr size_t kLargePage = size_t{2} << 20;

void count_and_free(void *p) {
  if (!p) return;
  counting.live.fetch_sub(int64_t(malloc_usable_size(p)), std::memory_order_relaxed);
  std::free(p);
}

c10::DataPtr CountingAllocator::allocate(size_t n) {
  void *p = nullptr;
  if (n > 0) {
    const bool large = in_large_pages && n >= 2 * kLargePage;
    TORCH_CHECK(posix_memalign(&p, large ? kLargePage : c10::gAlignment, n) == 0, "can't allocate memory: ", n, " bytes");
    if (large) madvise(p, n / kLargePage * kLargePage, MADV_HUGEPAGE);  // Linux may refuse
    auto size = int64_t(malloc_usable_size(p));
    auto now = live.fetch_add(size, std::memory_order_relaxed) + size;
    auto high = peak.load(std::memory_order_relaxed);
    while (now > high && !peak.compare_exchange_weak(high, now, std::memory_order_relaxed)) {
    }
  }
  return {p, p, &count_and_free, c10::Device(c10::kCPU)};
}
c10::DeleterFnPtr CountingAllocator::raw_deleter() const { return &count_and_free; }

std::string library_folder() {
  Dl_info info;
  TORCH_CHECK(dladdr(reinterpret_cast<void *>(&mgt_thread), &info), "cannot find the folder of libmgrpo_torch.so");
  std::string path = info.dli_fname;
  auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Autograd has a thread for each GPU. It gets the GPU's context here, because cuBLAS warns if a product is a thread's first call of CUDA.
void wake_autograd(c10::Device device) {
  at::AutoGradMode on(true);
  auto x = at::ones({1}, at::TensorOptions(device));
  x.requires_grad_(true);
  x.neg().backward();
}
}  // namespace

LargePages::LargePages(bool on) { in_large_pages = on; }
LargePages::~LargePages() { in_large_pages = false; }

char *failure(const char *message, int32_t status) noexcept {
  size_t size = std::strlen(message) + 1;
  char *e = static_cast<char *>(std::malloc(sizeof status + size));
  if (!e) std::abort();  // memory is full, even for the message
  std::memcpy(e, &status, sizeof status);
  return static_cast<char *>(std::memcpy(e + sizeof status, message, size));
}

int32_t mgt_error_status(const char *error) {
  int32_t status;
  std::memcpy(&status, error - sizeof status, sizeof status);
  return status;
}

void mgt_free(char *error) {
  if (error) std::free(error - sizeof(int32_t));
}

const char *mgt_built_version(void) { return TORCH_VERSION; }

const char *mgt_loaded_version(void) {
  // Not from at::show_config(): it makes LibTorch look for CUDA, and LibTorch would keep the result from before mgt_cuda_load.
  const auto &options = caffe2::GetBuildOptions();
  auto found = options.find("TORCH_VERSION");
  return found == options.end() ? "unknown" : found->second.c_str();
}

namespace {
thread_local bool training = false;

// Whether LibTorch's products round. oneDNN chooses the instructions, so one product is tried. 1 + 2^-9 is a float32 and not a
// bfloat16. The product runs on a new thread, whose OpenMP has one thread.
bool libtorch_rounds() {
  const auto product = [] {
    omp_set_num_threads(1);
    at::NoGradGuard no_grad;
    const auto a = at::full({64, 64}, 1 + 1. / 512, at::kFloat), b = at::ones({64, 64}, at::kFloat);
    return at::matmul(a, b).data_ptr<float>()[0];
  };
  try {
    return std::async(std::launch::async, product).get() == 64;
  } catch (const std::exception &) {  // then products do not round
    return false;
  }
}
}  // namespace

bool rounds_factors() { return training && rounding() != Rounding::none; }

void mgt_set_training(int on) { training = on != 0; }

int mgt_round_factors(int on) {
  const auto round = [](at::Float32Precision p) {
    at::globalContext().setFloat32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL, p);
  };
  const auto ours = [] { return mgrpo_matmul_cpu({}, {}, nullptr, 0, 0, 0, 0, 0, 1) == MGRPO_OK ? Rounding::ours : Rounding::none; };
  if (on) round(at::Float32Precision::BF16);
  const bool libtorch = on && libtorch_rounds();
  if (!libtorch) round(at::Float32Precision::NONE);
  set_rounding(libtorch ? Rounding::libtorch : on ? ours() : Rounding::none);
  return rounding() != Rounding::none;
}

void mgt_deterministic(int on) {
  if (on) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // cuBLAS reads it at its first product
  at::globalContext().setDeterministicAlgorithms(on != 0, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // unwritten memory is never read here
}

const char *mgt_cpu_features(void) {
  static const std::string features = [] {
    std::string s;
#ifdef __x86_64__
#define FEATURE(name) \
  if (__builtin_cpu_supports(name)) s += (s.empty() ? "" : " ") + std::string(name)
    FEATURE("avx2");
    FEATURE("fma");
    FEATURE("avx512f");
    FEATURE("avx512bw");
    FEATURE("avx512vl");
    FEATURE("avx512vnni");
    FEATURE("avx512bf16");
    FEATURE("amx-bf16");
#undef FEATURE
    if (has_wide_fp32()) s += " zen5";
#elif defined(__aarch64__)
    s = "asimd";
#endif
    return s;
  }();
  return features.c_str();
}

int64_t mgt_thread(void) {
  static std::atomic<int64_t> threads{0};
  thread_local const int64_t number = threads.fetch_add(1) + 1;
  return number;
}

int64_t mgt_live_handles(void) { return mgt_handles.load(); }

int mgt_cuda_driver(void) { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr; }

mgt_scalar mgt_cuda_load(void) {
  mgt_scalar r{};
  r.error = guard([&] {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (!the_cuda_part) {
      auto path = library_folder() + "/libmgrpo_torch_cuda.so";
      void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      TORCH_CHECK(library, dlerror(), "; build it with -DMGRPO_CUDA=ON and install LibTorch's CUDA libraries beside LibTorch");
      auto entry = reinterpret_cast<const cuda_part *(*)()>(dlsym(library, "mgt_cuda_part"));
      TORCH_CHECK(entry, path, " is not this version's CUDA part");
      the_cuda_part = entry();
    }
    r.value = the_cuda_part->device_count();
  });
  return r;
}

mgt_pointer mgt_device_open(int cuda, int index, int threads) {
  mgt_pointer r{};
  r.error = guard([&] {
    static std::once_flag once;
    std::call_once(once, [] { c10::SetCPUAllocator(&counting); });
    set_threads(threads);
    c10::Device device(c10::kCPU);
    if (cuda) {
      TORCH_CHECK(the_cuda_part, "the CUDA part is not loaded");
      int count = the_cuda_part->device_count();
      TORCH_CHECK(index < count, "there is no GPU ", index, ": the driver reports ", count);
      device = c10::Device(c10::kCUDA, c10::DeviceIndex(index));
      c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
      the_cuda_part->open(index);
      wake_autograd(device);
    }
    auto *d = new mgt_device{mgt_thread(), device, threads};
    r.value = d;
  });
  return r;
}

// The thread may continue to live, because Go cannot end the process's first thread. Its idle OpenMP team would count among the threads
// that share the cores. If these are too many, libgomp lets every thread sleep between two parallel regions.
void mgt_device_close(mgt_device *d) {
  omp_pause_resource_all(omp_pause_hard);
  if (d->device.is_cuda()) mgt_free(guard([] { the_cuda_part->free_cached(); }));  // a lost GPU refuses, and keeps no memory
  delete d;
}

// LibTorch's number is not changed: a part of it belongs to the whole process, and a thread that starts meanwhile would take it.
void mgt_use_threads(int n) {
  omp_pause_resource_all(omp_pause_hard);
  omp_set_num_threads(n);
}

int mgt_threads(void) { return omp_get_max_threads(); }

char *mgt_device_move(mgt_device *d) {
  return guard([&] {
    d->thread = mgt_thread();
    set_threads(d->threads);
    if (d->device.is_cuda()) {
      c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(d->device);
      the_cuda_part->enter(d->device.index());
    }
  });
}

char *mgt_device_wait(mgt_device *d) {
  return run(d, [&] {
    if (d->device.is_cuda()) the_cuda_part->wait(d->device.index());
  });
}

void mgt_set_grad_mode(int on) { at::GradMode::set_enabled(on); }

mgt_pointer mgt_stream(mgt_device *d) {
  mgt_pointer r{};
  r.error = run(d, [&] { r.value = d->device.is_cuda() ? the_cuda_part->stream(d->device.index()) : nullptr; });
  return r;
}

mgt_memory_stats mgt_memory(mgt_device *d) {
  mgt_memory_stats r{};
  r.error = run(d, [&] {
    if (d->device.is_cuda()) {
      the_cuda_part->memory(d->device.index(), &r);
    } else {
      r.allocated = r.reserved = counting.live.load();
      r.peak = counting.peak.load();
    }
  });
  return r;
}

char *mgt_reset_peak(mgt_device *d) {
  return run(d, [&] {
    if (d->device.is_cuda())
      the_cuda_part->reset_peak(d->device.index());
    else
      counting.peak = counting.live.load();
  });
}

mgt_pointer mgt_graph_open(mgt_device *d) {
  mgt_pointer r{};
  r.error = run(d, [&] {
    TORCH_CHECK(d->device.is_cuda(), "work is captured on GPUs alone, and this device is ", d->device);
    r.value = the_cuda_part->graph_open(d->device.index());
  });
  return r;
}
char *mgt_graph_capture(mgt_device *d, void *graph) {
  return run(d, [&] { the_cuda_part->graph_capture(graph); });
}
char *mgt_graph_close(mgt_device *d, void *graph) {
  return run(d, [&] { the_cuda_part->graph_close(graph); });
}
char *mgt_graph_replay(mgt_device *d, void *graph) {
  return run(d, [&] { the_cuda_part->graph_replay(graph); });
}
char *mgt_graph_drop(mgt_device *d, void *graph) {
  return run(d, [&] { the_cuda_part->graph_drop(graph); });
}
