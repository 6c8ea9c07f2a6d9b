// The instruction set of the CPU kernels.
#pragma once
#include "mgrpo/status.h"

// Returns the instruction set in use: "amx" (avx512, and products with bfloat16 in tiles), "avx512", "avx2" or
// "portable". It is the best one of the CPU unless the environment variable MGRPO_CPU_ISA names a lower one before the
// first call.
MGRPO_API const char *mgrpo_cpu_isa(void);

// Changes the instruction set of all calls that begin afterwards. Returns MGRPO_UNSUPPORTED if the CPU lacks it,
// MGRPO_INVALID_ARGUMENT if the name is unknown.
MGRPO_API int32_t mgrpo_cpu_use(const char *isa);

// Returns 1 if this CPU multiplies bfloat16 faster than float32, else 0. Both AMX and the avx512_bf16 of AMD and of Intel's Cooper Lake do.
// Later CPUs of Intel have avx512_bf16 too, but each of its instructions takes as long as four of float32, for twice the products.
MGRPO_API int32_t mgrpo_cpu_bf16_is_faster(void);
