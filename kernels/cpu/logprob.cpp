#include "mgrpo/logprob.h"

#include <cmath>
#include <new>
#include <vector>

#include "check.h"
#include "logits_row.h"
#include "nonfinite.h"
#include "parallel.h"
#include "temperature.h"

namespace mgrpo::cpu {
namespace {

struct Rows {
  void *logits;
  int64_t rows, vocab, ld;
  const int32_t *targets;
  const uint8_t *mask;
  double tau;

  bool valid() const {
    return valid_sizes({rows, ld}) && vocab >= 1 && vocab <= ld && valid_temperature(tau) && (rows == 0 || !any_null({logits, targets}));
  }
  bool read(int64_t row) const { return mask == nullptr || mask[row] != 0; }
  int64_t first_bad_target() const {
    for (int64_t r = 0; r < rows; r++)
      if (read(r) && (targets[r] < 0 || targets[r] >= vocab)) return r;
    return -1;
  }
  double work() const { return 20.0 * static_cast<double>(rows) * static_cast<double>(vocab); }
};

template <class Row>
int64_t forward(const Rows &in, typename Row::Output *logp, typename Row::Output *entropy) {
  using Output = typename Row::Output;
  std::vector<RowScratch> scratch = row_scratch<Row>(in.work(), in.vocab);
  FirstRow bad;
  parallel_for_threads(in.rows, in.work(), [&](int64_t r, int thread) {
    TokenProb p{0, 0};
    if (in.read(r)) {
      auto *const z = static_cast<typename Row::Logit *>(in.logits) + r * in.ld;
      const Row row(z, in.vocab, in.tau, in.targets[r], scratch[static_cast<size_t>(thread)]);
      if (row.readable()) {
        p = token_prob(row, in.targets[r]);
      } else {
        bad.report(r);
        p = {kNaN, kNaN};
      }
    }
    logp[r] = static_cast<Output>(p.logp);
    if (entropy) entropy[r] = static_cast<Output>(p.entropy);
  });
  return bad.row();
}

template <class Row>
int64_t backward(const Rows &in, const typename Row::Output *dlogp, const typename Row::Output *dentropy) {
  using Logit = typename Row::Logit;
  std::vector<RowScratch> scratch = row_scratch<Row>(in.work(), in.vocab);
  FirstRow bad;
  parallel_for_threads(in.rows, in.work(), [&](int64_t r, int thread) {
    Logit *z = static_cast<Logit *>(in.logits) + r * in.ld;
    if (!in.read(r)) return fill_row(z, in.vocab, 0);
    Row row(z, in.vocab, in.tau, in.targets[r], scratch[static_cast<size_t>(thread)]);
    if (!row.readable() || all_impossible(row)) {
      bad.report(r);
      return fill_row(z, in.vocab, kNaN);
    }
    differentiate(row, in.targets[r], in.tau, dlogp[r], dentropy ? dentropy[r] : 0);
  });
  return bad.row();
}

// Computes the gradient, with or without the part of the entropies.
template <class T>
int64_t backward_f32(const Rows &in, const float *dlogp, const float *dentropy) {
  return dentropy ? backward<KeptExponents<T, true>>(in, dlogp, dentropy) : backward<KeptExponents<T, false>>(in, dlogp, dentropy);
}

int32_t finish(int64_t first, int64_t *bad_row) {
  *bad_row = first;
  return first < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo::cpu;

int32_t mgrpo_token_logprob_cpu(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                const uint8_t *mask_or_null, double tau, void *logp, void *entropy_or_null, int64_t *bad_row) try {
  const Rows in{const_cast<void *>(logits), rows, vocab, ld, targets, mask_or_null, tau};
  if (bad_row == nullptr) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (!in.valid() || (rows > 0 && logp == nullptr)) return MGRPO_INVALID_ARGUMENT;
  if ((*bad_row = in.first_bad_target()) >= 0) return MGRPO_INVALID_ARGUMENT;
  float *const logp32 = static_cast<float *>(logp), *const entropy32 = static_cast<float *>(entropy_or_null);
  switch (dtype) {
    case MGRPO_FLOAT32:
      return finish(forward<VectorRow<float>>(in, logp32, entropy32), bad_row);
    case MGRPO_BFLOAT16:
      return finish(forward<VectorRow<uint16_t>>(in, logp32, entropy32), bad_row);
    case MGRPO_FLOAT64:
      return finish(forward<DoubleRow>(in, static_cast<double *>(logp), static_cast<double *>(entropy_or_null)), bad_row);
  }
  return MGRPO_INVALID_ARGUMENT;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_token_logprob_bwd_cpu(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                    const uint8_t *mask_or_null, double tau, const void *dlogp, const void *dentropy_or_null,
                                    int64_t *bad_row) try {
  const Rows in{logits, rows, vocab, ld, targets, mask_or_null, tau};
  if (bad_row == nullptr) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (!in.valid() || (rows > 0 && dlogp == nullptr)) return MGRPO_INVALID_ARGUMENT;
  if ((*bad_row = in.first_bad_target()) >= 0) return MGRPO_INVALID_ARGUMENT;
  const float *const dlogp32 = static_cast<const float *>(dlogp);
  const float *const dentropy32 = static_cast<const float *>(dentropy_or_null);
  switch (dtype) {
    case MGRPO_FLOAT32:
      return finish(backward_f32<float>(in, dlogp32, dentropy32), bad_row);
    case MGRPO_BFLOAT16:
      return finish(backward_f32<uint16_t>(in, dlogp32, dentropy32), bad_row);
    case MGRPO_FLOAT64:
      return finish(backward<DoubleRow>(in, static_cast<const double *>(dlogp), static_cast<const double *>(dentropy_or_null)), bad_row);
  }
  return MGRPO_INVALID_ARGUMENT;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
