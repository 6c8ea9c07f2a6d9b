// The nn kernels' inner loops for any CPU.
#include "nn_impl.h"

constinit const mgrpo::cpu::NnOps mgrpo::cpu::kNnOpsPortable = mgrpo::cpu::make_nn_ops("portable");
