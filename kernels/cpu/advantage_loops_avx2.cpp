// Advantages of four groups at a time, for x86-64 with AVX2. kernels/CMakeLists.txt sets the compiler flags of this file.
#if defined(__x86_64__)
#include "advantage_loops_body.h"

constinit const mgrpo::cpu::AdvantageLoops mgrpo::cpu::kAdvantageLoopsAvx2 = mgrpo::cpu::make_advantage_loops();
#endif
