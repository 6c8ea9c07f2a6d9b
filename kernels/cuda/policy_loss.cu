// The policy loss. One block computes a trajectory, in two passes over its tokens. The host checks the results of the first pass for
// refusals and merges the trajectories in their order. All formulas are in policy_term.h, which the CPU uses, too.
#include "block.cuh"
#include "device.h"
#include "mgrpo/policy_loss.h"
#include "policy_rules.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;

struct Trajectory {
  int64_t begin, end;
  double weight, advantage, coefficient;
};

struct TrajectoryResult {
  mgrpo_loss_sums sums;
  int32_t finite;
};

template <class T>
__global__ __launch_bounds__(kThreads) void policy_loss_scan_kernel(mgrpo_loss_config c, TokenArrays<T> in, const Trajectory *trajectory,
                                                                    int64_t trajectories, TrajectoryScan *out) {
  __shared__ Storage<TrajectoryScan, kThreads> shared;
  for (int64_t j = blockIdx.x; j < trajectories; j += gridDim.x) {
    const Trajectory tr = trajectory[j];
    TrajectoryScan scan;
    if (tr.weight > 0)
      for (int64_t t = tr.begin + threadIdx.x; t < tr.end; t += kThreads) scan.add(c, in, t);
    scan = block_reduce<kThreads>(scan, shared.get(), [](TrajectoryScan &a, const TrajectoryScan &b) { a.merge(b); });
    scan.finish(c);
    if (threadIdx.x == 0) out[j] = scan;
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void policy_loss_kernel(mgrpo_loss_config c, TokenArrays<T> in, const Trajectory *trajectory,
                                                               int64_t trajectories, const TrajectoryScan *scans, T *dlogp_new, T *dentropy,
                                                               TrajectoryResult *out) {
  __shared__ TrajectoryResult shared[kThreads];
  for (int64_t j = blockIdx.x; j < trajectories; j += gridDim.x) {
    const Trajectory tr = trajectory[j];
    const TrajectoryLoss<T> loss{c, in, tr.weight, tr.advantage, tr.coefficient, scans[j]};
    TrajectoryResult mine;
    init_sums(mine.sums);
    mine.finite = 1;
    for (int64_t t = tr.begin + threadIdx.x; t < tr.end; t += kThreads) {
      if (loss.scan.tokens == 0) {  // the trajectory is not trained, so its tokens are not read
        if (dlogp_new) dlogp_new[t] = 0;
        if (dentropy) dentropy[t] = 0;
      } else if (!loss.apply(t, mine.sums, dlogp_new, dentropy)) {
        mine.finite = 0;
      }
    }
    mine = block_reduce<kThreads>(mine, shared, [](TrajectoryResult &a, const TrajectoryResult &b) {
      merge_sums(a.sums, b.sums);
      a.finite &= b.finite;
    });
    if (threadIdx.x == 0) out[j] = mine;
  }
}

std::vector<Trajectory> trajectories_of(const mgrpo_loss_batch &b) {
  std::vector<Trajectory> out(static_cast<size_t>(b.trajectories));
  for (int64_t j = 0; j < b.trajectories; j++)
    out[j] = {b.cu_seqlens[j], b.cu_seqlens[j + 1], b.weight[j], b.advantage[j], b.coefficient[j]};
  return out;
}

template <class T>
int32_t policy_loss(const mgrpo_loss_batch &b, const mgrpo_loss_config &c, T *dlogp_new, T *dentropy, mgrpo_loss_sums *sums,
                    mgrpo_loss_error *error, cudaStream_t stream) {
  const int64_t n = b.trajectories;
  const Shape shape{block_count(n), kThreads};
  const std::vector<Trajectory> host = trajectories_of(b);
  Scratch<Trajectory> trajectories(stream);
  Scratch<TrajectoryScan> scans(stream);
  MGRPO_TRY(trajectories.upload(host.data(), n));
  MGRPO_TRY(scans.allocate(n));
  MGRPO_TRY(launch(policy_loss_scan_kernel<T>, shape, stream, c, token_arrays<T>(b), trajectories.get(), n, scans.get()));
  // If the data is refused, the outputs of the second pass are not used. So the host waits only once, after both passes.
  Scratch<TrajectoryResult> results(stream);
  MGRPO_TRY(results.allocate(n));
  MGRPO_TRY(launch(policy_loss_kernel<T>, shape, stream, c, token_arrays<T>(b), trajectories.get(), n, scans.get(), dlogp_new, dentropy,
                   results.get()));
  std::vector<TrajectoryScan> scan(static_cast<size_t>(n));
  MGRPO_TRY(scans.download(scan.data(), n));
  std::vector<TrajectoryResult> result(static_cast<size_t>(n));
  MGRPO_TRY(results.download(result.data(), n));
  for (int64_t j = 0; j < n; j++)
    if (scan[j].tokens > 0 && !isfinite(b.advantage[j])) return refuse(error, MGRPO_LOSS_NON_FINITE_INPUT, MGRPO_FIELD_ADVANTAGE, j);
  MGRPO_TRY(check_scans(scan.data(), n, error));
  bool finite = true;
  for (const TrajectoryResult &r : result) {
    merge_sums(*sums, r.sums);
    finite = finite && r.finite;
  }
  return finite && is_finite(*sums) ? MGRPO_OK : refuse(error, MGRPO_LOSS_NON_FINITE_VALUE);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;

int32_t mgrpo_policy_loss_cuda(const mgrpo_loss_batch *batch, const mgrpo_loss_config *config, void *dlogp_new_or_null,
                               void *dentropy_or_null, mgrpo_loss_sums *sums, mgrpo_loss_error *error, void *stream) {
  if (!batch || !config || !sums || !error || !valid(*config) || !valid(*batch)) return MGRPO_INVALID_ARGUMENT;
  if (dlogp_new_or_null && config->entropy_coef != 0 && !dentropy_or_null) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  MGRPO_TRY(check_weights(batch->weight, batch->trajectories, error));
  MGRPO_TRY(check_supplied(*batch, *config, error));
  init_sums(*sums);
  mark_collected(*batch, *config, sums);
  if (batch->trajectories == 0) return MGRPO_OK;
  return cuda::guarded([&] {
    if (batch->dtype == MGRPO_FLOAT64)
      return cuda::policy_loss(*batch, *config, static_cast<double *>(dlogp_new_or_null), static_cast<double *>(dentropy_or_null), sums,
                               error, cuda::stream_of(stream));
    return cuda::policy_loss(*batch, *config, static_cast<float *>(dlogp_new_or_null), static_cast<float *>(dentropy_or_null), sums, error,
                             cuda::stream_of(stream));
  });
}
