// Advantages of many small groups, four groups at a time, each in one lane of the vectors. The code is compiled and chosen as layer_loops.h
// describes. There is no version for AVX-512, because it would need eight groups of one size to fill its vectors.
#pragma once
#include <cstdint>

#include "mgrpo/advantage.h"

namespace mgrpo::cpu {

// Ragged groups and the arrays of their results, as in mgrpo/advantage.h.
template <class T>
struct GroupArrays {
  const T *rewards;
  const double *weights;  // null: all 1
  const int64_t *offsets;
  T *advantages;
  mgrpo_group_stats *stats;
};

struct AdvantageLoops {
  // Normalises groups from `begin` on, four at a time. It stops before four groups if one of them has more than kLaneMembers members or may
  // have to be refused, and if fewer than four are left before `end`. Returns the first group that it leaves to the code for single groups.
  // The results have the bits of that code. The advantages of groups between the returned one and `end` may be overwritten. The baseline
  // must not be LEAVE_ONE_OUT_STD.
  int64_t (*f32)(const GroupArrays<float> &groups, const mgrpo_convention &c, int64_t begin, int64_t end);
  int64_t (*f64)(const GroupArrays<double> &groups, const mgrpo_convention &c, int64_t begin, int64_t end);

  int64_t operator()(const GroupArrays<float> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) const {
    return f32(groups, c, begin, end);
  }
  int64_t operator()(const GroupArrays<double> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) const {
    return f64(groups, c, begin, end);
  }
};

// Returns the loops for the instruction set of layer_loops().
const AdvantageLoops &advantage_loops();

extern const AdvantageLoops kAdvantageLoopsPortable;
#if defined(__x86_64__)
extern const AdvantageLoops kAdvantageLoopsAvx2;
#endif

}  // namespace mgrpo::cpu
