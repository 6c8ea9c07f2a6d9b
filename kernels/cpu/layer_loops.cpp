#include "layer_loops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "mgrpo/isa.h"

namespace mgrpo::cpu {
namespace {

#if defined(__x86_64__)
// Whether the processor multiplies bfloat16 in tiles, and the system lets this process use them: it must be asked, since
// they enlarge what it saves of a thread.
bool amx_usable() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTiles = 1u << 24, kTilesOfBFloat16 = 1u << 22;
  constexpr long kAskPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (d & kTiles) != 0 && (d & kTilesOfBFloat16) != 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
}
#endif

// The sets that this program has, best first.
const LayerLoops *const kAll[] = {
#if defined(__x86_64__)
    &kLayerLoopsAmx, &kLayerLoopsAvx512, &kLayerLoopsAvx2,
#endif
    &kLayerLoopsPortable};

bool runs(const LayerLoops *ops) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  if (ops == &kLayerLoopsAmx) return avx512 && amx_usable();
  if (ops == &kLayerLoopsAvx512) return avx512;
  if (ops == &kLayerLoopsAvx2) return avx2;
#endif
  return ops == &kLayerLoopsPortable;
}

// The best set, limited by the environment variable.
const LayerLoops *choose() {
  const char *limit = std::getenv("MGRPO_CPU_ISA");
  bool allowed = limit == nullptr;
  for (const LayerLoops *ops : kAll) {
    allowed = allowed || std::strcmp(limit, ops->name) == 0;
    if (allowed && runs(ops)) return ops;
  }
  return &kLayerLoopsPortable;
}

std::atomic<const LayerLoops *> &in_use() {
  static std::atomic<const LayerLoops *> ops{choose()};
  return ops;
}

}  // namespace

const LayerLoops &layer_loops() { return *in_use().load(std::memory_order_relaxed); }

bool multiplies_bf16_pairs() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
  return has && (&layer_loops() == &kLayerLoopsAvx512 || &layer_loops() == &kLayerLoopsAmx);
#else
  return false;
#endif
}

LinearBF16 linear_bf16([[maybe_unused]] int32_t round) {
#if defined(__x86_64__)
  if (round != 0 && multiplies_bf16_pairs() && &layer_loops() != &kLayerLoopsAmx) return linear_rounded;
#endif
  return layer_loops().linear_bf16;
}

}  // namespace mgrpo::cpu

const char *mgrpo_cpu_isa(void) { return mgrpo::cpu::layer_loops().name; }

int32_t mgrpo_cpu_use(const char *isa) {
  using namespace mgrpo::cpu;
  for (const LayerLoops *ops : kAll) {
    if (isa == nullptr || std::strcmp(isa, ops->name) != 0) continue;
    if (!runs(ops)) return MGRPO_UNSUPPORTED;
    in_use().store(ops, std::memory_order_relaxed);
    return MGRPO_OK;
  }
  return MGRPO_INVALID_ARGUMENT;
}
