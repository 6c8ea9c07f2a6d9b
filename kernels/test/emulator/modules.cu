// The kernels of modules (kernels/cuda/module) for the emulated driver, which cannot load their machine code
// (bindings/torch/shim/test/emulated/driver.c). parameters are pointers to the kernel's parameters.
#include "../../cuda/module/group_advantage.cu"
#include "device.h"

namespace {

template <class T>
T parameter(void **parameters, int i) {
  return *static_cast<T *>(parameters[i]);
}

}  // namespace

extern "C" MGRPO_API int32_t emulated_mgrpo_group_advantage(unsigned blocks, unsigned threads, void *stream, void **p) {
  using namespace mgrpo::cuda;
  return launch(mgrpo_group_advantage, {blocks, static_cast<int>(threads)}, stream_of(stream), parameter<const double *>(p, 0),
                parameter<const double *>(p, 1), parameter<const int64_t *>(p, 2), parameter<int64_t>(p, 3), parameter<double *>(p, 4),
                parameter<mgrpo_group_stats *>(p, 5), parameter<int64_t *>(p, 6), parameter<int64_t *>(p, 7), parameter<int32_t>(p, 8),
                parameter<int32_t>(p, 9), parameter<double>(p, 10), parameter<double>(p, 11));
}
