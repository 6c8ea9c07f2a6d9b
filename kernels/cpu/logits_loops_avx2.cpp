// The passes over a row of logits for x86-64 with AVX2 and FMA. kernels/CMakeLists.txt sets the compiler flags of this file.
#if defined(__x86_64__)
#include "logits_loops_body.h"

constinit const mgrpo::cpu::LogitsLoops mgrpo::cpu::kLogitsLoopsAvx2 = mgrpo::cpu::make_logits_loops();
#endif
