// Runs CUDA kernels on one CPU thread. The threads of a block are fibers. Each runs until it reaches a barrier or ends. Blocks
// run one after another, and the blocks of a cluster take turns. The emulator varies everything that a program must not rely on.
// This is the order of threads between barriers, the initial contents of shared and device memory, and the time of a stream's
// work. The work starts only when the host waits for it. It ends the program with a message if some threads miss a barrier, if a
// copy exceeds its allocation or names the wrong side, and in the cases listed below. A build with race detection also reports
// races between threads (races.cpp). MGRPO_EMULATOR_SEED=n selects another order of threads; 0 is the order of their numbers.
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "copy.h"
#include "cuda_runtime.h"
#include "fiber.h"
#include "races.h"
#include "stream.h"

// The built-in variables of a thread.
uint3 emulated_thread asm("threadIdx"), emulated_block asm("blockIdx");
dim3 emulated_block_size asm("blockDim"), emulated_grid asm("gridDim");

extern "C" unsigned char emulator_shared_begin[], emulator_shared_end[];  // shared.ld

namespace emulator {
namespace {

constexpr size_t kSharedWithoutAsking = 48 << 10;

struct Device {
  int major, minor, shared_optin, shared_sm, multiprocessors;
};
constexpr Device kDevices[] = {{9, 0, 227 << 10, 228 << 10, 132}, {8, 0, 163 << 10, 164 << 10, 108}};
int device = 0;

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kAtClusterBarrier, kEnded };

struct Thread {
  Fiber fiber;
  uint3 index;
  State state;
  Where where;
  unsigned mask;       // lanes of the warp barrier
  bool orders;         // whether the barrier orders memory: __syncwarp does, a shuffle does not
  unsigned exchanges;  // number of exchanges; they alternate between two sets of slots
  std::vector<Copy> started;
  std::deque<std::vector<Copy>> copies;  // pending copies, by group
};

// A part of static shared memory that is copied as one.
struct Piece {
  unsigned char at __attribute__((vector_size(64)));
};

struct Block {
  uint3 index;
  unsigned rank;  // in the block's cluster
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Slot> slots[2];
  std::vector<Piece> shared;  // static shared memory while another block of the cluster runs
  std::unique_ptr<void, decltype(&std::free)> dynamic{nullptr, &std::free};
};

struct Launch {
  cudaLaunchConfig_t config;
  unsigned cluster;
  std::function<void()> thread;
  std::vector<unsigned> order;
};

const Launch *launch_now;
std::vector<std::unique_ptr<Block>> blocks;  // blocks of the running cluster; kept to reuse their stacks
Block *block;
Thread *thread;
unsigned launches;
uint64_t blocks_run;  // in this launch

unsigned char leftover() { return launches % 2 ? 0xFF : 0x5A; }  // NaN and -1, or a number

Piece filled() {
  Piece p;
  p.at = decltype(p.at){} + leftover();
  return p;
}

const char *name(State s) {
  switch (s) {
    case State::kReady:
      return "has not run";
    case State::kAtWarpBarrier:
      return "waits for its warp";
    case State::kAtBlockBarrier:
      return "waits for its block";
    case State::kAtClusterBarrier:
      return "waits for its cluster";
    case State::kEnded:
      return "has ended";
  }
  return "";
}

bool same(const Where &a, const Where &b) {
  return a.line() == b.line() && a.column() == b.column() && (a.file_name() == b.file_name() || !std::strcmp(a.file_name(), b.file_name()));
}

[[noreturn]] void diverged(const Thread &a, const Thread &b) {
  const auto where = [](const Thread &t) { return t.state == State::kEnded ? Where() : t.where; };
  fail("threads of a block part at a barrier: (%u,%u,%u) %s %s:%u, (%u,%u,%u) %s %s:%u", a.index.x, a.index.y, a.index.z, name(a.state),
       where(a).file_name(), where(a).line(), b.index.x, b.index.y, b.index.z, name(b.state), where(b).file_name(), where(b).line());
}

// The sanitisers place bytes that must not be touched around the variables in shared memory. This code copies them too.
#define MGRPO_UNCHECKED __attribute__((no_sanitize("address"), no_sanitize("undefined"), optimize("no-tree-loop-distribute-patterns")))

size_t pieces() { return static_cast<size_t>(emulator_shared_end - emulator_shared_begin) / sizeof(Piece); }
Piece *static_shared() { return reinterpret_cast<Piece *>(emulator_shared_begin); }

MGRPO_UNCHECKED void copy(Piece *to, const Piece *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = from[i];
}

// Range of pieces that earlier kernels have written, as far as the contents show.
size_t dirty_begin, dirty_end;

MGRPO_UNCHECKED void fill_shared(size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) static_shared()[i] = filled();
}
MGRPO_UNCHECKED void find_dirty() {
  const auto is_dirty = [](size_t i) MGRPO_UNCHECKED {
    for (size_t k = 0; k < sizeof(Piece); k++)
      if (static_shared()[i].at[k] != leftover()) return true;
    return false;
  };
  for (dirty_begin = 0, dirty_end = pieces(); dirty_begin < dirty_end && !is_dirty(dirty_begin);) dirty_begin++;
  while (dirty_begin < dirty_end && !is_dirty(dirty_end - 1)) dirty_end--;
}

