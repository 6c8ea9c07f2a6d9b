// The common parts of the C functions: handles of tensors, errors as messages, and the check of the calling thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>

#include "mgrpo/status.h"
#include "mgrpo_torch.h"

struct mgt_device {
  int64_t thread;  // mgt_thread() of the thread that may use this device
  c10::Device device;
  int threads;  // the number of OpenMP threads for work on the CPU
};

// Number of handles from own() that are not dropped yet.
extern std::atomic<int64_t> mgt_handles;

// While one exists that is on, large CPU tensors of this thread are allocated in large pages. Weights are read faster there. A tensor that
// is soon freed loses more time than it saves, because whole pages are filled with zeros.
struct LargePages {
  explicit LargePages(bool on);
  ~LargePages();
};

inline at::Tensor &ref(void *handle) { return *static_cast<at::Tensor *>(handle); }

// Return the tensor of a handle that may be NULL.
inline at::Tensor or_none(void *handle) { return handle ? ref(handle) : at::Tensor(); }
inline std::optional<at::Tensor> maybe_ref(void *handle) { return handle ? std::optional(ref(handle)) : std::nullopt; }

// An error of one of our kernels.
struct kernel_error : std::runtime_error {
  int32_t status;  // of mgrpo/status.h
  kernel_error(int32_t status, const std::string &message) : std::runtime_error(message), status(status) {}
};

// Returns an error in the form of the C functions: a pointer to the message, which the status precedes.
char *failure(const char *message, int32_t status = MGRPO_OK) noexcept;

// Calls f and returns its error, or NULL. No C++ exception may leave a C function.
template <class F>
char *guard(F &&f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const kernel_error &e) {
    return failure(e.what(), e.status);
  } catch (const c10::Error &e) {
    return failure(e.what_without_backtrace());
  } catch (const std::exception &e) {
    return failure(e.what());
  } catch (...) {
    return failure("unknown C++ exception");
  }
}

// Runs f, which does not return a value, for d.
template <class F>
char *run(mgt_device *d, F &&f) noexcept {
  if (d->thread != mgt_thread()) return failure("called from another goroutine than Do's, or inside Do of another device");
  return guard(f);
}

inline void own(mgt_tensor &r, at::Tensor t) {
  TORCH_CHECK(t.dim() <= MGT_MAX_DIM, "a tensor of ", t.dim(), " dimensions; at most ", int(MGT_MAX_DIM), " are supported");
  r.dim = int32_t(t.dim());
  r.dtype = int32_t(t.scalar_type());
  for (int64_t i = 0; i < t.dim(); i++) r.sizes[i] = t.size(i);
  r.handle = new at::Tensor(std::move(t));
  mgt_handles.fetch_add(1, std::memory_order_relaxed);
}

// Runs f, which returns a tensor, for d.
template <class F>
mgt_tensor make(mgt_device *d, F &&f) noexcept {
  mgt_tensor r{};
  r.error = run(d, [&] { own(r, f()); });
  return r;
}
