// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 for a warp of fibers. PTX ISA, "Matrix Fragments for mma.m16n8k16 with
// floating point type": with groupID = laneid >> 2 and threadID_in_group = laneid % 4, a lane holds
//   a0..a7  at row groupID where i < 2 or 4 <= i < 6 and groupID + 8 else, column threadID_in_group * 2 + (i & 1), + 8 where i >= 4
//   b0..b3  at row threadID_in_group * 2 + (i & 1), + 8 where i >= 2, column groupID
//   c0..c3  at row groupID where i < 2 and groupID + 8 else, column threadID_in_group * 2 + (i & 1)
// Elements 2 j and 2 j + 1 of a and b are the lower and upper half of register j.
#pragma once
#include "cuda_bf16.h"

namespace emulator {

// Rounds x towards 0 to a float. Tensor cores truncate sums; the number of extra bits that they keep is not documented.
inline float cut_off(double x) {
  const auto f = static_cast<float>(x);
  return std::fabs(static_cast<double>(f)) > std::fabs(x) ? std::nextafterf(f, 0.0f) : f;
}

inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], MGRPO_WHERE) {
  struct A {
    unsigned short at[8];
  };
  struct B {
    unsigned short at[4];
  };
  A from_a[4];  // from the lanes that hold this lane's rows
  const Slot *slots = exchange(0xFFFFFFFF, a, sizeof a, where);
  for (unsigned t = 0; t < 4; t++) from_a[t] = of_lane<A>(slots, lane() / 4 * 4 + t);
  slots = exchange(0xFFFFFFFF, b, sizeof b, where);
  const auto number = [](unsigned short bits) { return static_cast<double>(std::bit_cast<float>(static_cast<unsigned>(bits) << 16)); };
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = lane() / 4 + (i < 2 ? 0 : 8), column = lane() % 4 * 2 + i % 2;
    double sum = c[i];
    for (unsigned k = 0; k < 16; k++) {
      const unsigned t = k % 8 / 2, high = k < 8 ? 0 : 1;
      sum += number(from_a[t].at[k % 2 + (row < 8 ? 0 : 2) + 4 * high]) * number(of_lane<B>(slots, column * 4 + t).at[k % 2 + 2 * high]);
      if (k % 8 == 7) sum = cut_off(sum);  // some tensor cores add eight products at a time
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace emulator
