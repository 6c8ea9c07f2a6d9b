// The row passes for x86-64 with AVX-512F.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "row_ops.h"

#pragma GCC target("avx2,fma,avx512f,prefer-vector-width=512")
#include "row_impl.h"

constinit const mgrpo::cpu::RowOps mgrpo::cpu::kRowOpsAvx512 = mgrpo::cpu::make_row_ops();
#endif
