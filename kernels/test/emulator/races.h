// Races of emulated kernels. The kernels' reads and writes are compiled with calls to ThreadSanitizer (-fsanitize=thread), and races.cpp
// replaces its runtime. The original runtime would need a fiber for each thread of a grid, and it has 8,000 at most. A shuffle would take
// milliseconds, because its clocks do not model blocks and warps, and it would take shared memory to be the same in every block.
// The functions below notify races.cpp of the running thread and of CUDA's barriers. In other builds they are empty.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator::races {

#ifdef MGRPO_EMULATED_RACES
void launch_begins(uint64_t blocks, unsigned cluster);
void cluster_begins(uint64_t first_block);
void fresh(const void *memory, size_t bytes);  // earlier accesses to these addresses belong to other memory
// Static shared memory is at `here` for the running block, and at `own` for the other blocks of its cluster.
void block_runs(unsigned rank, const void *here, const void *own, size_t bytes);
void thread_runs(unsigned thread, const void *stack, size_t bytes);
void host_runs();
void warp_meets(unsigned warp, unsigned lanes, unsigned existing);
void block_meets();
void cluster_meets();
void atomic_access(const void *at, size_t bytes, const void *where);

// Bytes of global memory that kernels have accessed since this was last set to 0.
inline uint64_t bytes_asked = 0;
bool on_device(const void *p);  // whether p is memory from cudaMalloc
#else
inline void launch_begins(uint64_t, unsigned) {}
inline void cluster_begins(uint64_t) {}
inline void fresh(const void *, size_t) {}
inline void block_runs(unsigned, const void *, const void *, size_t) {}
inline void thread_runs(unsigned, const void *, size_t) {}
inline void host_runs() {}
inline void warp_meets(unsigned, unsigned, unsigned) {}
inline void block_meets() {}
inline void cluster_meets() {}
inline void atomic_access(const void *, size_t, const void *) {}
#endif

}  // namespace emulator::races
