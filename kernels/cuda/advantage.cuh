// Advantages of groups. Most groups are small, so eight lanes of a warp compute a small group, and a whole warp computes a group of more
// than kMaxSmallGroup members. A sum runs over each lane's members and then over the lanes in a fixed tree, so it can differ from the CPU's
// sum in the last bits. The result of a group depends only on that group. Only files with kernels include this file.
#pragma once
#include "block.cuh"
#include "group_advantage.h"
#include "mgrpo/advantage.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSmallGroupLanes = 8;      // lanes that share a small group
constexpr int64_t kMaxSmallGroup = 256;  // members of a small group

// The results of the first pass over a group. The key of a refusal is member * 4 + code, so the smallest key belongs to the first member
// that is refused.
struct GroupPass {
  double weight = 0, min_reward = HUGE_VAL, max_reward = -HUGE_VAL;
  CompensatedSum sum;
  int64_t refusal = INT64_MAX;

  // Merges the results of kLanes neighbouring lanes, and returns the merged result to each of them.
  template <int kLanes>
  __device__ GroupPass of_lanes() const {
    GroupPass p = *this;
    p.weight = lanes_sum<kLanes>(weight);
    for (int by = kLanes / 2; by > 0; by /= 2) {
      p.min_reward = fmin(p.min_reward, __shfl_xor_sync(kAllLanes, p.min_reward, by));
      p.max_reward = fmax(p.max_reward, __shfl_xor_sync(kAllLanes, p.max_reward, by));
      p.refusal = min(p.refusal, __shfl_xor_sync(kAllLanes, p.refusal, by));
      CompensatedSum o;
      o.sum = __shfl_xor_sync(kAllLanes, p.sum.sum, by);
      o.dropped = __shfl_xor_sync(kAllLanes, p.sum.dropped, by);
      p.sum.merge(o);
    }
    // Each lane added the dropped parts in a different order, so all lanes use the sum of the first lane.
    p.sum.sum = __shfl_sync(kAllLanes, p.sum.sum, lane() / kLanes * kLanes);
    p.sum.dropped = __shfl_sync(kAllLanes, p.sum.dropped, lane() / kLanes * kLanes);
    return p;
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
  // [groups]: the key of the refusal, or only its code if no single member is the cause; set for refused groups only.
  int64_t *refusals;
  int64_t *first;  // the first refused group, or -1
};

template <int kLanes, class T>
__device__ GroupPass first_pass(const mgrpo_convention &c, const T *rewards, const double *weights, int64_t n) {
  const bool unit_only = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD;
  GroupPass p;
  for (int64_t i = lane() % kLanes; i < n; i += kLanes) {
    const double r = rewards[i], w = weights ? weights[i] : 1;
    if (!isfinite(r)) {
      p.refusal = min(p.refusal, i * 4 + MGRPO_ADVANTAGE_NON_FINITE_REWARD);
    } else if (!(w >= 0) || !isfinite(w) || (unit_only && w != 0 && w != 1)) {
      p.refusal = min(p.refusal, i * 4 + MGRPO_ADVANTAGE_BAD_WEIGHT);
    } else if (w > 0) {
      p.weight += w;
      p.sum.add(w * r);
      p.min_reward = min(p.min_reward, r);
      p.max_reward = max(p.max_reward, r);
    }
  }
  return p.of_lanes<kLanes>();
}

// Normalises group g with kLanes lanes. All lanes of a warp call it. Lanes with `taken` false have no group and only take part in the
// exchanges.
template <int kLanes, class T>
__device__ void normalise(const mgrpo_convention &c, const Groups<T> &in, int64_t g, bool taken) {
  const int64_t at = taken ? in.offsets[g] : 0, size = taken ? in.offsets[g + 1] - at : 0;
  const int64_t begin = lane() % kLanes;
  const T *rewards = in.rewards + at;
  const double *weights = in.weights ? in.weights + at : nullptr;
  const GroupPass p = first_pass<kLanes>(c, rewards, weights, size);
  const int64_t n = p.refusal == INT64_MAX ? size : 0;

  GroupMoments m{p.weight, 0, 0, equal_rewards<T>(p.min_reward, p.max_reward)};
  if (p.weight > 0) m.mean = m.equal ? p.min_reward : p.sum.value() / p.weight;
  double squares = 0;
  for (int64_t i = begin; i < n; i += kLanes) {
    const double w = weights ? weights[i] : 1, centred = rewards[i] - m.mean;
    if (w > 0) squares += w * centred * centred;
  }
  m.squares = lanes_sum<kLanes>(squares);

  const mgrpo_group_stats stats = group_stats(c, m);
  const double scale = advantage_scale(c, m);
  int overflows = !(isfinite(m.mean) && isfinite(m.squares) && isfinite(m.weight_sum));
  for (int64_t i = begin; i < n; i += kLanes) {
    const double w = weights ? weights[i] : 1;
    double a = 0;
    if (!stats.degenerate && !stats.empty && w > 0)
      a = c.baseline == MGRPO_BASELINE_LEAVE_ONE_OUT_STD ? advantage_among_others(c, rewards, weights, n, i)
                                                         : (rewards[i] - m.mean) * scale;
    const T out = static_cast<T>(a);
    in.advantages[at + i] = out;
    overflows |= !isfinite(out);
  }
  overflows = lanes_sum<kLanes>(overflows);
  if (!taken || begin != 0) return;
  if (p.refusal == INT64_MAX) in.stats[g] = stats;
  if (p.refusal == INT64_MAX && !overflows) return;
  in.refusals[g] = p.refusal == INT64_MAX ? int64_t{MGRPO_ADVANTAGE_NON_FINITE_VALUE} : p.refusal;
  report_min(in.first, g);
}

// Normalises all groups. It is the whole body of a kernel with kThreads threads per block.
template <class T>
__device__ void normalise_all(const mgrpo_convention &c, const Groups<T> &in) {
  constexpr int64_t kGroups = kWarp / kSmallGroupLanes;  // small groups that a warp computes at a time
  const int64_t number = blockIdx.x * int64_t{kThreads / kWarp} + warp(), warps = gridDim.x * int64_t{kThreads / kWarp};
  for (int64_t from = number * kGroups; from < in.groups; from += warps * kGroups) {
    const int64_t g = from + lane() / kSmallGroupLanes;
    const bool exists = g < in.groups, large = exists && in.offsets[g + 1] - in.offsets[g] > kMaxSmallGroup;
    normalise<kSmallGroupLanes>(c, in, g, exists && !large);
    unsigned left = __ballot_sync(kAllLanes, large && lane() % kSmallGroupLanes == 0);
    for (; left != 0; left &= left - 1) normalise<kWarp>(c, in, from + (__ffs(left) - 1) / kSmallGroupLanes, true);
  }
}

}  // namespace
}  // namespace mgrpo::cuda
