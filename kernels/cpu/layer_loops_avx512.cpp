// The layer kernels' inner loops for x86-64 with AVX-512F; kernels/CMakeLists.txt gives this file the flags.
#if defined(__x86_64__)
#include "layer_loops_body.h"

constinit const mgrpo::cpu::LayerLoops mgrpo::cpu::kLayerLoopsAvx512 = mgrpo::cpu::make_layer_loops("avx512");
#endif
