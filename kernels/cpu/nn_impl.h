// All inner loops of the nn kernels for the instruction set of the including file; see simd.h.
#pragma once
#include "nn_attention.h"
#include "nn_dot.h"
#include "nn_layers.h"
#include "nn_lora.h"
#include "nn_ops.h"
#include "nn_quant.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr NnOps make_nn_ops(const char *name) {
  return {name, linear<float>, linear<uint16_t>, lora_expand, dequantise, linear_quant, linear_quant_bwd, rms_norm, rms_norm_dx, rms_norm_dw,
          glu<Silu>, glu_bwd<Silu>, glu<GeluTanh>, glu_bwd<GeluTanh>, glu<Clamped>, glu_bwd<Clamped>, rope, moe_combine, moe_weigh, attend, attend_bwd};
}

}  // namespace
}  // namespace mgrpo::cpu
