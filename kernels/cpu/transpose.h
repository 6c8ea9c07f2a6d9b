// The transpose of 16 vectors of 16 numbers of 32 bits, only for files that are compiled for AVX-512.
#pragma once
#include "simd.h"

namespace mgrpo::cpu {
namespace {

MGRPO_INLINE void transpose(__m512i r[16]) {
  __m512i t[16];
  MGRPO_UNROLL for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  MGRPO_UNROLL for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  MGRPO_UNROLL for (int i = 0; i < 16; i += 8) MGRPO_UNROLL for (int j = 0; j < 4; j++) {
    t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
    t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
  }
  MGRPO_UNROLL for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

}  // namespace
}  // namespace mgrpo::cpu
