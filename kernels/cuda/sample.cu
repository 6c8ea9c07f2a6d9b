// A row is 128 chunks of consecutive tokens, shared by up to eight blocks. A warp sums a chunk in float32, relative to
// the chunk's largest logit. Then every warp sums the chunks in float64, in one order, so the number of blocks changes
// no bit.
//
// Without filters a row is read once, and the chunk in which the running sum passes the draw once more. A filter is a
// least logit, found by its bits. A pass sums the weights of the logits between two values in 4,096 bins, and the next
// pass continues within the bin in which the running sum passes the threshold. Weights are whole numbers, so the order
// in which threads add them does not matter. Two or three passes over the chunks with logits of that size find a
// float32.
#include "cluster.cuh"
#include "device.h"
#include "mgrpo/sample.h"
#include "nonfinite.h"
#include "row.cuh"
#include "sampling_filter.h"

namespace mgrpo::cuda {
namespace {

constexpr int kChunks = 128, kChunksOfLane = kChunks / kWarp;
constexpr int kResident = 2;  // blocks that a multiprocessor holds
constexpr int kBinBits = 12, kBins = 1 << kBinBits;
static_assert(kChunks % (kMaxCluster * kRowWarps) == 0, "every warp has equally many chunks");

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, by));
  return x;
}
// Inclusive prefix sums over the lanes.
__device__ inline double warp_scan(double x) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const double before = __shfl_up_sync(kAllLanes, x, by);
    if (lane() >= by) x += before;
  }
  return x;
}

// Starts to bring a line of global memory to the L2 cache.
__device__ inline void prefetch(const void *at) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

// Numbers that order as the values of T do (no NaN): a cut is found by their bits instead of by sorting.
template <class T>
struct Order {
  static constexpr int kUnused = 32 - 8 * sizeof(T);  // lower bits of a float that values of T leave 0

  __device__ static uint32_t key(float z) {
    const uint32_t bits = __float_as_uint(z + 0.0f);  // -0 becomes +0
    return (bits & 0x80000000u ? ~bits : bits | 0x80000000u) >> kUnused;
  }
  __device__ static float value(uint32_t key) {
    const uint32_t bits = key << kUnused;
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits & ~0u << kUnused);
  }
};

// The least value of T in [low, high] for which holds(value) is true; holds must be monotone, and is true for high.
template <class T, class Holds>
__device__ inline float least_value(float low, float high, const Holds &holds) {
  uint32_t from = Order<T>::key(low), to = Order<T>::key(high);
  while (from < to) {
    const uint32_t middle = from + (to - from) / 2;
    if (holds(middle)) {
      to = middle;
    } else {
      from = middle + 1;
    }
  }
  return Order<T>::value(from);
}

// The result of one warp for a chunk.
struct Chunk {
  float max;  // its largest logit
  float sum;  // of the pass's terms over its tokens; NaN if a logit is NaN or +Inf
};

// The bin in which a pass continues, and the sum of all bins above it.
struct Bin {
  unsigned number;
  uint64_t above;
};

struct Shared {
  Chunk own[kChunks];      // of this block's warps, for the cluster to read
  Chunk chunk[kChunks];    // of all blocks
  double factor[kChunks];  // exp((the chunk's max - the row's) / tau)
};

struct Bins {
  uint2 sum[kBins];  // lower and upper halves: of this block, then in its share of the bins of all blocks
  uint64_t warp_sum[kRowWarps], share_sum;
  Bin found;
};

// A row of logits and the settings of its draw. All threads of all its blocks call a method, unless its comment names a warp.
template <class T>
struct Row {
  static constexpr int kWidth = Pack<T>::kWidth;
  const T *z;
  int vocab, length;  // of the row and of a chunk
  const mgrpo_sampling &settings;
  float scale;
  Shared &shared;
  Bins &bins;
  float max = -HUGE_VALF;
  bool unreadable = false;

