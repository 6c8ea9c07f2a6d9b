#include "row_ops.h"

#include "nn_ops.h"

namespace mgrpo::cpu {

// One choice for all kernels: what nn_ops() took, row passes take.
const RowOps &row_ops() {
#if defined(__x86_64__)
  if (&nn_ops() == &kNnOpsAvx512) return kRowOpsAvx512;
  if (&nn_ops() == &kNnOpsAvx2) return kRowOpsAvx2;
#endif
  return kRowOpsPortable;
}

}  // namespace mgrpo::cpu
