// A GPU's memory. Everything happens in the order of the stream.
#pragma once
#include "mgrpo/status.h"

// Where kernels get their scratch memory, which they give back within the call. allocate returns null where there is none. Both are called
// on the thread of the kernel's call, throw nothing, and keep to the order of the stream: what is released is in use by the work
// launched before.
typedef struct {
  void *(*allocate)(int64_t bytes, void *stream);
  void (*release)(void *memory, void *stream);
} mgrpo_scratch;

// From now on, in the whole process; null: CUDA's own pool, as in the beginning.
MGRPO_API void mgrpo_set_scratch_cuda(const mgrpo_scratch *scratch_or_null);

// For a caller without a tensor library, from CUDA's own pool. *memory is uninitialised; release frees it, or does nothing for null.
MGRPO_API int32_t mgrpo_allocate_cuda(int64_t bytes, void **memory, void *stream);
MGRPO_API int32_t mgrpo_release_cuda(void *memory, void *stream);

// Host memory may be changed as soon as upload returns; download waits for the stream, and with it for every kernel
// that was launched before.
MGRPO_API int32_t mgrpo_upload_cuda(void *memory, const void *host, int64_t bytes, void *stream);
MGRPO_API int32_t mgrpo_download_cuda(void *host, const void *memory, int64_t bytes, void *stream);
