// Finds races: two accesses to the same byte by different threads of a launch, without an order between them, if one of them writes and
// one is not atomic. It finds them in every execution order, even if the results are correct.
// These create an order:
//   the program order of one thread; __syncthreads, within a block; __syncwarp and shuffles, among the lanes of their mask;
//   cluster.sync, within a cluster; the end of a launch.
// Nothing else does. Blocks and clusters of a launch are never ordered, and atomics order nothing, even with fences: the kernels do not
// rely on that. Writes of equal values race too, as the language defines it.
//
// Time counts the barriers of all blocks, so each barrier has its own time. Accesses of a block before its last barrier have an earlier
// time. A byte remembers its last write and the reads since then. For several unordered reads it keeps the latest time and the smallest
// group that contains them all. So it can miss a race with one of several readers of a warp, if some lanes of that warp met without the
// others.
#include "races.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>

#include "cuda_runtime.h"

extern "C" const char __executable_start[];

namespace emulator::races {
namespace {

enum Group : unsigned { kThread, kWarp, kBlock, kCluster, kGrid };

// One access, or several accesses of a group. Codes are ordered by time.
struct Access {
  static constexpr int kThreadBits = 10, kBlockBits = 13, kTimeShift = kThreadBits + kBlockBits + 4;
  uint64_t code = 0;

  unsigned thread() const { return code & ((1u << kThreadBits) - 1); }
  unsigned block() const { return code >> kThreadBits & ((1u << kBlockBits) - 1); }
  Group group() const { return static_cast<Group>(code >> (kThreadBits + kBlockBits) & 7); }
  bool is_atomic() const { return code >> (kTimeShift - 1) & 1; }
  uint64_t time() const { return code >> kTimeShift; }

  Access with(Group g) const { return {code | uint64_t{g} << (kThreadBits + kBlockBits)}; }
  Access atomic() const { return {code | uint64_t{1} << (kTimeShift - 1)}; }
};

struct Byte {
  Access write, reads;
  uint32_t written_at, read_at;  // addresses in the program
};

constexpr size_t kPage = 4096, kKeptPages = 4096;

struct Page {
  std::unique_ptr<Byte[], decltype(&std::free)> bytes{static_cast<Byte *>(std::calloc(kPage, sizeof(Byte))), &std::free};
  uint64_t since = 0;  // earlier accesses belong to other memory
};
std::unordered_map<uintptr_t, Page> pages;  // by page number

struct Recent {
  uintptr_t number;
  Page *page;
};
std::array<Recent, 1024> recent;

Page &page_of(uintptr_t number) {
  Recent &r = recent[number % recent.size()];
  if (r.page == nullptr || r.number != number) r = {number, &pages[number]};
  return *r.page;
}

using Lanes = std::array<std::array<uint64_t, 32>, 32>;

struct Warp {
  uint64_t met = 0;              // time of the last barrier of all its lanes
  std::unique_ptr<Lanes> known;  // [a][b]: lane a sees what lane b did before this time, through barriers of some lanes

