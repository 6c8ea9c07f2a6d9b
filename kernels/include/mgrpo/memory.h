// A GPU's memory. All operations follow the order of the stream.
#pragma once
#include "mgrpo/status.h"

// The allocator of kernels' scratch memory, which is released within the same call. allocate returns null
// if memory ran out. Both functions are called on the thread of the kernel's call, must not throw, and
// follow the order of the stream. Released memory may still be in use by work that was launched before.
typedef struct {
  void *(*allocate)(int64_t bytes, void *stream);
  void (*release)(void *memory, void *stream);
} mgrpo_scratch;

// Sets the allocator of the whole process. With null the kernels use CUDA's own pool, which is the default.
MGRPO_API void mgrpo_set_scratch_cuda(const mgrpo_scratch *scratch_or_null);

// Allocates from CUDA's own pool, for a caller without a tensor library. *memory is uninitialised. release accepts null.
MGRPO_API int32_t mgrpo_allocate_cuda(int64_t bytes, void **memory, void *stream);
MGRPO_API int32_t mgrpo_release_cuda(void *memory, void *stream);

// Host memory may be changed as soon as upload returns; download waits for the stream, and with it for every kernel
// that was launched before.
MGRPO_API int32_t mgrpo_upload_cuda(void *memory, const void *host, int64_t bytes, void *stream);
MGRPO_API int32_t mgrpo_download_cuda(void *host, const void *memory, int64_t bytes, void *stream);