  __device__ Row(const T *z, int64_t vocab, const mgrpo_sampling &settings, Shared &shared, Bins &bins)
      : z(z),
        vocab(static_cast<int>(vocab)),
        length(chunk_length(vocab)),
        settings(settings),
        scale(exponent_scale<float>(tau())),
        shared(shared),
        bins(bins) {
    bring(static_cast<int>(cluster().block_rank() * kRowWarps) + warp());
    for_own_chunks([&](int c) {
      bring(c + static_cast<int>(cluster().num_blocks()) * kRowWarps);
      return exponentials(c);
    });
    for (int c = lane() * kChunksOfLane; c < (lane() + 1) * kChunksOfLane; c++) {
      max = fmaxf(max, shared.chunk[c].max);
      unreadable |= shared.chunk[c].sum != shared.chunk[c].sum;
    }
    max = warp_max(max);
    unreadable = __any_sync(kAllLanes, unreadable);
    if (threadIdx.x < kChunks)
      shared.factor[threadIdx.x] = exp2((static_cast<double>(shared.chunk[threadIdx.x].max) - max) * exponent_scale<double>(tau()));
    __syncthreads();
  }

  // A pack for each lane, or as many packs as make the row kChunks chunks.
  __device__ static int chunk_length(int64_t vocab) {
    const int packs = static_cast<int>((vocab + kChunks * kWidth - 1) / (kChunks * kWidth));
    return (packs < 32 ? 32 : packs) * kWidth;
  }
  __device__ const T *chunk_at(int c) const { return z + static_cast<int64_t>(c) * length; }
  __device__ int tokens(int c) const {
    const int64_t left = vocab - static_cast<int64_t>(c) * length;
    return left < 0 ? 0 : left < length ? static_cast<int>(left) : length;
  }
  __device__ double tau() const { return settings.temperature == 0 ? 1 : settings.temperature; }

  __device__ bool readable() const { return !unreadable && max > -HUGE_VALF; }
  __device__ double exponent(float x) const { return (static_cast<double>(x) - max) / tau(); }
  __device__ float exponential(float x, float most) const { return exp2_of(floored((x - most) * scale)); }
  __device__ double mass(int c) const { return shared.chunk[c].sum * shared.factor[c]; }

  // Computes every chunk with f(chunk), called by a warp, and gives all results to every block.
  template <class F>
  __device__ void for_own_chunks(const F &f) {
    auto blocks = cluster();
    for (unsigned c = blocks.block_rank() * kRowWarps + warp(); c < kChunks; c += blocks.num_blocks() * kRowWarps) {
      const Chunk found = f(c);
      if (lane() == 0) shared.own[c] = found;
    }
    blocks.sync();
    const unsigned c = threadIdx.x;
    if (c < kChunks) shared.chunk[c] = *blocks.map_shared_rank(&shared.own[c], block_of(c));
    blocks.sync();  // wait: all must have read before a block overwrites its own or ends
  }
  __device__ static unsigned block_of(unsigned c) { return c / kRowWarps & (cluster().num_blocks() - 1); }

  // g(token, pack, count) for the lane's share of a chunk; tokens count from the chunk's first.
  template <class G>
  __device__ void for_each_of(int c, const G &g) const {
    for_each_pack_ahead(chunk_at(c), tokens(c), lane(), 32, g);
  }

