#include "nn_ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>

#include "mgrpo/nn.h"

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
  return (d & kTiles) != 0 && (d & kTilesOfBFloat16) != 0 && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512bf16") && syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
}
#endif

const NnOps &choose() {
#if defined(__x86_64__)
  const char *limit = std::getenv("MGRPO_CPU_ISA");
  const auto allows = [limit](const char *isa) { return limit == nullptr || std::strcmp(limit, isa) == 0; };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  if (avx512 && allows("amx") && amx_usable()) return kNnOpsAmx;
  if (avx512 && (allows("avx512") || allows("amx"))) return kNnOpsAvx512;
  if (avx2 && (allows("avx2") || allows("avx512") || allows("amx"))) return kNnOpsAvx2;
#endif
  return kNnOpsPortable;
}

}  // namespace

const NnOps &nn_ops() {
  static const NnOps &ops = choose();
  return ops;
}

}  // namespace mgrpo::cpu

const char *mgrpo_cpu_isa(void) { return mgrpo::cpu::nn_ops().name; }
