// The gradient of the policy loss with respect to logits.
#include "mgrpo/policy_loss_from_logits.h"
#include "policy_rules.h"
#include "row_gradient.cuh"

namespace mgrpo::cuda {
namespace {

// The values of a token that come from its trajectory.
struct TokenTrajectory {
  double weight, advantage, coefficient;
};

// The objective, for differentiate_rows: it computes the log-prob, entropy and gradient of each row.
template <class A>
struct Objective {
  int64_t first;                      // the token of the first row
  const TokenTrajectory *trajectory;  // [rows]
  double tau;
  mgrpo_loss_config config;
  TokenArrays<A> tokens;
  A *logp, *entropy;
  int64_t *bad_row;

  __device__ void set(int64_t r, double lp, double h) const {
    if (cluster().block_rank() > 0 || threadIdx.x > 0) return;
    narrow(lp, logp + first + r);
    narrow(h, entropy + first + r);
  }
  __device__ bool skips(int64_t r) const {
    if (tokens.mask[first + r] != 0 && trajectory[r].weight > 0) return false;
    set(r, 0, 0);
    return true;
  }
  __device__ void unreadable(int64_t r) const {
    if (threadIdx.x == 0) report_min(bad_row, first + r);
    set(r, NAN, NAN);
  }
  __device__ void impossible(int64_t r) const { set(r, -kInf, 0); }  // the loss refuses a log-prob of -Inf
  __device__ Gradient<A> gradient(int64_t r, const RowSums &s, double dy) const {
    const TokenTrajectory of = trajectory[r];
    const double log_sum = log(s.sum);
    const A lp = static_cast<A>(dy - log_sum);
    const TrajectoryLoss<A> loss{config, tokens, of.weight, of.advantage, of.coefficient, TrajectoryScan{}};
    // The entropy is not read, because another block may be writing it.
    const TokenTerm<A> term = loss.term_without_entropy(first + r, lp);
    set(r, lp, log_sum - s.mean_exponent());
    return gradient_of<A>(s, dy, tau, term.dlogp_new, term.dentropy);
  }
};

template <class T, class G, bool kStaged>
__global__ __launch_bounds__(kRowThreads,
                             2) void policy_loss_from_logits_kernel(T *logits, LogitRows in,
                                                                    const __grid_constant__ Objective<typename Compute<T>::type> of) {
  differentiate_rows<T, G, kStaged>(logits, in, of);
}

template <class T, class G>
int32_t policy_gradient(const mgrpo_logits &z, int64_t first, const mgrpo_loss_batch &b, const mgrpo_loss_config &c, void *logp,
                        void *entropy, int64_t *bad_row, cudaStream_t stream) {
  std::vector<TokenTrajectory> host;
  for (int64_t r = 0; r < z.rows; r++) {
    const int64_t j = trajectory_of(b, first + r);
    host.push_back({b.weight[j], b.advantage[j], b.coefficient[j]});
  }
  Scratch<TokenTrajectory> trajectory(stream);
  MGRPO_TRY(trajectory.upload(host.data(), z.rows));
  using A = typename Compute<T>::type;
  const LogitRows in{z.rows, z.vocab, z.ld, z.targets, z.tau};
  const Objective<A> of{first, trajectory.get(), z.tau, c, token_arrays<A>(b), static_cast<A *>(logp), static_cast<A *>(entropy), bad_row};
  return launch_rows<T>(policy_loss_from_logits_kernel<T, G, true>, policy_loss_from_logits_kernel<T, G, false>, in, stream,
                        static_cast<T *>(z.data), in, of);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_policy_gradient_from_logits_cuda(const mgrpo_logits *logits, int64_t first, const mgrpo_loss_batch *batch,
                                               const mgrpo_loss_config *config, void *logp, void *entropy, int64_t *bad_row,
                                               mgrpo_loss_error *error, void *stream) {
  if (!logits || !batch || !config || !bad_row || !error) return MGRPO_INVALID_ARGUMENT;
  if (!valid(*config) || !valid(*batch) || !valid(*logits, first, *batch, *config)) return MGRPO_INVALID_ARGUMENT;
  if (batch->tokens > 0 && !(logp && entropy)) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  MGRPO_TRY(check_weights(b.weight, b.trajectories, error));
  if (logits->rows == 0) return MGRPO_OK;
  MGRPO_TRY(check_supplied(b, *config, error));
  return guarded([&] {
    const auto run = [&](auto call) { return call(*logits, first, b, *config, logp, entropy, bad_row, stream_of(stream)); };
    switch (logits->dtype) {
      case MGRPO_FLOAT32:
        return run(narrows(*logits) ? policy_gradient<float, __nv_bfloat16> : policy_gradient<float, float>);
      case MGRPO_BFLOAT16:
        return run(policy_gradient<__nv_bfloat16, __nv_bfloat16>);
      default:
        return run(policy_gradient<double, double>);
    }
  });
}

int32_t mgrpo_policy_loss_from_logits_cuda(const mgrpo_logits *logits, const mgrpo_loss_batch *batch, const mgrpo_loss_config *config,
                                           void *logp, void *entropy, mgrpo_loss_sums *sums, int64_t *bad_row, mgrpo_loss_error *error,
                                           void *stream) {
  if (!logits || !batch || !sums || !bad_row || logits->rows != batch->tokens) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  Scratch<int64_t> bad(stream_of(stream));
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(mgrpo_policy_gradient_from_logits_cuda(logits, 0, batch, config, logp, entropy, bad.get(), error, stream));
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  const int32_t status = mgrpo_policy_loss_cuda(&b, config, nullptr, nullptr, sums, error, stream);
  MGRPO_TRY(bad.download(bad_row, 1));
  return *bad_row < 0 ? status : MGRPO_NON_FINITE;
}
