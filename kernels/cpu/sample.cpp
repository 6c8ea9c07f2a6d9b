#include "mgrpo/sample.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "check.h"
#include "logits_loops.h"
#include "logits_row.h"
#include "nonfinite.h"
#include "parallel.h"
#include "sampling_filter.h"

namespace mgrpo::cpu {
namespace {

struct Draw {
  int32_t token;
  float logp, truncated_logp;
};

// One row: its exponentials exp((z_v - max) / tau). The filters set the exponentials of discarded tokens to 0.
template <class T>
class Row {
 public:
  Row(const T *z, int64_t vocab, const mgrpo_sampling &settings, float *exps, double *block_sums, float *descending)
      : z_(z),
        vocab_(vocab),
        settings_(settings),
        tau_(settings.temperature == 0 ? 1 : settings.temperature),
        exps_(exps),
        block_sums_(block_sums),
        descending_(descending) {
    sums_ = logits_loops().sums(z, vocab, static_cast<float>(1 / tau_), {exps, block_sums});
  }

  bool readable() const { return sums_.readable && sums_.max != -kInf; }

  Draw draw() {
    double kept = sums_.sum;
    if (truncates(settings_)) kept = truncate();
    const int32_t token = settings_.temperature == 0 ? greedy() : invert(kept);
    const double d = exponent(to_float(z_[token]));
    return {token, static_cast<float>(d - std::log(sums_.sum)), static_cast<float>(d - std::log(kept))};
  }

 private:
  int32_t greedy() const {
    int64_t v = 0;
    while (to_float(z_[v]) != sums_.max) v++;
    return static_cast<int32_t>(v);
  }

  // Sets the exponentials of discarded tokens to 0, computes block_sums again, and returns the sum of the remaining ones.
  double truncate() {
    for (int64_t v = 0; v < vocab_; v++) descending_[v] = to_float(z_[v]);
    const float cut = top_p_cut(top_k_cut());
    const double min_exponent = settings_.min_p > 0 ? std::log(settings_.min_p) : -kInf;
    double total = 0;
    for (int64_t begin = 0; begin < vocab_; begin += kRowBlock) {
      const int64_t end = std::min(begin + kRowBlock, vocab_);
      double block = 0;
      for (int64_t v = begin; v < end; v++) {
        const float z = to_float(z_[v]);
        if (z < cut || exponent(z) < min_exponent) exps_[v] = 0;
        block += exps_[v];
      }
      block_sums_[begin / kRowBlock] = block;
      total += block;
    }
    return total;
  }

  double exponent(float z) const { return (static_cast<double>(z) - sums_.max) / tau_; }

  // Sorts at least the first n elements of descending_.
  void sort_first(int64_t n) {
    if (n <= sorted_) return;
    const auto begin = descending_ + sorted_, end = descending_ + vocab_;
    if (n < vocab_) std::nth_element(begin, descending_ + n, end, std::greater<float>());
    std::sort(begin, descending_ + n, std::greater<float>());
    sorted_ = n;
  }

  float top_k_cut() {
    if (settings_.top_k == 0 || settings_.top_k >= vocab_) return -kInf;
    sort_first(settings_.top_k);
    return descending_[settings_.top_k - 1];
  }

  float top_p_cut(float top_k) {
    if (settings_.top_p == 0 || settings_.top_p == 1) return top_k;
    double budget = 0;
    for (int64_t v = 0; v < vocab_; v++) budget += to_float(z_[v]) >= top_k ? exps_[v] : 0.0f;
    budget *= settings_.top_p;
    double above = 0;  // the sum of the exponentials of the i largest logits
    for (int64_t i = 0; i < vocab_; i++) {
      if (i == sorted_) sort_first(std::min(vocab_, std::max<int64_t>(64, 8 * sorted_)));
      if (descending_[i] < top_k) break;
      if (i > 0 && descending_[i] != descending_[i - 1] && above >= budget) return descending_[i - 1];
      above += std::exp(exponent(descending_[i]));
    }
    return top_k;
  }

