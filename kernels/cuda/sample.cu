// One block a row. Without filters: one pass for the row's sums and up to two more, from L2, to find where the
// running sum passes the draw. Each filter bisects the 32 bits of a logit's order, a pass a bit.
#include "mgrpo/sample.h"

#include "device.h"
#include "row.cuh"
#include "sampling_filter.h"

namespace mgrpo::cuda {
namespace {

constexpr int kPerThread = 8;
constexpr int64_t kTile = kRowThreads * kPerThread;  // consecutive tokens a block scans at once

// An integer that orders as the float does (no NaN): lets a cut be found by bisecting 32 bits instead of sorting.
__device__ inline uint32_t order_key(float z) {
  union {
    float f;
    uint32_t bits;
  } u = {z + 0.0f};  // -0 becomes +0
  return u.bits & 0x80000000u ? ~u.bits : u.bits | 0x80000000u;
}

// The least t in [0, 2^32) for which holds(t) is true; holds must be monotone and true for 2^32 - 1.
template <class Holds>
__device__ inline uint32_t least_key(const Holds &holds) {
  uint32_t low = 0, high = 0xFFFFFFFFu;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

struct Shared {
  Storage<RowRoom, 1> room;
  double prefix[2 * kRowThreads];
  long long chosen;
};

// A row under its settings; the methods are called by all threads of the block.
template <class T>
struct Row {
  const T *z;
  int64_t vocab;
  mgrpo_sampling settings;
  double tau;
  Shared &shared;
  RowSums sums;
  uint32_t cut = 0;             // keep order_key(z) >= cut
  double least = -kInf;  // and (z - max) / tau >= least

  __device__ Row(const T *z, int64_t vocab, const mgrpo_sampling &s, Shared &shared)
      : z(z), vocab(vocab), settings(s), tau(s.temperature == 0 ? 1 : s.temperature), shared(shared) {
    sums = row_sums(z, vocab, tau, *shared.room.get());
  }

  __device__ bool readable() const { return !sums.unreadable && !sums.all_impossible(); }

  __device__ float exponential(float x) const {
    return exp2_of(floored((x - static_cast<float>(sums.max)) * exponent_scale<float>(tau)));
  }

  __device__ float kept(int64_t v) const {
    const float x = widen(z[v]);
    if (order_key(x) < cut || (static_cast<double>(x) - sums.max) / tau < least) return 0;
    return exponential(x);
  }

  // Sum of weight(z_v) over the row.
  template <class Weight>
  __device__ double total(const Weight &weight) {
    double mine = 0;
    for_each(z, vocab, [&](int64_t, T x) { mine += weight(widen(x)); });
    return block_sum<kRowThreads>(mine, shared.prefix);
  }

  __device__ void truncate() {
    if (settings.top_k > 0 && settings.top_k < vocab) {
      cut = least_key([&](uint32_t key) {
        return total([key](float x) { return order_key(x) > key ? 1.0 : 0.0; }) < settings.top_k;
      });
    }
    if (settings.top_p > 0 && settings.top_p < 1) {
      const uint32_t top_k = cut;
      const auto mass_from = [&](uint32_t key) {  // of logits whose key is at least `key`
        return total([&](float x) { return order_key(x) >= key ? static_cast<double>(exponential(x)) : 0.0; });
      };
      const double budget = settings.top_p * mass_from(top_k);
      const uint32_t top_p = least_key([&](uint32_t at) { return at == 0xFFFFFFFFu || mass_from(at + 1) < budget; });
      cut = top_p > top_k ? top_p : top_k;
    }
    if (settings.min_p > 0) least = log(settings.min_p);
  }

  // The kept mass of the tile that begins at `begin`, with the prefix sums over its threads left in *prefix.
  __device__ double tile(int64_t begin, const double **prefix) {
    double mine = 0;
    const int64_t at = begin + threadIdx.x * kPerThread;
    for (int i = 0; i < kPerThread; i++)
      if (at + i < vocab) mine += kept(at + i);
    *prefix = block_scan<kRowThreads>(mine, shared.prefix);
    return (*prefix)[kRowThreads - 1];
  }

  // The first token at which the running sum of kept exponentials exceeds `threshold`; the last kept token if
  // rounding leaves it unreached.
  __device__ int64_t invert(double threshold) {
    if (threadIdx.x == 0) shared.chosen = 0;
    double below = 0;
    for (int64_t begin = 0; begin < vocab; begin += kTile) {
      const double *prefix;
      const double mass = tile(begin, &prefix);
      const double before = threadIdx.x == 0 ? 0 : prefix[threadIdx.x - 1], upto = prefix[threadIdx.x];
      const bool here = below + before <= threshold && (below + upto > threshold || begin + kTile >= vocab);
      if (here && upto > before) {
        double running = below + before;
        int64_t last = -1;
        for (int i = 0; i < kPerThread; i++) {
          const int64_t v = begin + threadIdx.x * kPerThread + i;
          const float e = v < vocab ? kept(v) : 0;
          if (e == 0) continue;
          running += e;
          last = v;
          if (running > threshold) break;
        }
        atomicMax(&shared.chosen, static_cast<long long>(last));
      }
      __syncthreads();
      below += mass;
      if (below > threshold) break;
    }
    __syncthreads();
    return shared.chosen;
  }

  __device__ int64_t greedy() {
    if (threadIdx.x == 0) shared.chosen = vocab;
    __syncthreads();
    long long first = vocab;
    for_each(z, vocab, [&](int64_t v, T x) {
      if (widen(x) == static_cast<float>(sums.max) && v < first) first = v;
    });
    atomicMin(&shared.chosen, first);
    __syncthreads();
    return shared.chosen;
  }
};

template <class T>
__global__ __launch_bounds__(kRowThreads) void sample_kernel(const T *logits, int64_t rows, int64_t vocab, int64_t ld,
                                                             const mgrpo_sampling *sampling, int32_t *token, float *logp,
                                                             float *truncated_logp, int64_t *bad_row) {
  __shared__ Shared shared;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    Row<T> row(logits + r * ld, vocab, sampling[r], shared);
    int64_t chosen = -1;
    double lp = NAN, truncated = NAN;
    if (row.readable()) {
      double mass = row.sums.sum;
      if (truncates(row.settings)) row.truncate();
      const double *prefix;
      double tiles = 0;  // added up as invert() does, so that the draw lies within
      for (int64_t begin = 0; begin < vocab; begin += kTile) {
        tiles += row.tile(begin, &prefix);
        __syncthreads();  // prefix is overwritten by the next tile
      }
      if (truncates(row.settings)) mass = tiles;
      if (row.settings.temperature == 0) {
        chosen = row.greedy();
      } else {
        const uint64_t at = row.settings.position;
        const double u = mgrpo_philox_uniform(mgrpo_philox(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), 0, 0,
                                                           row.settings.key[0], row.settings.key[1]));
        chosen = row.invert(fmin(u * tiles, nextafter(tiles, 0.0)));
      }
      const double d = (static_cast<double>(widen(row.z[chosen])) - row.sums.max) / row.tau;
      lp = d - log(row.sums.sum);
      truncated = d - log(mass);
    }
    if (threadIdx.x == 0) {
      token[r] = static_cast<int32_t>(chosen);
      if (logp) logp[r] = static_cast<float>(lp);
      if (truncated_logp) truncated_logp[r] = static_cast<float>(truncated);
      if (chosen < 0) report_least(bad_row, r);
    }
    __syncthreads();
  }
}

template <class T>
int32_t sample(const void *logits, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *sampling, int32_t *token,
               float *logp, float *truncated_logp, int64_t *bad_row, cudaStream_t stream) {
  Scratch<mgrpo_sampling> settings(stream);
  Scratch<int64_t> bad(stream);
  MGRPO_TRY(settings.upload(sampling, rows));
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(launch(sample_kernel<T>, {block_count(rows), kRowThreads}, stream, static_cast<const T *>(logits), rows, vocab, ld,
                   settings.get(), token, logp, truncated_logp, bad.get()));
  MGRPO_TRY(bad.download(bad_row, 1));
  return *bad_row < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_sample_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                          const mgrpo_sampling *sampling, int32_t *token, float *logp_or_null,
                          float *truncated_logp_or_null, int64_t *bad_row, void *stream) {
  using namespace mgrpo::cuda;
  if (!bad_row) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows < 0 || vocab < 1 || vocab > ld || vocab > INT32_MAX) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!logits || !sampling || !token) return MGRPO_INVALID_ARGUMENT;
  for (int64_t r = 0; r < rows; r++) {
    if (mgrpo::valid(sampling[r])) continue;
    *bad_row = r;
    return MGRPO_INVALID_ARGUMENT;
  }
  switch (dtype) {
    case MGRPO_FLOAT32:
      return sample<float>(logits, rows, vocab, ld, sampling, token, logp_or_null, truncated_logp_or_null, bad_row,
                           stream_of(stream));
    case MGRPO_BFLOAT16:
      return sample<__nv_bfloat16>(logits, rows, vocab, ld, sampling, token, logp_or_null, truncated_logp_or_null, bad_row,
                                   stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}
