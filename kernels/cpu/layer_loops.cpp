// The choice of the instruction set.
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
// Reports whether the CPU multiplies bfloat16 in tiles and Linux permits their use. A process must ask for permission, because tile
// registers enlarge the saved state of a thread.
bool amx_usable() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTiles = 1u << 24, kTilesOfBFloat16 = 1u << 22;
  constexpr long kAskPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return (d & kTiles) != 0 && (d & kTilesOfBFloat16) != 0 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
}
#endif

// The names of the instruction sets, by Isa.
constexpr const char *kNames[] = {"portable", "avx2", "avx512", "amx"};

const char *name_of(const LayerLoops &loops) { return kNames[static_cast<int>(loops.isa)]; }

// The instruction sets in this build, the best one first.
const LayerLoops *const kAll[] = {
#if defined(__x86_64__)
    &kLayerLoopsAmx, &kLayerLoopsAvx512, &kLayerLoopsAvx2,
#endif
    &kLayerLoopsPortable};

// Reports whether this CPU has an instruction set.
bool runs(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  if (isa == Isa::amx) return avx512 && amx_usable();
  if (isa == Isa::avx512) return avx512;
  if (isa == Isa::avx2) return avx2;
#endif
  return isa == Isa::portable;
}

// Returns the loops of the best instruction set that the environment variable allows.
const LayerLoops *choose() {
  const char *limit = std::getenv("MGRPO_CPU_ISA");
  bool allowed = limit == nullptr;
  for (const LayerLoops *loops : kAll) {
    allowed = allowed || std::strcmp(limit, name_of(*loops)) == 0;
    if (allowed && runs(loops->isa)) return loops;
  }
  return &kLayerLoopsPortable;
}

std::atomic<const LayerLoops *> &in_use() {
  static std::atomic<const LayerLoops *> loops{choose()};
  return loops;
}

}  // namespace

const LayerLoops &layer_loops() { return *in_use().load(std::memory_order_relaxed); }

bool multiplies_bf16_pairs() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw");
  return has && layer_loops().isa >= Isa::avx512;
#else
  return false;
#endif
}

LinearBF16 linear_bf16([[maybe_unused]] int32_t round) {
#if defined(__x86_64__)
  if (round != 0 && multiplies_bf16_pairs() && layer_loops().isa != Isa::amx) return linear_rounded;
#endif
  return layer_loops().linear_bf16;
}

}  // namespace mgrpo::cpu

const char *mgrpo_cpu_isa(void) { return mgrpo::cpu::name_of(mgrpo::cpu::layer_loops()); }

int32_t mgrpo_cpu_bf16_is_faster(void) {
#if defined(__x86_64__)
  using namespace mgrpo::cpu;
  static const bool in_tiles = amx_usable(), in_pairs = !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake");
  return in_tiles || (in_pairs && multiplies_bf16_pairs());
#else
  return 0;
#endif
}

int32_t mgrpo_cpu_use(const char *isa) {
  using namespace mgrpo::cpu;
  for (const LayerLoops *loops : kAll) {
    if (isa == nullptr || std::strcmp(isa, name_of(*loops)) != 0) continue;
    if (!runs(loops->isa)) return MGRPO_UNSUPPORTED;
    in_use().store(loops, std::memory_order_relaxed);
    return MGRPO_OK;
  }
  return MGRPO_INVALID_ARGUMENT;
}
