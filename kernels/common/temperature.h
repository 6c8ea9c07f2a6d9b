// The check of temperatures that divide logits.
#pragma once
#include <math.h>

#include "mgrpo/dtype.h"

namespace mgrpo {

inline bool valid_temperature(double tau) { return tau >= MGRPO_LEAST_TEMPERATURE && isfinite(tau); }

}  // namespace mgrpo
