// Four groups at a time for x86-64 with AVX2; kernels/CMakeLists.txt gives this file the flags.
#if defined(__x86_64__)
#include "group_impl.h"

constinit const mgrpo::cpu::GroupOps mgrpo::cpu::kGroupOpsAvx2 = mgrpo::cpu::make_group_ops();
#endif
