// The row passes for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "row_ops.h"

#pragma GCC target("avx2,fma")
#include "row_impl.h"

constinit const mgrpo::cpu::RowOps mgrpo::cpu::kRowOpsAvx2 = mgrpo::cpu::make_row_ops();
#endif
