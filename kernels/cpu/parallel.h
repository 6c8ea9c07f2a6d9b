// The division of a kernel's work among the caller's OpenMP threads.
#pragma once
#include <omp.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace mgrpo::cpu {

// The number of multiply-adds, or of operations of similar cost, below which starting threads costs more than it saves.
constexpr double kMinParallelWork = 1 << 18;

// Calls f. If f throws std::bad_alloc, it sets *failed, because no exception may leave a parallel region.
template <class F>
void note_bad_alloc(std::atomic<bool> *failed, const F &f) {
  try {
    f();
  } catch (const std::bad_alloc &) {
    *failed = true;
  }
}

inline int thread_count(double work) { return work < kMinParallelWork || omp_in_parallel() ? 1 : omp_get_max_threads(); }

// Calls f(i, thread) for i in [0, n), in any order, with thread numbers from 0 to thread_count(work) - 1. f must only write to memory of
// its own i or of its own thread.
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

// Calls f(i) for i in [0, n), in any order and on any thread. f must only write to memory of its own i.
template <class F>
void parallel_for(int64_t n, double work, const F &f) {
  parallel_for_threads(n, work, [&f](int64_t i, int) { f(i); });
}

// Calls f(begin, end) for ranges of at most `block` numbers of [0, n), in any order and on any thread. Use it for items that are too small
// to be distributed one by one, and whose costs differ too much for parallel_ranges.
template <class F>
void parallel_blocks(int64_t n, int64_t block, double work, const F &f) {
  parallel_for((n + block - 1) / block, work, [&](int64_t b) {
    const int64_t begin = b * block, end = begin + block;
    f(begin, end < n ? end : n);
  });
}

// Calls f(begin, end) once on each thread, with consecutive ranges of [0, n). The bounds of the ranges are multiples of `step`.
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
