// The nn kernels' inner loops for x86-64 with AMX: those for AVX-512F, but products with bfloat16 in tiles;
// kernels/CMakeLists.txt gives this file the flags.
#if defined(__x86_64__)
#include "nn_impl.h"
#include "nn_tiles.h"

namespace mgrpo::cpu {
namespace {

constexpr NnOps amx_ops() {
  NnOps ops = make_nn_ops("amx");
  ops.linear_bf16 = linear_tiles;
  return ops;
}

}  // namespace

constinit const NnOps kNnOpsAmx = amx_ops();

}  // namespace mgrpo::cpu
#endif
