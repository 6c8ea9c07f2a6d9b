#include "nn_ops.h"

#include <cstdlib>
#include <cstring>

#include "mgrpo/nn.h"

namespace mgrpo::cpu {
namespace {

const NnOps &choose() {
#if defined(__x86_64__)
  const char *limit = std::getenv("MGRPO_CPU_ISA");
  const auto allows = [limit](const char *isa) { return limit == nullptr || std::strcmp(limit, isa) == 0; };
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && allows("avx512")) return kNnOpsAvx512;
  if (avx2 && (allows("avx2") || allows("avx512"))) return kNnOpsAvx2;
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
