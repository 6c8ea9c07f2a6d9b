// Shared by the tests of the policy loss.
#pragma once
#include "mgrpo/policy_loss.h"

namespace conformance {

inline mgrpo_loss_config loss_defaults() {
  mgrpo_loss_config c{};
  c.eps_low = 0.2;
  c.eps_high = 0.28;
  c.cispo_low = 1;
  c.cispo_high = 4;
  c.log_ratio_clamp = 20;
  return c;
}

}  // namespace conformance
