// Where the first NaN or Inf of a buffer is: tells which input of a refused head was to blame (spec section 7, rule 8).
#pragma once
#include "mgrpo/dtype.h"
#include "mgrpo/status.h"

// *index = the smallest i with data[i] NaN or Inf, else -1; *count = how many there are. data [n], any dtype of
// dtype.h. Returns MGRPO_OK either way. Reads each element once.
MGRPO_API int32_t mgrpo_first_non_finite_cpu(const void *data, int32_t dtype, int64_t n, int64_t *index, int64_t *count);

// The same on a GPU: data in device memory, index and count in host memory. Waits for the stream.
MGRPO_API int32_t mgrpo_first_non_finite_cuda(const void *data, int32_t dtype, int64_t n, int64_t *index, int64_t *count,
                                              void *stream);