  // Prefetches a chunk into the L2 cache if there is one with this number: loads of a chunk wait for each other, a few at a time. A warp
  // calls it.
  __device__ void bring(int c) const {
    constexpr int kLine = 128;
    if (c >= kChunks) return;
    const char *const bytes = reinterpret_cast<const char *>(chunk_at(c));
    const int size = tokens(c) * static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int at = lane() * kLine; at < size; at += 32 * kLine) prefetch(bytes + at);
  }

  // Returns the largest logit of a chunk and the sum of its exponentials. A warp calls it.
  __device__ Chunk exponentials(int c) const {
    if (tokens(c) == 0) return {-HUGE_VALF, 0};
    OnlineSums<float> mine;
    for_each_of(c, [&](int64_t, const Pack<T> &p, int count) { mine.add(p, count, scale); });
    const float most = warp_max(mine.max);
    mine.rescale(most, scale);
    return {most, lanes_sum<kWarp>(mine.unreadable ? NAN : mine.sum)};
  }

  // Gives every chunk the sum of the exponentials of its logits from `least` on.
  __device__ void add_up(float least) {
    for_own_chunks([&](int c) {
      const float most = shared.chunk[c].max;
      if (most < least || most == -HUGE_VALF) return Chunk{most, 0};
      float mine = 0;
      for_each_of(c, [&](int64_t, const Pack<T> &p, int count) {
#pragma unroll
        for (int i = 0; i < kWidth; i++) {
          const float x = i < count ? widen(p.at[i]) : -HUGE_VALF;
          mine += x >= least ? exponential(x, most) : 0;
        }
      });
      return Chunk{most, lanes_sum<kWarp>(mine)};
    });
  }

  // Returns the sum of f(chunk) over the row.
  template <class F>
  __device__ double total(const F &f) const {
    double mine = 0;
    for (int i = 0; i < kChunksOfLane; i++) mine += f(lane() * kChunksOfLane + i);
    return __shfl_sync(kAllLanes, warp_scan(mine), 31);
  }
  __device__ double mass() const {
    return total([&](int c) { return mass(c); });
  }
  __device__ double mass_from(float least) {
    add_up(least);
    return mass();
  }

  // Adds with two additions of 32 bits, for which a GPU has an instruction.
  __device__ void add_to_bin(unsigned bin, uint64_t weight) {
    const auto low = static_cast<unsigned>(weight);
    const unsigned old = atomicAdd(&bins.sum[bin].x, low), high = static_cast<unsigned>(weight >> 32) + (old + low < old);
    if (high != 0) atomicAdd(&bins.sum[bin].y, high);
  }
  __device__ static uint64_t sum_of(uint2 bin) { return static_cast<uint64_t>(bin.y) << 32 | bin.x; }

  // Adds up weight(logit) by bin, for keys in [from, to]; bin 0 is the uppermost. Each block then holds the sums of all blocks for its
  // share of the bins.
  template <class Weight>
  __device__ void fill_bins(uint32_t from, uint32_t to, int shift, const Weight &weight) {
    auto blocks = cluster();
    for (int b = threadIdx.x; b < kBins; b += kRowThreads) bins.sum[b] = {0, 0};
    __syncthreads();
    for (unsigned c = blocks.block_rank() * kRowWarps + warp(); c < kChunks; c += blocks.num_blocks() * kRowWarps) {
      if (tokens(c) == 0 || Order<T>::key(shared.chunk[c].max) < from) continue;
      const T *const part = chunk_at(c);
      const int n = tokens(c);
      const bool is_aligned = aligned(part);
#pragma unroll 1
      for (int begin = lane() * kWidth; begin < n; begin += 32 * kWidth) {
        const Pack<T> p = load_pack(part, begin, n, is_aligned);
#pragma unroll
        for (int i = 0; i < kWidth; i++) {
          const uint32_t key = begin + i < n ? Order<T>::key(widen(p.at[i])) : 0;  // no number's
          if (key < from || key > to) continue;
          const uint64_t w = weight(Order<T>::value(key));
          if (w != 0) add_to_bin((to - key) >> shift, w);
        }
      }
    }
    blocks.sync();
    const int share = kBins / static_cast<int>(blocks.num_blocks());
    for (int b = threadIdx.x; b < share; b += kRowThreads) {
      uint2 *const bin = &bins.sum[blocks.block_rank() * share + b];
      uint64_t sum = 0;
      for (unsigned r = 0; r < blocks.num_blocks(); r++) sum += sum_of(*blocks.map_shared_rank(bin, r));
      *bin = {static_cast<unsigned>(sum), static_cast<unsigned>(sum >> 32)};
    }
    __syncthreads();
  }

  // The last of the bins 0 to `last` above which less than the budget lies, for every thread of every block; `above` lies above bin 0.
  __device__ Bin last_below(double budget, uint64_t above, unsigned last) {
    auto blocks = cluster();
    const int share = kBins / static_cast<int>(blocks.num_blocks()), each = share / kRowThreads;
    const unsigned first = blocks.block_rank() * share + threadIdx.x * each;
    uint64_t own = 0;
    for (int i = 0; i < each; i++) own += sum_of(bins.sum[first + i]);
    uint64_t upto = own;  // of the warp's bins
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const uint64_t before = __shfl_up_sync(kAllLanes, upto, by);
      if (lane() >= by) upto += before;
    }
    if (lane() == 31) bins.warp_sum[warp()] = upto;
    __syncthreads();
    for (int w = 0; w < warp(); w++) upto += bins.warp_sum[w];
    if (threadIdx.x == kRowThreads - 1) bins.share_sum = upto;
    blocks.sync();
    uint64_t running = above + upto - own;
    for (unsigned r = 0; r < blocks.block_rank(); r++) running += *blocks.map_shared_rank(&bins.share_sum, r);
    const auto below = [&](unsigned bin) { return bin <= last && static_cast<double>(running) < budget; };
    bool is_mine = false;
    Bin mine;
    for (int i = 0; i < each; i++) {
      is_mine |= below(first + i);
      if (below(first + i)) mine = {first + i, running};
      running += sum_of(bins.sum[first + i]);
    }
    if (is_mine && !below(first + each))
      for (unsigned r = 0; r < blocks.num_blocks(); r++) *blocks.map_shared_rank(&bins.found, r) = mine;
    blocks.sync();
    return bins.found;
  }

  // Returns the least key in [from, to] for which the weights of all greater logits add up to less than the budget. The budget is above 0.
  template <class Weight>
  __device__ uint32_t least_key(uint32_t from, uint32_t to, double budget, const Weight &weight) {
    for (uint64_t above = 0;;) {
      const int bits = 32 - __clz(static_cast<int>(to - from)), shift = bits > kBinBits ? bits - kBinBits : 0;
      fill_bins(from, to, shift, weight);
      const Bin found = last_below(budget, above, (to - from) >> shift);
      above = found.above;
      to -= found.number << shift;
      if (shift == 0) return to;
      const uint32_t width = (1u << shift) - 1;
      if (to - from > width) from = to - width;
    }
  }

  __device__ float top_k() {
    return Order<T>::value(least_key(Order<T>::key(-HUGE_VALF), Order<T>::key(max), settings.top_k, [](float) { return uint64_t{1}; }));
  }

  // The least logit that top_p keeps, starting at `least`. The largest possible weight of all tokens below a logit
  // bounds it from below.
  __device__ float top_p(float least) {
    const double kept = least == -HUGE_VALF ? mass() : mass_from(least);
    const auto unit = static_cast<float>(uint64_t{1} << (30 + __clz(vocab)));  // the sum of all is below 2^62
    const auto weight = [&](float x) { return static_cast<uint64_t>(exponential(x, max) * unit); };
    const double budget = settings.top_p * kept * unit, likely = max + (log2((1 - settings.top_p) * kept / vocab) - 0.01) / scale;
    const uint32_t low = Order<T>::key(least), top = Order<T>::key(max),
                   from = likely > least ? Order<T>::key(static_cast<float>(likely)) : low;
    for (uint32_t at = from;; at = low) {
      const uint32_t found = least_key(at, top, budget, weight);
      if (found != at || at == low) return Order<T>::value(found);
    }
  }

  // The least logit that the filters keep.
  __device__ float cut() {
    const mgrpo_sampling &s = settings;
    float least = -HUGE_VALF;
    if (s.top_k > 0 && s.top_k < vocab) least = top_k();
    if (s.top_p > 0 && s.top_p < 1) least = top_p(least);
    if (s.min_p > 0) {
      const double lowest = log(s.min_p);
      least = least_value<T>(least, max, [&](uint32_t key) { return exponent(Order<T>::value(key)) >= lowest; });
    }
    return least;
  }

  // The first chunk in which the running sum of f(chunk) exceeds the threshold, and that sum at its
  // beginning. If rounding leaves the threshold unreached, it is the last chunk that has any, and -Inf.
  template <class F>
  __device__ int chunk_beyond(double threshold, const F &f, double *before) const {
    double mine = 0;
    for (int i = 0; i < kChunksOfLane; i++) mine += f(lane() * kChunksOfLane + i);
    double running = __shfl_up_sync(kAllLanes, warp_scan(mine), 1);
    if (lane() == 0) running = 0;
    int found = -1, last = -1;
    *before = -kInf;
    for (int i = 0; i < kChunksOfLane; i++) {
      const double here = f(lane() * kChunksOfLane + i);
      if (here > 0) last = lane() * kChunksOfLane + i;
      if (here > 0 && found < 0 && running + here > threshold) {
        found = last;
        *before = running;
      }
      running += here;
    }
    const unsigned beyond = __ballot_sync(kAllLanes, found >= 0);
    if (beyond == 0) return __reduce_max_sync(kAllLanes, last);
    *before = __shfl_sync(kAllLanes, *before, __ffs(beyond) - 1);
    return __shfl_sync(kAllLanes, found, __ffs(beyond) - 1);
  }

  // The first token of a chunk at which the running sum of its exponentials, of logits from `least`
  // on, exceeds the threshold. If rounding leaves it unreached, it is the last such token. By a warp.
  __device__ int token_beyond(int c, double threshold, float least) const {
    const T *const part = chunk_at(c);
    const int n = tokens(c);
    const bool is_aligned = aligned(part);
    double below = 0;
    int last = -1;
    for (int begin = 0; begin < n; begin += 32 * kWidth) {
      const int at = begin + lane() * kWidth;
      const Pack<T> p = load_pack(part, at, n, is_aligned);
      float e[kWidth], mine = 0;
#pragma unroll
      for (int i = 0; i < kWidth; i++) {
        const float x = at + i < n ? widen(p.at[i]) : -HUGE_VALF;
        e[i] = x >= least ? exponential(x, shared.chunk[c].max) : 0;
        mine += e[i];
        if (e[i] > 0) last = at + i;
      }
      const double upto = below + warp_scan(mine);
      double running = __shfl_up_sync(kAllLanes, upto, 1);
      if (lane() == 0) running = below;
      const unsigned beyond = __ballot_sync(kAllLanes, mine > 0 && upto > threshold);
      if (beyond != 0) {
        int token = -1;
#pragma unroll
        for (int i = 0; i < kWidth; i++) {
          if (e[i] > 0 && (token < 0 || running <= threshold)) {
            running += e[i];
            token = at + i;
          }
        }
        return c * length + __shfl_sync(kAllLanes, token, __ffs(beyond) - 1);
      }
      below = __shfl_sync(kAllLanes, upto, 31);
    }
    return c * length + __reduce_max_sync(kAllLanes, last);
  }
};

