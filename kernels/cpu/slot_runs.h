// Runs: consecutive rows of a call with the same slot.
#pragma once
#include <cstdint>
#include <vector>

namespace mgrpo::cpu {

// Returns the first row of each run, and then the number of rows.
inline std::vector<int64_t> runs_of(const int32_t *slot, int64_t rows) {
  std::vector<int64_t> runs;
  for (int64_t r = 0; r < rows; r++)
    if (r == 0 || slot[r] != slot[r - 1]) runs.push_back(r);
  runs.push_back(rows);
  return runs;
}

}  // namespace mgrpo::cpu