// Returns the place where other blocks of the cluster find a block's static shared memory.
Piece *kept_shared(Block &b) { return launch_now->cluster > 1 ? b.shared.data() : static_shared(); }

void run_thread() {
  launch_now->thread();
  if (!thread->started.empty() || !thread->copies.empty()) fail("a thread ends without a wait for its copies");
  thread->state = State::kEnded;
  thread->fiber.leave(true);
}

void wait(State state, Where where) {
  if (!thread) fail("a barrier outside of a kernel");
  thread->state = state;
  thread->where = where;
  thread->fiber.leave(false);
}

unsigned warp_size(unsigned first) { return std::min<unsigned>(32, block->threads.size() - first); }

unsigned existing(unsigned mask, unsigned first) {
  const unsigned n = warp_size(first);
  return n == 32 ? mask : mask & ((1u << n) - 1);
}

// Resumes the warps whose lanes have all arrived. Returns whether it resumed any.
bool release_warps() {
  bool released = false;
  for (unsigned first = 0; first < block->threads.size(); first += 32) {
    for (unsigned l = 0; l < warp_size(first); l++) {
      Thread &t = *block->threads[first + l];
      if (t.state != State::kAtWarpBarrier) continue;
      bool all = true;
      for (unsigned k = 0; k < 32; k++) {
        if (!(t.mask >> k & 1)) continue;
        const Thread &other = *block->threads[first + k];
        const bool is_here = other.state == State::kAtWarpBarrier && other.mask == t.mask && same(other.where, t.where);
        if (other.state == State::kEnded || (other.state == State::kAtWarpBarrier && !is_here)) diverged(t, other);
        all = all && is_here;
      }
      if (!all) continue;
      for (unsigned k = 0; k < 32; k++)
        if (t.mask >> k & 1) block->threads[first + k]->state = State::kReady;
      if (t.orders) races::warp_meets(first / 32, t.mask, existing(0xFFFFFFFF, first));
      released = true;
    }
  }
  return released;
}