// In [0, 1).
__device__ inline double uniform_of(const mgrpo_sampling &s) {
  return mgrpo_philox_uniform(
      mgrpo_philox(static_cast<uint32_t>(s.position), static_cast<uint32_t>(s.position >> 32), 0, 0, s.key[0], s.key[1]));
}

struct Outputs {
  int32_t *token;
  float *logp, *truncated_logp;
  int64_t *bad_row;

  __device__ void store(int64_t row, int chosen, double lp, double truncated) const {
    token[row] = chosen;
    if (logp) logp[row] = static_cast<float>(lp);
    if (truncated_logp) truncated_logp[row] = static_cast<float>(truncated);
  }
};

template <class T>
__global__ __launch_bounds__(kRowThreads, kResident) void sample_kernel(const T *logits, int64_t rows, int64_t vocab, int64_t ld,
                                                                        const mgrpo_sampling *sampling, Outputs out) {
  __shared__ Shared shared;
  __shared__ Bins bins;
  const unsigned blocks = cluster().num_blocks(), rank = cluster().block_rank();
  for (int64_t r = blockIdx.x / blocks; r < rows; r += gridDim.x / blocks) {
    const mgrpo_sampling &s = sampling[r];
    Row<T> row(logits + r * ld, vocab, s, shared, bins);
    if (!row.readable()) {
      if (rank == 0 && threadIdx.x == 0) {
        report_least(out.bad_row, r);
        out.store(r, -1, NAN, NAN);
      }
      continue;
    }
    const double sum = row.mass();
    double kept = sum;
    float least = -HUGE_VALF;
    if (truncates(s)) {
      least = row.cut();
      kept = row.mass_from(least);
    }
    double threshold = uniform_of(s) * kept, before;
    int c;
    if (s.temperature == 0) {  // the first of the largest alone
      threshold = 0;
      least = row.max;
      c = row.chunk_beyond(0, [&](int i) { return shared.chunk[i].max == row.max ? 1.0 : 0.0; }, &before);
    } else {
      c = row.chunk_beyond(threshold, [&](int i) { return row.mass(i); }, &before);
    }
    if (row.block_of(c) != rank || c % kRowWarps != warp()) continue;
    const int chosen = row.token_beyond(c, (threshold - before) / shared.factor[c], least);
    if (lane() == 0) {
      const double d = row.exponent(widen(row.z[chosen]));
      out.store(r, chosen, d - log(sum), d - log(kept));
    }
  }
}

