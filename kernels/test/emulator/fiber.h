// A call on its own stack, which can be suspended and resumed.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

class Fiber {
 public:
  static constexpr size_t kStack = 256 << 10;

  Fiber() {
    void *memory = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    stack_ = static_cast<unsigned char *>(memory);
  }
  Fiber(const Fiber &) = delete;
  Fiber &operator=(const Fiber &) = delete;
  ~Fiber() { munmap(stack_, kStack); }

  // Runs body() at the next resume(); body must end with leave(). `skew` moves its frames, so that the stacks of many fibers do not
  // compete for the same cache lines.
  void start(void (*body)(), size_t skew);
  const void *stack() const { return stack_; }
  void resume();              // continues the fiber until it leaves
  void leave(bool for_good);  // called in the fiber: returns to the caller of resume()

 private:
  static void begun();

  unsigned char *stack_;
  void (*body_)() = nullptr;
#if defined(__x86_64__)
  void *own_ = nullptr, *caller_ = nullptr;
#else
  ucontext_t own_{}, caller_{};
#endif
  const void *caller_stack_ = nullptr;
  size_t caller_size_ = 0;
  void *kept_ = nullptr;
};

}  // namespace emulator
