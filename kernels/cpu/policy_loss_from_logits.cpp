#include "mgrpo/policy_loss_from_logits.h"

#include <new>

#include "check.h"
#include "logits_row.h"
#include "nonfinite.h"
#include "parallel.h"
#include "policy_rules.h"

namespace mgrpo::cpu {
namespace {

template <class Row>
int32_t policy_gradient(const mgrpo_logits &z, int64_t first, const mgrpo_loss_batch &b, const mgrpo_loss_config &c, void *logps,
                        void *entropies, int64_t *bad_row) {
  using Output = typename Row::Output;
  Output *const logp = static_cast<Output *>(logps), *const entropy = static_cast<Output *>(entropies);
  const double work = 20.0 * static_cast<double>(z.rows) * static_cast<double>(z.vocab);
  std::vector<RowScratch> scratch = row_scratch<Row>(work, z.vocab);
  const TokenArrays<Output> in = token_arrays<Output>(b);
  FirstRow bad;
  parallel_for_threads(z.rows, work, [&](int64_t r, int thread) {
    const int64_t token = first + r, j = trajectory_of(b, token);
    auto *const logits = static_cast<typename Row::Logit *>(z.data) + r * z.ld;
    if (!(b.weight[j] > 0) || b.mask[token] == 0) {
      logp[token] = entropy[token] = 0;
      return fill_row(logits, z.vocab, 0);
    }
    const auto set = [&](const TokenProb &p) {
      logp[token] = static_cast<Output>(p.logp);
      entropy[token] = static_cast<Output>(p.entropy);
    };
    const auto unreadable = [&] {
      bad.report(token);
      set({kNaN, kNaN});
      fill_row(logits, z.vocab, kNaN);
    };
    const int32_t y = z.targets[r];
    if (y < 0 || y >= z.vocab) return unreadable();
    Row row(logits, z.vocab, z.tau, y, scratch[static_cast<size_t>(thread)]);
    if (!row.readable()) return unreadable();
    set(token_prob(row, y));
    if (all_impossible(row)) return fill_row(logits, z.vocab, kNaN);  // the loss refuses a log-prob of -Inf
    const auto term = TrajectoryLoss<Output>{c, in, b.weight[j], b.advantage[j], b.coefficient[j], {}}.term(token);
    differentiate(row, y, z.tau, term.dlogp_new, term.dentropy);
  });
  if (bad.row() >= 0 && (*bad_row < 0 || bad.row() < *bad_row)) *bad_row = bad.row();
  return MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo;

int32_t mgrpo_policy_gradient_from_logits_cpu(const mgrpo_logits *logits, int64_t first, const mgrpo_loss_batch *batch,
                                              const mgrpo_loss_config *config, void *logp, void *entropy, int64_t *bad_row,
                                              mgrpo_loss_error *error) try {
  if (any_null({logits, batch, config, bad_row, error})) return MGRPO_INVALID_ARGUMENT;
  if (!valid(*config) || !valid(*batch) || !valid(*logits, first, *batch, *config)) return MGRPO_INVALID_ARGUMENT;
  if (narrows(*logits) || !valid_sizes({logits->rows, logits->ld}) || (batch->tokens > 0 && any_null({logp, entropy})))
    return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  if (const int32_t status = check_weights(b.weight, b.trajectories, error)) return status;
  if (logits->rows == 0) return MGRPO_OK;
  if (const int32_t status = check_supplied(b, *config, error)) return status;
  const auto run = [&](auto call) { return call(*logits, first, b, *config, logp, entropy, bad_row); };
  const bool slope = config->entropy_coef != 0;
  switch (logits->dtype) {
    case MGRPO_FLOAT32:
      return run(slope ? cpu::policy_gradient<cpu::KeptExponents<float, true>> : cpu::policy_gradient<cpu::KeptExponents<float, false>>);
    case MGRPO_BFLOAT16:
      return run(slope ? cpu::policy_gradient<cpu::KeptExponents<uint16_t, true>>
                       : cpu::policy_gradient<cpu::KeptExponents<uint16_t, false>>);
    default:
      return run(cpu::policy_gradient<cpu::DoubleRow>);
  }
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_policy_loss_from_logits_cpu(const mgrpo_logits *logits, const mgrpo_loss_batch *batch, const mgrpo_loss_config *config,
                                          void *logp, void *entropy, mgrpo_loss_sums *sums, int64_t *bad_row, mgrpo_loss_error *error) {
  if (any_null({logits, batch, sums, bad_row})) return MGRPO_INVALID_ARGUMENT;
  if (logits->rows != batch->tokens) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  const int32_t status = mgrpo_policy_gradient_from_logits_cpu(logits, 0, batch, config, logp, entropy, bad_row, error);
  if (status != MGRPO_OK) return status;
  if (*bad_row >= 0) return MGRPO_NON_FINITE;
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  return mgrpo_policy_loss_cpu(&b, config, nullptr, nullptr, sums, error);
}