// As many blocks a row as the multiprocessors hold at once, each with a pack for every thread.
int32_t blocks_of_row(int64_t rows, int64_t packs, int *blocks) {
  int device, multiprocessors, largest;
  MGRPO_TRY(largest_cluster(&largest));
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  for (*blocks = largest; *blocks > 1; *blocks /= 2)
    if (rows * *blocks <= kResident * multiprocessors && *blocks * kRowThreads <= packs) break;
  return MGRPO_OK;
}

template <class T>
int32_t enqueue(const void *logits, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *sampling, const Outputs &out,
                cudaStream_t stream) {
  int blocks;
  MGRPO_TRY(blocks_of_row(rows, vocab / Pack<T>::kWidth, &blocks));
  return launch(sample_kernel<T>, {block_count(rows) * static_cast<unsigned>(blocks), kRowThreads, 0, blocks}, stream,
                static_cast<const T *>(logits), rows, vocab, ld, sampling, out);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

int32_t mgrpo_sample_enqueue_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                  const mgrpo_sampling *sampling, int32_t *token, float *logp_or_null, float *truncated_logp_or_null,
                                  int64_t *bad_row, void *stream) {
  if (rows < 0 || vocab < 1 || vocab > ld || vocab > INT32_MAX) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!logits || !sampling || !token || !bad_row) return MGRPO_INVALID_ARGUMENT;
  const Outputs out{token, logp_or_null, truncated_logp_or_null, bad_row};
  switch (dtype) {
    case MGRPO_FLOAT32:
      return enqueue<float>(logits, rows, vocab, ld, sampling, out, stream_of(stream));
    case MGRPO_BFLOAT16:
      return enqueue<__nv_bfloat16>(logits, rows, vocab, ld, sampling, out, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}

int32_t mgrpo_sample_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const mgrpo_sampling *sampling,
                          int32_t *token, float *logp_or_null, float *truncated_logp_or_null, int64_t *bad_row, void *stream) {
  if (!bad_row) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows < 0 || (rows > 0 && !sampling)) return MGRPO_INVALID_ARGUMENT;
  for (int64_t r = 0; r < rows; r++) {
    if (mgrpo::valid(sampling[r])) continue;
    *bad_row = r;
    return MGRPO_INVALID_ARGUMENT;
  }
  Scratch<mgrpo_sampling> settings(stream_of(stream));
  Scratch<int64_t> bad(stream_of(stream));
  MGRPO_TRY(settings.upload(sampling, rows));
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(mgrpo_sample_enqueue_cuda(logits, dtype, rows, vocab, ld, settings.get(), token, logp_or_null, truncated_logp_or_null,
                                      bad.get(), stream));
  MGRPO_TRY(bad.download(bad_row, 1));
  return *bad_row < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
}
