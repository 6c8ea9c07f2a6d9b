// The inner loops of the layer kernels for x86-64 with AMX. They are the loops for AVX-512F, except that products with bfloat16 weights use
// the tile registers. kernels/CMakeLists.txt sets the compiler flags of this file.
#if defined(__x86_64__)
#include "layer_loops_body.h"
#include "linear_amx_tiles.h"

namespace mgrpo::cpu {
namespace {

constexpr LayerLoops amx_loops() {
  LayerLoops loops = make_layer_loops(Isa::amx);
  loops.linear_bf16 = linear_tiles;
  return loops;
}

}  // namespace

constinit const LayerLoops kLayerLoopsAmx = amx_loops();

}  // namespace mgrpo::cpu
#endif
