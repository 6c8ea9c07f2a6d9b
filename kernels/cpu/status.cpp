#include "mgrpo/status.h"

const char *mgrpo_status_string(int32_t status) {
  switch (status) {
    case MGRPO_OK:
      return "ok";
    case MGRPO_INVALID_ARGUMENT:
      return "invalid argument";
    case MGRPO_NON_FINITE:
      return "non-finite number in the input";
    case MGRPO_OUT_OF_MEMORY:
      return "out of memory";
    case MGRPO_CUDA_ERROR:
      return "CUDA error";
    case MGRPO_UNSUPPORTED:
      return "not supported by this backend";
    case MGRPO_REFUSED:
      return "the data was refused";
  }
  return "unknown status";
}
