// Memory of a thread that outlives a call, on the boundary of a cache line.
#pragma once
#include <stdint.h>
#include <stdlib.h>

namespace mgrpo::cpu {
namespace {

struct Scratch {
  char *memory = nullptr;
  int64_t size = 0;

  // The same memory as before, unless it was smaller.
  char *at_least(int64_t bytes) {
    if (bytes > size) {
      free(memory);
      memory = static_cast<char *>(aligned_alloc(64, static_cast<size_t>(bytes)));
      if (memory == nullptr) abort();
      size = bytes;
    }
    return memory;
  }
  ~Scratch() { free(memory); }
};

}  // namespace
}  // namespace mgrpo::cpu
