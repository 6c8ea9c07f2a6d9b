// Status codes shared by every kernel of the C ABI.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
#define MGRPO_EXTERN extern "C"
#else
#define MGRPO_EXTERN extern
#endif
// Marks a function of a header that CUDA kernels use, too.
#ifdef __CUDACC__
#define MGRPO_HOST_DEVICE __host__ __device__
#else
#define MGRPO_HOST_DEVICE
#endif
#define MGRPO_API MGRPO_EXTERN __attribute__((visibility("default")))

enum mgrpo_status {
  MGRPO_OK = 0,
  MGRPO_INVALID_ARGUMENT = 1,  // a size, stride, mode or pointer that the kernel's contract excludes
  MGRPO_NON_FINITE = 2,        // NaN or Inf where the contract requires finite numbers; the function states what it wrote
  MGRPO_OUT_OF_MEMORY = 3,     // scratch could not be allocated
  MGRPO_CUDA_ERROR = 4,        // a CUDA runtime call failed: see mgrpo_cuda_last_error
  MGRPO_UNSUPPORTED = 5,       // valid, but not built for this backend
  MGRPO_REFUSED = 6,           // the data was refused; the call's error struct has the reason and the place
};

// Returns a fixed English text for a code, never null.
MGRPO_API const char *mgrpo_status_string(int32_t status);
