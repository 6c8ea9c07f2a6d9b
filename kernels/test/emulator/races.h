// Races of emulated kernels. Their reads and writes are compiled with ThreadSanitizer's calls (-fsanitize=thread), which
// races.cpp answers in place of its runtime. With a fiber of that for each thread of a grid, of which it has 8,000 at most,
// a shuffle takes it milliseconds, since its clocks know nothing of blocks and warps; and to it shared memory is the same in every block.
// What follows tells races.cpp what runs and where CUDA makes an order. It does nothing in other builds.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator::races {

#ifdef MGRPO_EMULATED_RACES
void launch_begins(uint64_t blocks, unsigned cluster);
void cluster_begins(uint64_t first_block);
void fresh(const void *memory, size_t bytes);  // what was accessed at these addresses before was other memory
// Static shared memory is `here` for the block that runs, and `own` for the others of its cluster.
void block_runs(unsigned rank, const void *here, const void *own, size_t bytes);
void thread_runs(unsigned thread, const void *stack, size_t bytes);
void host_runs();
void warp_meets(unsigned warp, unsigned lanes, unsigned existing);
void block_meets();
void cluster_meets();
void atomic_access(const void *at, size_t bytes, const void *where);

// What kernels have asked of global memory since this was last set to 0.
inline uint64_t bytes_asked = 0;
bool on_device(const void *p);  // whether cudaMalloc gave it
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