  // Returns the first token at which the running sum of exponentials exceeds u * kept.
  int32_t invert(double kept) const {
    const uint64_t at = settings_.position;
    const double u = mgrpo_philox_uniform(
        mgrpo_philox(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0, settings_.key[0], settings_.key[1]));
    const double threshold = u * kept;
    const int64_t blocks = (vocab_ + kRowBlock - 1) / kRowBlock;
    double below = 0;
    // The last token so far whose exponential is not 0; the result if rounding prevents the sum from exceeding the threshold.
    int64_t last = 0;
    for (int64_t b = 0; b < blocks; b++) {
      if (block_sums_[b] == 0) continue;
      if (below + block_sums_[b] <= threshold && b + 1 < blocks) {
        below += block_sums_[b];
        last = b * kRowBlock + kRowBlock - 1;
        continue;
      }
      for (int64_t v = b * kRowBlock; v < std::min((b + 1) * kRowBlock, vocab_); v++) {
        if (exps_[v] == 0) continue;
        below += exps_[v];
        last = v;
        if (below > threshold) return static_cast<int32_t>(v);
      }
    }
    while (exps_[last] == 0) last--;
    return static_cast<int32_t>(last);
  }

  const T *z_;
  int64_t vocab_;
  const mgrpo_sampling &settings_;
  double tau_;
  float *exps_;
  double *block_sums_;
  float *descending_;  // if a filter is on, the logits [vocab], whose first sorted_ elements are in order
  int64_t sorted_ = 0;
  RowSums sums_;
};

struct Outputs {
  int32_t *token;
  float *logp, *truncated_logp;

  void store(int64_t row, const Draw &draw) const {
    token[row] = draw.token;
    if (logp) logp[row] = draw.logp;
    if (truncated_logp) truncated_logp[row] = draw.truncated_logp;
  }
};

// Returns the first row that could not be read, or -1.
template <class T>
int64_t sample(const T *logits, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *sampling, const Outputs &out) {
  const int threads = rows < 2 ? 1 : thread_count(20.0 * static_cast<double>(rows) * static_cast<double>(vocab));
  const int64_t blocks = (vocab + kRowBlock - 1) / kRowBlock;
  std::vector<float> exps(static_cast<size_t>(threads * vocab));
  std::vector<double> block_sums(static_cast<size_t>(threads * blocks));
  const bool filtered = std::any_of(sampling, sampling + rows, truncates);
  std::vector<float> descending(static_cast<size_t>(filtered ? threads * vocab : 0));
  std::vector<int64_t> bad(static_cast<size_t>(threads), std::numeric_limits<int64_t>::max());
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (int64_t r = 0; r < rows; r++) {
      Row<T> row(logits + r * ld, vocab, sampling[r], exps.data() + t * vocab, block_sums.data() + t * blocks,
                 filtered ? descending.data() + t * vocab : nullptr);
      if (!row.readable()) bad[t] = std::min(bad[t], r);
      out.store(r, row.readable() ? row.draw() : Draw{-1, static_cast<float>(kNaN), static_cast<float>(kNaN)});
    }
  }
  const int64_t first = *std::min_element(bad.begin(), bad.end());
  return first == std::numeric_limits<int64_t>::max() ? -1 : first;
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo;

int64_t mgrpo_sampling_out_of_range(const mgrpo_sampling *sampling, int64_t rows) {
  for (int64_t r = 0; r < rows; r++)
    if (!valid(sampling[r])) return r;
  return -1;
}

int32_t mgrpo_sample_cpu(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *sampling,
                         int32_t *token, float *logp_or_null, float *truncated_logp_or_null, int64_t *bad_row) try {
  if (!bad_row) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (!valid_sizes({rows, ld}) || vocab < 1 || vocab > ld || vocab > std::numeric_limits<int32_t>::max()) return MGRPO_INVALID_ARGUMENT;
  if (rows > 0 && any_null({logits, sampling, token})) return MGRPO_INVALID_ARGUMENT;
  *bad_row = mgrpo_sampling_out_of_range(sampling, rows);
  if (*bad_row >= 0) return MGRPO_INVALID_ARGUMENT;
  const cpu::Outputs out{token, logp_or_null, truncated_logp_or_null};
  switch (dtype) {
    case MGRPO_FLOAT32:
      *bad_row = cpu::sample(static_cast<const float *>(logits), rows, vocab, ld, sampling, out);
      break;
    case MGRPO_BFLOAT16:
      *bad_row = cpu::sample(static_cast<const uint16_t *>(logits), rows, vocab, ld, sampling, out);
      break;
    default:
      return MGRPO_INVALID_ARGUMENT;
  }
  return *bad_row < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
