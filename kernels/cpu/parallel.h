// Splitting a kernel's work over the caller's OpenMP threads.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace mgrpo::cpu {

// Multiply-adds (or elements of comparable cost) below which starting a team costs more than it gains.
constexpr double kMinParallelWork = 1 << 18;

// Calls f, and sets *failed if there was no memory for it: no exception may leave a parallel region.
template <class F>
void note_bad_alloc(std::atomic<bool> *failed, const F &f) {
  try {
    f();
  } catch (const std::bad_alloc &) {
    *failed = true;
  }
}

inline int thread_count(double work) { return work < kMinParallelWork || omp_in_parallel() ? 1 : omp_get_max_threads(); }

// f(i, thread) for i in [0, n), in any order and on any thread of 0..thread_count(work)-1: f must write to places of
// its own only, or its thread's.
template <class F>
void parallel_for_threads(int64_t n, double work, const F &f) {
  const int threads = thread_count(work);
  if (threads == 1 || n < 2) {
    for (int64_t i = 0; i < n; i++) f(i, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < n; i++) f(i, omp_get_thread_num());
}

// f(i) for i in [0, n), in any order and on any thread: f must write to places of its own only.
template <class F>
void parallel_for(int64_t n, double work, const F &f) {
  parallel_for_threads(n, work, [&f](int64_t i, int) { f(i); });
}

// f(begin, end) over ranges of at most `block` of [0, n), in any order and on any thread. It is
// for work that is too small to be handed out one by one and too uneven to be divided beforehand.
template <class F>
void parallel_blocks(int64_t n, int64_t block, double work, const F &f) {
  parallel_for((n + block - 1) / block, work, [&](int64_t b) {
    const int64_t begin = b * block, end = begin + block;
    f(begin, end < n ? end : n);
  });
}

// f(begin, end) over one contiguous range of [0, n) a thread; bounds are multiples of `step`.
template <class F>
void parallel_ranges(int64_t n, int64_t step, double work, const F &f) {
  const int64_t steps = (n + step - 1) / step;
  const int64_t threads = thread_count(work) < steps ? thread_count(work) : steps;
  if (threads <= 1) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads))
  for (int64_t t = 0; t < threads; t++) {
    const int64_t begin = steps * t / threads * step, end = steps * (t + 1) / threads * step;
    f(begin, end < n ? end : n);
  }
}

}  // namespace mgrpo::cpu
