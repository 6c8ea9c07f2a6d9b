// The reason of an MGRPO_CUDA_ERROR.
#pragma once
#include "mgrpo/status.h"

// Returns the failed CUDA call and the message of the CUDA runtime for the last MGRPO_CUDA_ERROR on the calling thread. Returns "" if no
// such error has occurred. The string is valid until the thread's next call of this library.
MGRPO_API const char *mgrpo_cuda_last_error(void);
