// Philox4x32-10, a counter-based generator of random numbers. A block is a pure function of a counter and a key, so a random number does
// not depend on the number of draws before it.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once
#include "mgrpo/status.h"

typedef struct mgrpo_philox_block {
  uint32_t word[4];
} mgrpo_philox_block;

// Returns the four output words for counter (c0, c1, c2, c3) and key (k0, k1).
MGRPO_HOST_DEVICE static inline mgrpo_philox_block mgrpo_philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                                                uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
    const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const mgrpo_philox_block out = {{c0, c1, c2, c3}};
  return out;
}

// Returns a uniform number in [0, 1) with 53 bits, from words 0 (high) and 1 (low) of a block.
MGRPO_HOST_DEVICE static inline double mgrpo_philox_uniform(mgrpo_philox_block b) {
  return (double)((((uint64_t)b.word[0] << 32) | b.word[1]) >> 11) * 0x1p-53;
}
