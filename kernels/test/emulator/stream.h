// The emulated GPU for programs other than kernels: its memory, its only stream, and recordings of work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulator {

using Work = std::vector<std::function<void()>>;

// Number of the host's calls outside recordings.
struct Counts {
  uint64_t launches = 0, uploads = 0, waits = 0;
};
Counts &counts();

void *allocate(size_t bytes);  // device memory; nullptr if it is exhausted
void release(void *p);         // takes effect after the work launched before
void finish();                 // waits for all work
void enqueue(std::function<void()> work);

// Adds work to a recording instead of doing it, until record(nullptr). While recording, a wait for work ends the program with a message,
// and so does a copy from host memory, which may no longer exist when the recording runs. Memory that the recorded work allocates and
// frees belongs to the recording.
void record(Work *to);
bool recording();

}  // namespace emulator
