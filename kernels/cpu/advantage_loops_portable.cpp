// Advantages of four groups at a time, for any CPU.
#include "advantage_loops_body.h"

constinit const mgrpo::cpu::AdvantageLoops mgrpo::cpu::kAdvantageLoopsPortable = mgrpo::cpu::make_advantage_loops();
