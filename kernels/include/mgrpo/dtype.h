// Element types of buffers that cross the C ABI. The numbers are c10::ScalarType's.
#pragma once

enum mgrpo_dtype {
  MGRPO_FLOAT32 = 6,
  MGRPO_FLOAT64 = 7,
  MGRPO_BFLOAT16 = 15,  // uint16_t: the high half of a float32
};
