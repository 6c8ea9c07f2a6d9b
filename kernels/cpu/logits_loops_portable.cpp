// The passes over a row of logits for any CPU.
#include "logits_loops_body.h"

constinit const mgrpo::cpu::LogitsLoops mgrpo::cpu::kLogitsLoopsPortable = mgrpo::cpu::make_logits_loops();
