#include "fiber.h"

#include <cstring>

namespace emulator {
namespace {
Fiber *entering;
constexpr size_t kFilled = 16 << 10;  // number of bytes to fill, from the top of a stack
}  // namespace

#if defined(__x86_64__)
// Pushes the registers that a call preserves, stores the stack pointer in *save, and continues where `to` was stored.
extern "C" void emulator_switch(void **save, void *to);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
#endif

void Fiber::begun() {
  Fiber *const self = entering;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_size_);
#endif
  self->body_();
  abort();  // body continued after it left for good
}

void Fiber::start(void (*body)(), size_t skew) {
  body_ = body;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStack);  // frames of the previous body
#endif
  std::memset(stack_ + kStack - kFilled, 0xff, kFilled);  // uninitialised variables become NaN
#if defined(__x86_64__)
  auto *top = reinterpret_cast<void **>(stack_ + kStack - 64 - skew);
  *--top = nullptr;  // begun() finds the stack as after a call
  *--top = reinterpret_cast<void *>(&Fiber::begun);
  own_ = top - 6;
#else
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStack - skew;
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::begun, 0);
#endif
}

void Fiber::resume() {
  entering = this;
#if defined(__SANITIZE_ADDRESS__)
  void *kept;
  __sanitizer_start_switch_fiber(&kept, stack_, kStack);
#endif
#if defined(__x86_64__)
  emulator_switch(&caller_, own_);
#else
  swapcontext(&caller_, &own_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
}

void Fiber::leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &kept_, caller_stack_, caller_size_);
#endif
#if defined(__x86_64__)
  emulator_switch(&own_, caller_);
#else
  swapcontext(&own_, &caller_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(kept_, &caller_stack_, &caller_size_);
#endif
}

}  // namespace emulator
