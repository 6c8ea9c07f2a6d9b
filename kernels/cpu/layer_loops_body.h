// All inner loops of the layer kernels, compiled for the instruction set of the file that includes this one (simd.h).
#pragma once
#include "attention_loops.h"
#include "delta_loops.h"
#include "layer_loops.h"
#include "linear_dot.h"
#include "linear_quant.h"
#include "lora_loops.h"
#include "rowwise_layers.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr LayerLoops make_layer_loops(Isa isa) {
  return {isa,
          linear<float>,
          linear<uint16_t>,
          lora_expand,
          dequantise,
          linear_quant,
          linear_quant_bwd,
          rms_norm,
          rms_norm_dx,
          rms_norm_dw,
          {glu<Silu>, glu<GeluTanh>, glu<Clamped>, glu<Sigmoid>},
          {glu_bwd<Silu>, glu_bwd<GeluTanh>, glu_bwd<Clamped>, glu_bwd<Sigmoid>},
          silu,
          silu_bwd,
          rope,
          moe_combine,
          moe_weigh,
          attend<float>,
          attend<uint16_t>,
          attend_bwd,
          delta_rows,
          delta_product,
          delta_normalise,
          delta_normalise_bwd};
}

}  // namespace
}  // namespace mgrpo::cpu