  uint64_t known_of(unsigned lane, unsigned other) const { return std::max(met, known ? (*known)[lane][other] : 0); }
};

struct Block {
  uint64_t met;
  std::array<Warp, 32> warps;
};

uint64_t now = 1, launched, cluster_met;
unsigned cluster_size, first_block;  // of the running cluster
std::array<Block, 8> blocks;         // of the running cluster

// The running thread.
bool on_gpu = false;
unsigned rank, me;
Access mine;
const char *stack, *shared_here, *shared_own;
size_t stack_size, shared_size;

bool in_cluster(Access a) { return a.block() - first_block < cluster_size; }
bool in_block(Access a) { return a.block() == mine.block(); }
bool in_warp(Access a) { return in_block(a) && a.thread() / 32 == me / 32; }

// Returns whether the accesses of `a` happened before the running thread's current access.
bool ordered(Access a, uint64_t since) {
  if (a.time() < since) return true;
  if (a.group() == kGrid || !in_cluster(a)) return false;
  if (a.time() < cluster_met) return true;
  if (a.group() == kCluster || !in_block(a)) return false;
  if (a.time() < blocks[rank].met) return true;
  if (a.group() == kBlock || !in_warp(a)) return false;
  const Warp &warp = blocks[rank].warps[me / 32];
  return (a.group() == kThread && a.thread() == me) || a.time() < warp.known_of(me % 32, a.thread() % 32);
}

// Combines the running thread's access with the accesses that do not happen before it.
Access together(Access a) {
  if (a.group() == kGrid || !in_cluster(a)) return mine.with(kGrid);
  if (a.group() == kCluster || !in_block(a)) return mine.with(kCluster);
  if (a.group() == kBlock || !in_warp(a)) return mine.with(kBlock);
  return a.group() == kWarp || a.thread() != me ? mine.with(kWarp) : mine;
}

// Returns the source line of an address, followed by the lines that inlined it.
std::string source(uint32_t at) {
  char command[128], line[1024];
  std::snprintf(command, sizeof command, "addr2line -Csi -e /proc/%d/exe %#x", getpid(), at - 1);
  FILE *lines = popen(command, "r");
  std::string found;
  while (lines && std::fgets(line, sizeof line, lines)) {
    line[std::strcspn(line, " \n")] = 0;  // a discriminator may follow
    if (std::strncmp(line, "cuda_runtime.h:", 15) == 0) continue;
    found += (found.empty() ? "" : " in ") + std::string(line);
  }
  if (lines) pclose(lines);
  return found.empty() ? "?" : found;
}

std::string name(Access a) {
  static const char *const kOthers[] = {"", ", and others of its warp", ", and others of its block", ", and blocks of its cluster",
                                        ", and other blocks"};
  return "block " + std::to_string(a.block()) + ", thread " + std::to_string(a.thread()) + kOthers[a.group()];
}

[[noreturn]] void race(const char *does, uintptr_t at, uint32_t where, const char *did, Access other, uint32_t other_where) {
  on_gpu = false;
  fail("race: it %s %#zx at %s, which %s %s at %s, and nothing orders the two", does, at, source(where).c_str(), name(other).c_str(), did,
       source(other_where).c_str());
}

struct Read {
  static void at(Byte &b, uint64_t since, uintptr_t at, uint32_t where) {
    if (b.reads.code == mine.code) return;
    if (!ordered(b.write, since)) race("reads", at, where, b.write.is_atomic() ? "changed atomically" : "wrote", b.write, b.written_at);
    b.reads = ordered(b.reads, since) ? mine : together(b.reads);
    b.read_at = where;
  }
};

struct Write {
  static void at(Byte &b, uint64_t since, uintptr_t at, uint32_t where) {
    if (!ordered(b.write, since)) race("writes", at, where, b.write.is_atomic() ? "changed atomically" : "wrote", b.write, b.written_at);
    if (!ordered(b.reads, since)) race("writes", at, where, "read", b.reads, b.read_at);
    b = {mine, {}, where, 0};
  }
};

struct Atomic {
  static void at(Byte &b, uint64_t since, uintptr_t at, uint32_t where) {
    const bool follows = ordered(b.write, since);
    if (!follows && !b.write.is_atomic()) race("changes atomically", at, where, "wrote", b.write, b.written_at);
    if (!ordered(b.reads, since)) race("changes atomically", at, where, "read", b.reads, b.read_at);
    b = {(follows ? mine : together(b.write)).atomic(), {}, where, 0};
  }
};

template <class Kind>
void access(const void *memory, size_t bytes, const void *caller) {
  if (!on_gpu) return;
  const auto *p = static_cast<const char *>(memory);
  if (static_cast<size_t>(p - stack) < stack_size) return;
  if (static_cast<size_t>(p - shared_here) < shared_size)
    p = shared_own + (p - shared_here);
  else if (on_device(p))
    bytes_asked += bytes;
  const auto where = static_cast<uint32_t>(static_cast<const char *>(caller) - __executable_start);
  for (auto at = reinterpret_cast<uintptr_t>(p), end = at + bytes; at < end;) {
    Page &page = page_of(at / kPage);
    const uint64_t since = std::max(launched, page.since);
    const uintptr_t stop = std::min(end, (at / kPage + 1) * kPage);
    for (; at < stop; at++) Kind::at(page.bytes[at % kPage], since, at, where);
  }
}

}  // namespace

void launch_begins(uint64_t all, unsigned cluster) {
  constexpr unsigned kMost = 1u << Access::kBlockBits;
  if (all > kMost) fail("races are watched in grids of up to %u blocks, not of %zu", kMost, size_t{all});
  launched = ++now;
  cluster_size = cluster;
  if (pages.size() > kKeptPages) {  // the old pages no longer matter
    recent = {};
    pages.clear();
  }
}

void cluster_begins(uint64_t first) {
  first_block = static_cast<unsigned>(first);
  cluster_met = ++now;
  for (Block &b : blocks) b = {};
}

void fresh(const void *memory, size_t bytes) {
  for (auto at = reinterpret_cast<uintptr_t>(memory), end = at + bytes; at < end;) {
    Page &page = page_of(at / kPage);
    const uintptr_t stop = std::min(end, (at / kPage + 1) * kPage);
    if (stop - at == kPage)
      page.since = now;
    else
      std::fill(&page.bytes[at % kPage], &page.bytes[at % kPage] + (stop - at), Byte{});
    at = stop;
  }
}

void block_runs(unsigned r, const void *here, const void *own, size_t bytes) {
  rank = r;
  shared_here = static_cast<const char *>(here);
  shared_own = static_cast<const char *>(own);
  shared_size = bytes;
}

void thread_runs(unsigned thread, const void *its_stack, size_t bytes) {
  me = thread;
  mine = {now << Access::kTimeShift | uint64_t{first_block + rank} << Access::kThreadBits | thread};
  stack = static_cast<const char *>(its_stack);
  stack_size = bytes;
  on_gpu = true;
}

void host_runs() { on_gpu = false; }

void warp_meets(unsigned number, unsigned lanes, unsigned existing) {
  Warp &warp = blocks[rank].warps[number];
  now++;
  if (lanes == existing) {
    warp.met = now;
    return;
  }
  if (!warp.known) warp.known = std::make_unique<Lanes>();
  std::array<uint64_t, 32> joint{};
  for (unsigned a = 0; a < 32; a++)
    for (unsigned b = 0; b < 32; b++)
      if (lanes >> a & 1) joint[b] = lanes >> b & 1 ? now : std::max(joint[b], (*warp.known)[a][b]);
  for (unsigned a = 0; a < 32; a++)
    if (lanes >> a & 1) (*warp.known)[a] = joint;
}

void block_meets() { blocks[rank].met = ++now; }
void cluster_meets() { cluster_met = ++now; }
void atomic_access(const void *at, size_t bytes, const void *where) { access<Atomic>(at, bytes, where); }

}  // namespace emulator::races

