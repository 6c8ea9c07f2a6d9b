// The row passes for x86-64 with AVX2 and FMA.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "logits_loops.h"

#pragma GCC target("avx2,fma")
#include "logits_loops_body.h"

constinit const mgrpo::cpu::LogitsLoops mgrpo::cpu::kLogitsLoopsAvx2 = mgrpo::cpu::make_logits_loops();
#endif
