// Scratch memory of a thread, which is kept from call to call and aligned to a cache line.
#pragma once
#include <stdint.h>

#include <new>

namespace mgrpo::cpu {
namespace {

struct Scratch {
  char *memory = nullptr;
  int64_t size = 0;

  // Returns memory of at least this size. It is the memory of the previous call if that is large enough. Throws std::bad_alloc.
  char *at_least(int64_t bytes) {
    if (bytes > size) {
      release();
      memory = static_cast<char *>(::operator new(static_cast<size_t>(bytes), kLine));
      size = bytes;
    }
    return memory;
  }
  void release() {
    ::operator delete(memory, kLine);
    memory = nullptr, size = 0;
  }
  ~Scratch() { release(); }

  static constexpr std::align_val_t kLine{64};
};

}  // namespace
}  // namespace mgrpo::cpu