// The functions that -fsanitize=thread calls.
#define MGRPO_ACCESS(name, kind, bytes) \
  extern "C" void __tsan_##name(void *at) { emulator::races::access<emulator::races::kind>(at, bytes, __builtin_return_address(0)); }
#define MGRPO_ACCESSES(bytes)              \
  MGRPO_ACCESS(read##bytes, Read, bytes)   \
  MGRPO_ACCESS(write##bytes, Write, bytes) \
  MGRPO_ACCESS(unaligned_read##bytes, Read, bytes) MGRPO_ACCESS(unaligned_write##bytes, Write, bytes)
MGRPO_ACCESSES(1)
MGRPO_ACCESSES(2)
MGRPO_ACCESSES(4)
MGRPO_ACCESSES(8)
MGRPO_ACCESSES(16)

extern "C" {
void __tsan_read_range(void *at, size_t bytes) { emulator::races::access<emulator::races::Read>(at, bytes, __builtin_return_address(0)); }
void __tsan_write_range(void *at, size_t bytes) { emulator::races::access<emulator::races::Write>(at, bytes, __builtin_return_address(0)); }
void __tsan_init() {}
// Called by host code.
void __tsan_vptr_update(void *, void *) {}
int __tsan_atomic32_fetch_add(volatile int *at, int value, int) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
int __tsan_atomic32_fetch_sub(volatile int *at, int value, int) { return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST); }
uint64_t __tsan_atomic64_load(const volatile uint64_t *at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
void __tsan_atomic64_store(volatile uint64_t *at, uint64_t value, int) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
}
