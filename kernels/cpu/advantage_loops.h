// Advantages of many small groups: four groups at a time, each in a lane of vectors. Compiled and chosen as layer_loops.h
// describes. AVX-512 would not help, because eight groups of one size would be needed to fill its vectors.
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
  // Normalises groups from `begin` on, four at a time, and returns the first that it leaves to the code
  // for one group. That is one of four with more than kLaneMembers members or with a possible refusal,
  // or one of the last before `end`. Results have the bits of the code for one group. Advantages of
  // groups between the returned one and `end` may be overwritten. The baseline is not LEAVE_ONE_OUT_STD.
  int64_t (*f32)(const GroupArrays<float> &groups, const mgrpo_convention &c, int64_t begin, int64_t end);
  int64_t (*f64)(const GroupArrays<double> &groups, const mgrpo_convention &c, int64_t begin, int64_t end);

  int64_t operator()(const GroupArrays<float> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) const {
    return f32(groups, c, begin, end);
  }
  int64_t operator()(const GroupArrays<double> &groups, const mgrpo_convention &c, int64_t begin, int64_t end) const {
    return f64(groups, c, begin, end);
  }
};

const AdvantageLoops &advantage_loops();

extern const AdvantageLoops kAdvantageLoopsPortable;
#if defined(__x86_64__)
extern const AdvantageLoops kAdvantageLoopsAvx2;
#endif

}  // namespace mgrpo::cpu
