#include "advantage.cuh"
#include "device.h"

namespace mgrpo::cuda {
namespace {

template <class T>
__global__ __launch_bounds__(kThreads) void group_advantage_kernel(mgrpo_convention c, Groups<T> in) {
  normalise_all(c, in);
}

template <class T>
int32_t group_advantage(const T *rewards, const double *weights, const int64_t *offsets, int64_t groups, const mgrpo_convention *convention,
                        T *advantages, mgrpo_group_stats *stats, mgrpo_advantage_error *error, cudaStream_t stream) {
  if (!error || !convention || !valid(*convention) || groups < 0 || !offsets) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_ADVANTAGE_OK, -1, -1};
  if (groups == 0) return MGRPO_OK;
  if (!stats) return MGRPO_INVALID_ARGUMENT;
  Scratch<int64_t> refusals(stream), first(stream);
  MGRPO_TRY(refusals.allocate(groups));
  MGRPO_TRY(first.allocate_ones(1));
  constexpr int64_t kGroups = kThreads / kSmallGroupLanes;  // of a block
  MGRPO_TRY(launch(group_advantage_kernel<T>, {block_count((groups + kGroups - 1) / kGroups), kThreads}, stream, *convention,
                   Groups<T>{rewards, weights, offsets, groups, advantages, stats, refusals.get(), first.get()}));
  int64_t group = -1, key = 0;
  MGRPO_TRY(first.download(&group, 1));
  if (group < 0) return MGRPO_OK;
  MGRPO_TRY(refusals.download(&key, 1, group));
  const int32_t code = static_cast<int32_t>(key % 4);
  *error = {code, group, code == MGRPO_ADVANTAGE_NON_FINITE_VALUE ? -1 : key / 4};
  return MGRPO_REFUSED;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_group_advantage_cuda(const void *rewards, int32_t dtype, const double *weights_or_null, const int64_t *offsets,
                                   int64_t groups, const mgrpo_convention *convention, void *advantages, mgrpo_group_stats *stats,
                                   mgrpo_advantage_error *error, void *stream) {
  using namespace mgrpo::cuda;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    return group_advantage(static_cast<const T *>(rewards), weights_or_null, offsets, groups, convention, static_cast<T *>(advantages),
                           stats, error, stream_of(stream));
  };
  return guarded([&] { return dtype == MGRPO_FLOAT64 ? run(double{}) : dtype == MGRPO_FLOAT32 ? run(float{}) : MGRPO_INVALID_ARGUMENT; });
}
