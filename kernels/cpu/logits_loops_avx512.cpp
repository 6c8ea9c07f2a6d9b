// The row passes for x86-64 with AVX-512F.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "logits_loops.h"

#pragma GCC target("avx2,fma,avx512f,prefer-vector-width=512")
#include "logits_loops_body.h"

constinit const mgrpo::cpu::LogitsLoops mgrpo::cpu::kLogitsLoopsAvx512 = mgrpo::cpu::make_logits_loops();
#endif