// Runs a block until its threads have ended or wait for the cluster.
State run_block() {
  emulated_block = block->index;
  races::block_runs(block->rank, static_shared(), kept_shared(*block), pieces() * sizeof(Piece));
  for (;;) {
    bool in_warps = false;
    for (unsigned i : launch_now->order) {
      thread = block->threads[i].get();
      if (thread->state != State::kReady) continue;
      emulated_thread = thread->index;
      races::thread_runs(i, thread->fiber.stack(), Fiber::kStack);
      thread->fiber.resume();
      in_warps |= thread->state == State::kAtWarpBarrier;
    }
    thread = nullptr;
    races::host_runs();
    if (in_warps && release_warps()) continue;
    const Thread &first = *block->threads[0];
    for (const auto &t : block->threads) {
      if (t->state == State::kAtWarpBarrier) diverged(*t, first.state == State::kAtWarpBarrier ? *block->threads.back() : first);
      if (t->state != first.state || (t->state != State::kEnded && !same(t->where, first.where))) diverged(first, *t);
    }
    if (first.state != State::kAtBlockBarrier) return first.state;
    races::block_meets();
    for (const auto &t : block->threads) t->state = State::kReady;
  }
}

void start_block(Block &b, unsigned rank, uint3 index) {
  const cudaLaunchConfig_t &c = launch_now->config;
  const dim3 &size = c.blockDim;
  b.index = index;
  b.rank = rank;
  for (size_t n = size.x * size.y * size.z; b.threads.size() > n;) b.threads.pop_back();
  while (b.threads.size() < size.x * size.y * size.z) b.threads.push_back(std::make_unique<Thread>());
  for (auto &slots : b.slots) slots.resize((b.threads.size() + 31) / 32 * 32);
  for (unsigned i = 0; i < b.threads.size(); i++) {
    Thread &t = *b.threads[i];
    t.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    t.state = State::kReady;
    t.exchanges = 0;
    t.fiber.start(run_thread, i % 61 * 192);
  }
  if (c.dynamicSmemBytes > 0) {
    b.dynamic.reset(std::aligned_alloc(16, (c.dynamicSmemBytes + 15) / 16 * 16));
    std::memset(b.dynamic.get(), leftover(), c.dynamicSmemBytes);
    races::fresh(b.dynamic.get(), c.dynamicSmemBytes);
  } else {
    b.dynamic.reset();
  }
  if (launch_now->cluster > 1) b.shared.assign(pieces(), filled());
  races::fresh(kept_shared(b), pieces() * sizeof(Piece));
}

void run_cluster() {
  if (launch_now->cluster == 1) {
    block = blocks[0].get();
    const bool all = blocks_run++ % 64 == 0;  // filling everything takes longer than most blocks
    fill_shared(all ? 0 : dirty_begin, all ? pieces() : dirty_end);
    while (run_block() != State::kEnded) {
      races::cluster_meets();
      for (const auto &t : block->threads) t->state = State::kReady;
    }
    if (all) find_dirty();
    return;
  }
  for (State state = State::kReady; state != State::kEnded;) {
    for (unsigned k = 0; k < launch_now->cluster; k++) {
      block = blocks[k].get();
      copy(static_shared(), block->shared.data(), pieces());
      const State now = run_block();
      copy(block->shared.data(), static_shared(), pieces());
      if (k > 0 && (now != state || (now != State::kEnded && !same(block->threads[0]->where, blocks[0]->threads[0]->where))))
        diverged(*blocks[0]->threads[0], *block->threads[0]);
      state = now;
    }
    races::cluster_meets();
    for (unsigned k = 0; k < launch_now->cluster; k++)
      for (const auto &t : blocks[k]->threads)
        if (state != State::kEnded) t->state = State::kReady;
  }
}

void run(Launch &l) {
  static const unsigned seed = std::getenv("MGRPO_EMULATOR_SEED") ? std::atoi(std::getenv("MGRPO_EMULATOR_SEED")) : 1;
  launches++;
  const dim3 &grid = l.config.gridDim, &size = l.config.blockDim;
  l.order.resize(size.x * size.y * size.z);
  std::iota(l.order.begin(), l.order.end(), 0);
  if (seed > 0) std::shuffle(l.order.begin(), l.order.end(), std::mt19937(seed * 1000003 + launches));
  launch_now = &l;
  emulated_grid = grid;
  emulated_block_size = size;
  blocks_run = 0;
  while (blocks.size() < l.cluster) blocks.push_back(std::make_unique<Block>());
  races::launch_begins(uint64_t{grid.x} * grid.y * grid.z, l.cluster);
  for (unsigned z = 0; z < grid.z; z++) {
    for (unsigned y = 0; y < grid.y; y++) {
      for (unsigned x = 0; x < grid.x; x += l.cluster) {
        races::cluster_begins(x + grid.x * (y + uint64_t{grid.y} * z));
        for (unsigned k = 0; k < l.cluster; k++) start_block(*blocks[k], k, {x + k, y, z});
        run_cluster();
      }
    }
  }
  block = nullptr;
  launch_now = nullptr;
}

