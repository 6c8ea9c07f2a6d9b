// The row passes for any CPU.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "row_ops.h"

#include "row_impl.h"

constinit const mgrpo::cpu::RowOps mgrpo::cpu::kRowOpsPortable = mgrpo::cpu::make_row_ops();
