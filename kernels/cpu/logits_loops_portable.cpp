// The row passes for any CPU.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "logits_loops.h"
#include "logits_loops_body.h"

constinit const mgrpo::cpu::LogitsLoops mgrpo::cpu::kLogitsLoopsPortable = mgrpo::cpu::make_logits_loops();