// Device memory from cudaMalloc. The map's key is its end.
struct Allocation {
  uintptr_t begin;
};
std::map<uintptr_t, Allocation> allocations;
uintptr_t found_begin, found_end;  // the allocation that was found last

bool on_device(const void *p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  const auto it = allocations.upper_bound(at);
  return it != allocations.end() && it->second.begin <= at;
}

// Ends the program unless [p, p + bytes) is in device memory (`wanted`) or in host memory (not `wanted`).
void check_side(const void *p, size_t bytes, bool wanted, const char *call) {
  if (bytes == 0) return;
  if (on_device(p) != wanted) fail("%s: %p is %s memory", call, p, wanted ? "no device" : "device");
  if (!wanted) return;
  const auto end = allocations.upper_bound(reinterpret_cast<uintptr_t>(p))->first;
  if (bytes > end - reinterpret_cast<uintptr_t>(p))
    fail("%s: %zu bytes at %p end %zu after their allocation", call, bytes, p, bytes - (end - reinterpret_cast<uintptr_t>(p)));
}

std::map<cudaStream_t, std::deque<std::function<void()>>> streams;

Work *recorded = nullptr;

Counts counted;

void drain(std::deque<std::function<void()>> &work) {
  if (recorded) fail("the host waits for the GPU while work is recorded");
  for (; !work.empty(); work.pop_front()) work.front()();
}

void in_stream(cudaStream_t stream, std::function<void()> work) {
  if (recorded)
    recorded->push_back(std::move(work));
  else
    streams[stream].push_back(std::move(work));
}

void free_now(void *p) {
  const auto it = allocations.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == allocations.end() || it->second.begin != reinterpret_cast<uintptr_t>(p)) fail("%p is freed, which cudaMalloc did not give", p);
  allocations.erase(it);
  found_begin = found_end = 0;
  std::free(p);
}

std::map<std::pair<int, const void *>, size_t> shared_allowed;  // by device and kernel

std::vector<Planned> *planned = nullptr;

}  // namespace

void fail(const char *format, ...) {
  std::fprintf(stderr, "emulated GPU");
  if (block) std::fprintf(stderr, ", block (%u,%u,%u)", block->index.x, block->index.y, block->index.z);
  if (thread) std::fprintf(stderr, ", thread (%u,%u,%u)", thread->index.x, thread->index.y, thread->index.z);
  std::fprintf(stderr, ": ");
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  std::abort();
}

void *dynamic_shared() { return block->dynamic.get(); }
void block_barrier(Where where) { wait(State::kAtBlockBarrier, where); }
void cluster_barrier(Where where) { wait(State::kAtClusterBarrier, where); }
unsigned cluster_size() { return launch_now->cluster; }
unsigned cluster_rank() { return block->rank; }

unsigned lane() {
  const dim3 &size = emulated_block_size;
  return (thread->index.x + size.x * (thread->index.y + size.y * thread->index.z)) % 32;
}

static unsigned warp_begin() {
  const dim3 &size = emulated_block_size;
  return (thread->index.x + size.x * (thread->index.y + size.y * thread->index.z)) / 32 * 32;
}

static void meet(unsigned mask, bool orders, Where where) {
  if (!(mask >> lane() & 1)) fail("lane %u is not in its mask %#x: %s:%u", lane(), mask, where.file_name(), where.line());
  thread->mask = existing(mask, warp_begin());
  thread->orders = orders;
  wait(State::kAtWarpBarrier, where);
}

