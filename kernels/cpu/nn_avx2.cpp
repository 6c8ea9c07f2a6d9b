// The nn kernels' inner loops for x86-64 with AVX2 and FMA; kernels/CMakeLists.txt gives this file the flags.
#if defined(__x86_64__)
#include "nn_impl.h"

constinit const mgrpo::cpu::NnOps mgrpo::cpu::kNnOpsAvx2 = mgrpo::cpu::make_nn_ops("avx2");
#endif
