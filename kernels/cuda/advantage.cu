// One block a group. Sums run over the threads' strided shares and then a fixed tree, so they may differ from the
// CPU's in the last bits; a group's result depends on that group alone.
#include "mgrpo/advantage.h"

#include "block.cuh"
#include "device.h"
#include "group_advantage.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;

// The results of a group's first pass. A refusal's key is member * 4 + code, so that the least is the first member's.
struct GroupPass {
  double weight = 0, least = HUGE_VAL, most = -HUGE_VAL;
  CompensatedSum sum;
  int64_t refusal = INT64_MAX;

  __device__ void merge(const GroupPass &o) {
    weight += o.weight;
    least = o.least < least ? o.least : least;
    most = o.most > most ? o.most : most;
    sum.merge(o.sum);
    refusal = o.refusal < refusal ? o.refusal : refusal;
  }
};

template <class T>
struct Groups {
  const T *rewards;
  const double *weights;  // null: all 1
  const int64_t *offsets;
  int64_t groups;
  T *advantages;
  mgrpo_group_stats *stats;
  int64_t *refusals;  // [groups]: key as above, member -1 as code alone; -1 = none
};

template <class T>
__device__ GroupPass first_pass(const mgrpo_convention &c, const T *rewards, const double *weights, int64_t n) {
  const bool unit_only = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD;
  GroupPass p;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const double r = rewards[i], w = weights ? weights[i] : 1;
    if (!isfinite(r)) {
      p.refusal = min(p.refusal, i * 4 + MGRPO_ADVANTAGE_NON_FINITE_REWARD);
    } else if (!(w >= 0) || !isfinite(w) || (unit_only && w != 0 && w != 1)) {
      p.refusal = min(p.refusal, i * 4 + MGRPO_ADVANTAGE_BAD_WEIGHT);
    } else if (w > 0) {
      p.weight += w;
      p.sum.add(w * r);
      p.least = min(p.least, r);
      p.most = max(p.most, r);
    }
  }
  return p;
}

template <class T>
__global__ __launch_bounds__(kThreads) void group_kernel(mgrpo_convention c, Groups<T> in) {
  __shared__ Storage<GroupPass, kThreads> shared;
  __shared__ double shared_sum[kThreads];
  __shared__ int shared_flag[kThreads];
  for (int64_t g = blockIdx.x; g < in.groups; g += gridDim.x) {
    const int64_t at = in.offsets[g], n = in.offsets[g + 1] - at;
    const T *rewards = in.rewards + at;
    const double *weights = in.weights ? in.weights + at : nullptr;
    const GroupPass p = block_reduce<kThreads>(first_pass(c, rewards, weights, n), shared.get(),
                                               [](GroupPass &a, const GroupPass &b) { a.merge(b); });
    if (p.refusal != INT64_MAX) {
      if (threadIdx.x == 0) in.refusals[g] = p.refusal;
      continue;
    }
    GroupMoments m{p.weight, 0, 0, !(p.least < p.most)};
    if (p.weight > 0) m.mean = m.identical ? p.least : p.sum.value() / p.weight;
    double squares = 0;
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const double w = weights ? weights[i] : 1, centred = rewards[i] - m.mean;
      if (w > 0) squares += w * centred * centred;
    }
    m.squares = block_sum<kThreads>(squares, shared_sum);

    const mgrpo_group_stats stats = group_stats(c, m);
    const double scale = advantage_scale(c, m);
    int finite = isfinite(m.mean) && isfinite(m.squares) && isfinite(m.weight_sum);
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const double w = weights ? weights[i] : 1;
      double a = 0;
      if (!stats.degenerate && !stats.empty && w > 0)
        a = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD ? advantage_among_others(c, rewards, weights, n, i)
                                                           : (rewards[i] - m.mean) * scale;
      const T out = static_cast<T>(a);
      in.advantages[at + i] = out;
      finite = finite && isfinite(out);
    }
    finite = block_reduce<kThreads>(finite, shared_flag, [](int &a, const int &b) { a = a && b; });
    if (threadIdx.x == 0) {
      in.stats[g] = stats;
      in.refusals[g] = finite ? -1 : MGRPO_ADVANTAGE_NON_FINITE_VALUE;
    }
  }
}

template <class T>
int32_t group_advantage(const T *rewards, const double *weights, const int64_t *offsets, int64_t groups,
                        const mgrpo_convention *convention, T *advantages, mgrpo_group_stats *stats,
                        mgrpo_advantage_error *error, cudaStream_t stream) {
  if (!error || !convention || !valid(*convention) || groups < 0 || !offsets) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_ADVANTAGE_OK, -1, -1};
  if (groups == 0) return MGRPO_OK;
  if (!stats) return MGRPO_INVALID_ARGUMENT;
  Scratch<int64_t> refusals(stream);
  MGRPO_TRY(refusals.allocate(groups));
  MGRPO_TRY(launch(group_kernel<T>, {block_count(groups), kThreads}, stream, *convention,
                   Groups<T>{rewards, weights, offsets, groups, advantages, stats, refusals.get()}));
  std::vector<int64_t> found(static_cast<size_t>(groups));
  MGRPO_TRY(refusals.download(found.data(), groups));
  for (int64_t g = 0; g < groups; g++) {
    if (found[g] < 0) continue;
    const int32_t code = static_cast<int32_t>(found[g] % 4);
    *error = {code, g, code == MGRPO_ADVANTAGE_NON_FINITE_VALUE ? -1 : found[g] / 4};
    return MGRPO_REFUSED;
  }
  return MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_group_advantage_cuda(const double *rewards, const double *weights_or_null, const int64_t *offsets,
                                   int64_t groups, const mgrpo_convention *convention, double *advantages,
                                   mgrpo_group_stats *stats, mgrpo_advantage_error *error, void *stream) {
  using namespace mgrpo::cuda;
  return guarded([&] {
    return group_advantage(rewards, weights_or_null, offsets, groups, convention, advantages, stats, error,
                           stream_of(stream));
  });
}

int32_t mgrpo_group_advantage_f32_cuda(const float *rewards, const double *weights_or_null, const int64_t *offsets,
                                       int64_t groups, const mgrpo_convention *convention, float *advantages,
                                       mgrpo_group_stats *stats, mgrpo_advantage_error *error, void *stream) {
  using namespace mgrpo::cuda;
  return guarded([&] {
    return group_advantage(rewards, weights_or_null, offsets, groups, convention, advantages, stats, error,
                           stream_of(stream));
  });
}
