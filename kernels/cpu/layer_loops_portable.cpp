// The inner loops of the layer kernels for any CPU.
#include "layer_loops_body.h"

constinit const mgrpo::cpu::LayerLoops mgrpo::cpu::kLayerLoopsPortable = mgrpo::cpu::make_layer_loops(mgrpo::cpu::Isa::portable);
