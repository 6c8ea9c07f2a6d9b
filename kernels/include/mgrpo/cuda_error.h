// Why a call returned MGRPO_CUDA_ERROR.
#pragma once
#include "mgrpo/status.h"

// The failed CUDA call and the runtime's message, of the last MGRPO_CUDA_ERROR on the calling thread; "" if none.
// Valid until the thread's next call into this library.
MGRPO_API const char *mgrpo_cuda_last_error(void);
