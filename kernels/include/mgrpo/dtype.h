// Element types of buffers that cross the C ABI. The numbers are c10::ScalarType's.
#pragma once

// The smallest temperature that divides logits: its inverse, and a gradient times the inverse, are finite in float32.
#define MGRPO_LEAST_TEMPERATURE 1e-6

enum mgrpo_dtype {
  MGRPO_FLOAT32 = 6,
  MGRPO_FLOAT64 = 7,
  MGRPO_BFLOAT16 = 15,  // uint16_t: the high half of a float32
};
