// A GPU's memory, for a caller without a tensor library. Everything happens in the order of the stream.
#pragma once
#include "mgrpo/status.h"

// *memory is uninitialised; release frees it, or does nothing for null.
MGRPO_API int32_t mgrpo_allocate_cuda(int64_t bytes, void **memory, void *stream);
MGRPO_API int32_t mgrpo_release_cuda(void *memory, void *stream);

// Host memory may be changed as soon as upload returns; download waits for the stream, and with it for every kernel
// that was launched before.
MGRPO_API int32_t mgrpo_upload_cuda(void *memory, const void *host, int64_t bytes, void *stream);
MGRPO_API int32_t mgrpo_download_cuda(void *host, const void *memory, int64_t bytes, void *stream);
