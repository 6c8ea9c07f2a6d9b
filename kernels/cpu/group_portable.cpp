// Four groups at a time for any CPU.
#include "group_impl.h"

constinit const mgrpo::cpu::GroupOps mgrpo::cpu::kGroupOpsPortable = mgrpo::cpu::make_group_ops();
