// The inner loops of the layer kernels for x86-64 with AVX-512F. kernels/CMakeLists.txt sets the compiler flags of this file.
#if defined(__x86_64__)
#include "layer_loops_body.h"

constinit const mgrpo::cpu::LayerLoops mgrpo::cpu::kLayerLoopsAvx512 = mgrpo::cpu::make_layer_loops(mgrpo::cpu::Isa::avx512);
#endif