void warp_barrier(unsigned mask, Where where) { meet(mask, true, where); }

const Slot *exchange(unsigned mask, const void *value, size_t size, Where where) {
  Slot *const slots = block->slots[thread->exchanges++ % 2].data() + warp_begin();
  std::memcpy(slots[lane()].bytes, value, size);
  meet(mask, false, where);
  return slots;
}

void note_copy(const Copy &copy) { thread->started.push_back(copy); }

void end_copies() { thread->copies.push_back(std::exchange(thread->started, {})); }

bool take_copy(size_t left, Copy *copy) {
  auto &groups = thread->copies;
  while (groups.size() > left && groups.front().empty()) groups.pop_front();
  if (groups.size() <= left) return false;
  *copy = groups.front().back();
  groups.front().pop_back();
  return true;
}

const void *at_rank(const void *shared, unsigned rank) {
  const auto *p = static_cast<const unsigned char *>(shared);
  const auto *dynamic = static_cast<const unsigned char *>(block->dynamic.get());
  if (rank >= launch_now->cluster) fail("no block %u in a cluster of %u", rank, launch_now->cluster);
  if (rank == block->rank) return p;
  if (p >= emulator_shared_begin && p < emulator_shared_end)
    return reinterpret_cast<unsigned char *>(blocks[rank]->shared.data()) + (p - emulator_shared_begin);
  if (dynamic && p >= dynamic && p < dynamic + launch_now->config.dynamicSmemBytes)
    return static_cast<unsigned char *>(blocks[rank]->dynamic.get()) + (p - dynamic);
  fail("map_shared_rank of %p, which is not in shared memory", shared);
}

#ifdef MGRPO_EMULATED_RACES
bool races::on_device(const void *p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  if (at >= found_begin && at < found_end) return true;
  const auto it = allocations.upper_bound(at);
  if (it == allocations.end() || it->second.begin > at) return false;
  found_begin = it->second.begin, found_end = it->first;
  return true;
}
#endif

void plan(std::vector<Planned> *to) { planned = to; }

cudaError_t set_attribute(const void *kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > kDevices[device].shared_optin)
    return cudaErrorInvalidValue;
  shared_allowed[{device, kernel}] = static_cast<size_t>(value);
  return cudaSuccess;
}

int resident_blocks(const dim3 &size, size_t shared) {
  const int threads = static_cast<int>(size.x * size.y * size.z), by_registers = 1024 / threads;
  return std::min(by_registers, static_cast<int>(kDevices[device].shared_sm / (shared + 1024)));
}

cudaError_t resident_clusters(int *count, const cudaLaunchConfig_t &config) {
  if (kDevices[device].major < 9) return cudaErrorInvalidConfiguration;
  *count = resident_blocks(config.blockDim, config.dynamicSmemBytes) * kDevices[device].multiprocessors /
           static_cast<int>(config.numAttrs > 0 ? config.attrs[0].val.clusterDim.x : 1);
  return cudaSuccess;
}

