#include "mgrpo/logprob.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "check.h"
#include "parallel.h"
#include "row_ops.h"

namespace mgrpo::cpu {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

float to_float(float z) { return z; }
float to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float z;
  __builtin_memcpy(&z, &wide, sizeof z);
  return z;
}
void store_from(double value, float *out) { *out = static_cast<float>(value); }
void store_from(double value, uint16_t *out) {
  const float f = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  *out = static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// A row of float32 or bfloat16 logits through the vector passes.
template <class T>
struct VectorRow {
  using Logit = T;
  using Output = float;
  T *z;
  int64_t vocab;
  double tau;
  RowSums s;

  VectorRow(T *row, int64_t vocab, double tau)
      : z(row), vocab(vocab), tau(tau), s(row_ops().sums(row, vocab, static_cast<float>(1 / tau), nullptr)) {}

  bool readable() const { return s.readable; }
  double max() const { return s.max; }
  double sum() const { return s.sum; }
  double mean_exponent() const { return s.mean_exponent(); }
  double exponent(int32_t v) const { return (static_cast<double>(to_float(z[v])) - s.max) / tau; }
  void gradient(double constant, double slope) {
    row_ops().gradient(z, vocab, s.max, static_cast<float>(1 / tau), static_cast<float>(constant),
                       static_cast<float>(slope));
  }
  void store(int32_t v, double value) { store_from(value, z + v); }
};

// A row of float64 logits, in float64 throughout.
struct DoubleRow {
  using Logit = double;
  using Output = double;
  double *z;
  int64_t vocab;
  double tau, max_z = -kInf, s = 0, weighted = 0;
  bool ok = true;

  DoubleRow(double *row, int64_t vocab, double tau) : z(row), vocab(vocab), tau(tau) {
    for (int64_t v = 0; v < vocab; v++) {
      ok = ok && !std::isnan(z[v]);
      max_z = z[v] > max_z ? z[v] : max_z;
    }
    ok = ok && max_z != kInf;
    if (!ok || max_z == -kInf) return;
    for (int64_t v = 0; v < vocab; v++) {
      const double d = (z[v] - max_z) / tau, e = std::exp(d);
      s += e;
      if (e > 0) weighted += e * d;
    }
  }

  bool readable() const { return ok; }
  double max() const { return max_z; }
  double sum() const { return s; }
  double mean_exponent() const { return weighted / s; }
  double exponent(int32_t v) const { return (z[v] - max_z) / tau; }
  void gradient(double constant, double slope) {
    for (int64_t v = 0; v < vocab; v++) {
      const double d = (z[v] - max_z) / tau, e = std::exp(d);
      z[v] = e > 0 ? e * (constant + slope * d) : 0;
    }
  }
  void store(int32_t v, double value) { z[v] = value; }
};

// The first row that failed, whichever thread found it.
class FirstRow {
 public:
  void report(int64_t row) {
    int64_t seen = first_.load(std::memory_order_relaxed);
    while (row < seen && !first_.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
    }
  }
  int64_t row() const { return first_ == kNone ? -1 : first_.load(); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first_{kNone};
};

struct Rows {
  void *logits;
  int64_t rows, vocab, ld;
  const int32_t *targets;
  const uint8_t *mask;
  double tau;

  bool valid() const {
    return valid_sizes({rows, ld}) && vocab >= 1 && vocab <= ld && tau > 0 && std::isfinite(tau) &&
           (rows == 0 || !any_null({logits, targets}));
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
  FirstRow bad;
  parallel_for(in.rows, in.work(), [&](int64_t r) {
    double lp = 0, h = 0;
    if (in.read(r)) {
      const Row row(static_cast<typename Row::Logit *>(in.logits) + r * in.ld, in.vocab, in.tau);
      if (!row.readable()) {
        bad.report(r);
        lp = h = kNaN;
      } else if (row.max() == -kInf) {
        lp = -kInf;
      } else {
        const double log_sum = std::log(row.sum());
        lp = row.exponent(in.targets[r]) - log_sum;
        h = log_sum - row.mean_exponent();
      }
    }
    logp[r] = static_cast<Output>(lp);
    if (entropy) entropy[r] = static_cast<Output>(h);
  });
  return bad.row();
}

template <class Row>
int64_t backward(const Rows &in, const typename Row::Output *dlogp, const typename Row::Output *dentropy) {
  using Logit = typename Row::Logit;
  FirstRow bad;
  parallel_for(in.rows, in.work(), [&](int64_t r) {
    Logit *z = static_cast<Logit *>(in.logits) + r * in.ld;
    if (!in.read(r)) {
      for (int64_t v = 0; v < in.vocab; v++) z[v] = Logit{};
      return;
    }
    Row row(z, in.vocab, in.tau);
    if (!row.readable() || row.max() == -kInf) {
      bad.report(r);
      for (int64_t v = 0; v < in.vocab; v++) row.store(static_cast<int32_t>(v), kNaN);
      return;
    }
    // ln p_v + H = d_v - mean d, so dz_v = exp(d_v) (constant + slope d_v) off the target.
    const double g = dlogp[r], e = dentropy ? dentropy[r] : 0;
    const double mean = row.mean_exponent(), scale = 1 / (in.tau * row.sum());
    const int32_t y = in.targets[r];
    // At the target G (1 - p) is formed from S - exp(d_y): float32 would lose it where p is near 1.
    const double dy = row.exponent(y), ey = std::exp(dy);
    const double at_target = scale * (g * (row.sum() - ey) - (ey > 0 ? e * ey * (dy - mean) : 0));
    row.gradient(-scale * (g - e * mean), -scale * e);
    row.store(y, at_target);
  });
  return bad.row();
}

int32_t finish(int64_t first, int64_t *bad_row) {
  *bad_row = first;
  return first < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo::cpu;

int32_t mgrpo_token_logprob_cpu(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                const int32_t *targets, const uint8_t *mask_or_null, double tau, void *logp,
                                void *entropy_or_null, int64_t *bad_row) {
  const Rows in{const_cast<void *>(logits), rows, vocab, ld, targets, mask_or_null, tau};
  if (bad_row == nullptr) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (!in.valid() || (rows > 0 && logp == nullptr)) return MGRPO_INVALID_ARGUMENT;
  if ((*bad_row = in.first_bad_target()) >= 0) return MGRPO_INVALID_ARGUMENT;
  float *const logp32 = static_cast<float *>(logp), *const entropy32 = static_cast<float *>(entropy_or_null);
  switch (dtype) {
    case MGRPO_FLOAT32: return finish(forward<VectorRow<float>>(in, logp32, entropy32), bad_row);
    case MGRPO_BFLOAT16: return finish(forward<VectorRow<uint16_t>>(in, logp32, entropy32), bad_row);
    case MGRPO_FLOAT64:
      return finish(forward<DoubleRow>(in, static_cast<double *>(logp), static_cast<double *>(entropy_or_null)), bad_row);
  }
  return MGRPO_INVALID_ARGUMENT;
}

int32_t mgrpo_token_logprob_bwd_cpu(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                    const int32_t *targets, const uint8_t *mask_or_null, double tau, const void *dlogp,
                                    const void *dentropy_or_null, int64_t *bad_row) {
  const Rows in{logits, rows, vocab, ld, targets, mask_or_null, tau};
  if (bad_row == nullptr) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (!in.valid() || (rows > 0 && dlogp == nullptr)) return MGRPO_INVALID_ARGUMENT;
  if ((*bad_row = in.first_bad_target()) >= 0) return MGRPO_INVALID_ARGUMENT;
  const float *const dlogp32 = static_cast<const float *>(dlogp);
  const float *const dentropy32 = static_cast<const float *>(dentropy_or_null);
  switch (dtype) {
    case MGRPO_FLOAT32: return finish(backward<VectorRow<float>>(in, dlogp32, dentropy32), bad_row);
    case MGRPO_BFLOAT16: return finish(backward<VectorRow<uint16_t>>(in, dlogp32, dentropy32), bad_row);
    case MGRPO_FLOAT64:
      return finish(backward<DoubleRow>(in, static_cast<const double *>(dlogp), static_cast<const double *>(dentropy_or_null)),
                    bad_row);
  }
  return MGRPO_INVALID_ARGUMENT;
}
