// The emulated GPU for programs that are not kernels: its memory, its one stream, and recordings of work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulator {

using Work = std::vector<std::function<void()>>;

// What the host has asked for outside of recordings.
struct Counts {
  uint64_t launches = 0, uploads = 0, waits = 0;
};
Counts &counts();

void *allocate(size_t bytes);  // device memory; nullptr where there is none
void release(void *p);         // after the work launched before
void finish();                 // waits for all work
void enqueue(std::function<void()> work);

// Until record(nullptr) work is added to a recording instead of being done. Waiting for work, and copies from the host's
// memory, which may be gone when the recording runs, end the program with a message. Memory that the recorded work allocates
// and frees belongs to the recording.
void record(Work *to);
bool recording();

}  // namespace emulator