cudaError_t launch(const void *kernel, const cudaLaunchConfig_t &config, std::function<void()> body) {
  const dim3 &grid = config.gridDim, &size = config.blockDim;
  const uint64_t threads = static_cast<uint64_t>(size.x) * size.y * size.z;
  if (grid.x < 1 || grid.x > INT32_MAX || grid.y < 1 || grid.y > 65535 || grid.z < 1 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (threads < 1 || threads > 1024 || size.z > 64) return cudaErrorInvalidConfiguration;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config.numAttrs; i++) {
    const auto &a = config.attrs[i];
    if (a.id != cudaLaunchAttributeClusterDimension || a.val.clusterDim.y != 1 || a.val.clusterDim.z != 1) return cudaErrorInvalidValue;
    cluster = a.val.clusterDim.x;
    if (kDevices[device].major < 9 || cluster < 1 || cluster > 8 || grid.x % cluster != 0) return cudaErrorInvalidConfiguration;
  }
  const auto allowed = shared_allowed.find({device, kernel});
  if (config.dynamicSmemBytes > (allowed == shared_allowed.end() ? kSharedWithoutAsking : allowed->second)) return cudaErrorInvalidValue;
  if (planned) {
    planned->push_back({grid.x * grid.y * grid.z, static_cast<unsigned>(threads), cluster});
    return cudaSuccess;
  }
  const auto l = std::make_shared<Launch>(Launch{config, cluster, std::move(body), {}});
  counted.launches += !recorded;
  in_stream(config.stream, [l] { run(*l); });
  return cudaSuccess;
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaGetDeviceCount(int *count) {
  *count = std::size(kDevices);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= static_cast<int>(std::size(kDevices))) return cudaErrorInvalidDevice;
  device = d;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d) {
  *d = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int d) {
  if (d < 0 || d >= static_cast<int>(std::size(kDevices))) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedWithoutAsking;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = kDevices[d].multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kDevices[d].major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kDevices[d].minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kDevices[d].shared_sm;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kDevices[d].shared_optin;
      return cudaSuccess;
    case cudaDevAttrClusterLaunch:
      *value = kDevices[d].major >= 9;
      return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  counted.waits++;
  drain(streams[stream]);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  for (auto &[stream, work] : streams) drain(work);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (posix_memalign(out, 256, bytes) != 0) return cudaErrorMemoryAllocation;
  std::memset(*out, leftover(), std::min<size_t>(bytes, 64 << 20));  // larger allocations stay untouched, to save time
  const auto begin = reinterpret_cast<uintptr_t>(*out);
  allocations[begin + bytes] = {begin};
  return cudaSuccess;
}

cudaError_t cudaFree(void *p) {
  if (!p) return cudaSuccess;
  cudaDeviceSynchronize();
  free_now(p);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t) { return cudaMalloc(out, bytes); }

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
  if (recorded)
    recorded->push_back([owned = std::shared_ptr<void>(p, free_now)] {});
  else
    in_stream(stream, [p] { free_now(p); });
  return cudaSuccess;
}

// Copies from host memory at once, as CUDA does with pageable memory. Copies to host memory are made when the host waits.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind == cudaMemcpyHostToHost || kind == cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  check_side(to, bytes, kind != cudaMemcpyDeviceToHost, "cudaMemcpy");
  check_side(from, bytes, kind != cudaMemcpyHostToDevice, "cudaMemcpy");
  if (recorded && kind != cudaMemcpyDeviceToDevice)
    fail("%zu bytes are copied from or to the host's memory, which is not pinned, while work is recorded", bytes);
  if (kind == cudaMemcpyHostToDevice) {
    counted.uploads++;
    const auto *begin = static_cast<const unsigned char *>(from);
    in_stream(stream, [to, copy = std::vector<unsigned char>(begin, begin + bytes)] { std::memcpy(to, copy.data(), copy.size()); });
  } else {
    in_stream(stream, [=] { std::memcpy(to, from, bytes); });
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  cudaStreamSynchronize(nullptr);
  return error;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
  check_side(to, bytes, true, "cudaMemset");
  counted.launches += !recorded;
  in_stream(stream, [=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidMemcpyDirection:
      return "invalid copy direction for memcpy";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return "unknown error";
  }
}

namespace emulator {

Counts &counts() { return counted; }

void *allocate(size_t bytes) {
  void *p = nullptr;
  return cudaMalloc(&p, bytes) == cudaSuccess ? p : nullptr;
}
void release(void *p) {
  if (p) cudaFreeAsync(p, nullptr);
}
void finish() { cudaDeviceSynchronize(); }
void enqueue(std::function<void()> work) { in_stream(nullptr, std::move(work)); }
void record(Work *to) {
  if (to) finish();
  recorded = to;
}
bool recording() { return recorded != nullptr; }

}  // namespace emulator
