// The blocks of GGUF's quantised types: their sizes, and their weights one by one. The scale d and the minimum m of a block are binary16.
//
// The product of a scale and a quantised weight is exact in float32, because the weight has few bits. Only the addition of a minimum
// rounds. The functions are static, because files for different instruction sets include them. Otherwise the linker would keep only one of
// the compiled versions.
#pragma once
#include <math.h>

#include <cstdint>
#include <cstring>

#include "mgrpo/quant.h"

namespace mgrpo {

struct QuantSize {
  int64_t length, bytes;  // the weights and bytes of a block; 0 if the type is unknown
};

MGRPO_HOST_DEVICE static constexpr QuantSize quant_size(int32_t type) {
  switch (type) {
    case MGRPO_Q4_0:
      return {32, 18};
    case MGRPO_Q4_1:
      return {32, 20};
    case MGRPO_Q5_0:
      return {32, 22};
    case MGRPO_Q5_1:
      return {32, 24};
    case MGRPO_Q8_0:
      return {32, 34};
    case MGRPO_Q4_K:
      return {256, 144};
    case MGRPO_Q5_K:
      return {256, 176};
    case MGRPO_Q6_K:
      return {256, 210};
  }
  return {0, 0};
}

// Returns the bytes of a row of k weights, or -1 if the type is unknown or k is not a multiple of its block.
MGRPO_HOST_DEVICE static inline int64_t quant_row_bytes(int32_t type, int64_t k) {
  const QuantSize size = quant_size(type);
  return size.length == 0 || k < 0 || k % size.length != 0 ? -1 : k / size.length * size.bytes;
}

MGRPO_HOST_DEVICE static inline float half_to_float(uint16_t h) {
  // A float with the same exponent and mantissa bits is smaller by a factor of 2^112. That is true of subnormal numbers, too.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7FFF) << 13, sign = static_cast<uint32_t>(h & 0x8000) << 16;
  float value;
  memcpy(&value, &magnitude, sizeof value);
  value *= 0x1p112f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits |= sign | (magnitude >= 0x0F800000 ? 0x7F800000 : 0);  // sets the exponent of infinity and NaN
  memcpy(&value, &bits, sizeof value);
  return value;
}

MGRPO_HOST_DEVICE static inline float half_at(const uint8_t *p) { return half_to_float(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Returns bit i of the 4 bytes at p.
MGRPO_HOST_DEVICE static inline int bit_at(const uint8_t *p, int i) { return p[i / 8] >> (i % 8) & 1; }

// Returns number i of the 32 numbers of 4 bits in the 16 bytes at p. The low halves of the bytes are the first 16 numbers.
MGRPO_HOST_DEVICE static inline int nibble_at(const uint8_t *p, int i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

// Returns d * scale * q - dmin * minimum for a weight q in group g of a Q4_K or Q5_K block b. 12 bytes of the block contain 6 bits of each
// scale and each minimum. For groups 0 to 3 these are the low 6 bits of bytes g and g + 4. For groups 4 to 7 the low 4 bits are in byte g +
// 4, and the upper 2 bits are the high bits of the bytes of group g - 4.
MGRPO_HOST_DEVICE static inline float scaled(const uint8_t *b, int g, int q) {
  const uint8_t *p = b + 4;
  const int scale = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | p[g - 4] >> 6 << 4;
  const int minimum = g < 4 ? p[g + 4] & 63 : p[g + 4] >> 4 | p[g] >> 6 << 4;
  return half_at(b) * static_cast<float>(scale) * static_cast<float>(q) - half_at(b + 2) * static_cast<float>(minimum);
}

// Returns weight i of the block b.
MGRPO_HOST_DEVICE static inline float quant_weight(int32_t type, const uint8_t *b, int i) {
  const int g = i / 32, j = i % 32;
  switch (type) {
    case MGRPO_Q4_0:
      return half_at(b) * static_cast<float>(nibble_at(b + 2, i) - 8);
    case MGRPO_Q4_1:
      return half_at(b) * static_cast<float>(nibble_at(b + 4, i)) + half_at(b + 2);
    case MGRPO_Q5_0:
      return half_at(b) * static_cast<float>(nibble_at(b + 6, i) + 16 * bit_at(b + 2, i) - 16);
    case MGRPO_Q5_1:
      return half_at(b) * static_cast<float>(nibble_at(b + 8, i) + 16 * bit_at(b + 4, i)) + half_at(b + 2);
    case MGRPO_Q8_0:
      return half_at(b) * static_cast<float>(static_cast<int8_t>(b[2 + i]));
    // Group g is in the 32 bytes from 32 (g / 2) on: in their low halves if g is even, else in their high halves.
    case MGRPO_Q4_K:
      return scaled(b, g, b[16 + g / 2 * 32 + j] >> (g % 2 * 4) & 15);
    case MGRPO_Q5_K:
      return scaled(b, g, (b[48 + g / 2 * 32 + j] >> (g % 2 * 4) & 15) + 16 * (b[16 + j] >> g & 1));
    case MGRPO_Q6_K: {
      // A block has two halves of 128 weights, and each half has four runs of 32. Every 16 weights have a scale.
      const int half = i / 128, run = g % 4;
      const int low = b[64 * half + j + run % 2 * 32] >> (run / 2 * 4) & 15, high = b[128 + 32 * half + j] >> (2 * run) & 3;
      return half_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16])) * static_cast<float>(low + 16 * high - 32);
    }
  }
  return NAN;
}

}  // namespace mgrpo
