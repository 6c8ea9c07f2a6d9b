// The layer kernels' inner loops for x86-64 with AMX: those for AVX-512F, but products with bfloat16 in tiles;
// kernels/CMakeLists.txt gives this file the flags.
#if defined(__x86_64__)
#include "layer_loops_body.h"
#include "linear_amx_tiles.h"

namespace mgrpo::cpu {
namespace {

constexpr LayerLoops amx_ops() {
  LayerLoops ops = make_layer_loops("amx");
  ops.linear_bf16 = linear_tiles;
  return ops;
}

}  // namespace

constinit const LayerLoops kLayerLoopsAmx = amx_ops();

}  // namespace mgrpo::cpu
#endif
