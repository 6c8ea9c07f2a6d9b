// Sampling of tokens.
//
// A row is divided into 128 chunks of consecutive tokens, and up to eight blocks share it. A warp sums the exponentials of a chunk in
// float32, relative to the maximum logit of the chunk. Then every warp sums the chunks in float64, in the same order. So the number of
// blocks changes no bit.
//
// Without filters a row is read once, and only the chunk in which the running sum passes the random threshold is read again. Each filter
// becomes a minimum logit. A search over the logit's bits finds it: each pass is a histogram of 4,096 bins of weights, and the next pass
// refines the bin that contains the threshold. Weights are integers, so the order in which threads add them does not matter. For float32
// two or three passes are enough, and each reads only chunks with logits in the range.
#include "cluster.cuh"
#include "device.h"
#include "mgrpo/sample.h"
#include "nonfinite.h"
#include "sampling_filter.h"
#include "softmax_row.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kChunks = 128, kChunksOfLane = kChunks / kWarp;
constexpr int kResident = 2;  // blocks on a multiprocessor at a time
constexpr int kBinBits = 12, kBins = 1 << kBinBits;
static_assert(kChunks % (kMaxCluster * kRowWarps) == 0, "every warp has equally many chunks");

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, by));
  return x;
}
// Returns inclusive prefix sums over the lanes.
__device__ inline double warp_scan(double x) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const double before = __shfl_up_sync(kAllLanes, x, by);
    if (lane() >= by) x += before;
  }
  return x;
}

// Starts to load a line of global memory to the L2 cache.
__device__ inline void prefetch(const void *at) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  (void)at;
#endif
}

// Maps values of T other than NaN to integers in the same order, so that a filter's cut is found by bits instead of by sorting.
template <class T>
struct Order {
  static constexpr int kUnused = 32 - 8 * sizeof(T);  // the number of lower bits of a float that are 0 for values of T

  __device__ static uint32_t key(float z) {
    const uint32_t bits = __float_as_uint(z + 0.0f);  // -0 becomes +0
    return (bits & 0x80000000u ? ~bits : bits | 0x80000000u) >> kUnused;
  }
  __device__ static float value(uint32_t key) {
    const uint32_t bits = key << kUnused;
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7FFFFFFFu : ~bits & ~0u << kUnused);
  }
};

// Returns the smallest value of T in [low, high] for which holds(key) is true. holds must be monotone, and true for high.
template <class T, class Holds>
__device__ inline float min_value(float low, float high, const Holds &holds) {
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

// The result of a warp for a chunk.
struct Chunk {
  float max;  // its largest logit
  float sum;  // the sum of the pass's terms over its tokens; NaN if a logit is NaN or +Inf
};

// The bin in which a pass continues, and the sum of all bins above it.
struct Bin {
  unsigned number;
  uint64_t above;
};

struct Shared {
  Chunk own[kChunks];      // the results of this block's warps, which the cluster reads
  Chunk chunk[kChunks];    // the results of all blocks
  double factor[kChunks];  // exp((the chunk's max - the row's) / tau)
};

struct Bins {
  uint2 sum[kBins];  // lower and upper halves of the sums of this block; then, in its share of the bins, of all blocks
  uint64_t warp_sum[kRowWarps], share_sum;
  Bin found;
};

// A row of logits and the settings of its draw. All threads of all blocks of the row call the methods, except those that only a warp calls.
template <class T>
struct Row {
  static constexpr int kWidth = Pack<T>::kWidth;
  const T *z;
  int vocab, length;  // the number of logits of the row and of a chunk
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
    prefetch_chunk(static_cast<int>(cluster().block_rank() * kRowWarps) + warp());
    for_own_chunks([&](int c) {
      prefetch_chunk(c + static_cast<int>(cluster().num_blocks()) * kRowWarps);
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

  // Returns the number of tokens of a chunk: at least one pack for each lane, and enough for kChunks chunks to cover the row.
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
  __device__ float exponential(float x, float chunk_max) const { return exp2_of(clamp_min_exponent((x - chunk_max) * scale)); }
  __device__ double mass(int c) const { return shared.chunk[c].sum * shared.factor[c]; }

  // Computes every chunk: one warp calls f(chunk). Every block receives all results.
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
    blocks.sync();  // waits until all blocks have read the results, before a block overwrites its own or ends
  }
  __device__ static unsigned block_of(unsigned c) { return c / kRowWarps & (cluster().num_blocks() - 1); }

  // Calls g(token, pack, count) for the lane's packs of a chunk. Tokens are counted from the first one of the chunk.
  template <class G>
  __device__ void for_each_of(int c, const G &g) const {
    for_each_pack_ahead(chunk_at(c), tokens(c), lane(), 32, g);
  }

  // Prefetches chunk c to the L2 cache if there is such a chunk. Without it only a few loads of a chunk would be in progress at a time. A
  // warp calls it.
  __device__ void prefetch_chunk(int c) const {
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
    const float chunk_max = warp_max(mine.max);
    mine.rescale(chunk_max, scale);
    return {chunk_max, lanes_sum<kWarp>(mine.unreadable ? NAN : mine.sum)};
  }

  // Sets the sum of every chunk to the sum of the exponentials of its logits >= min_logit.
  __device__ void add_up(float min_logit) {
    for_own_chunks([&](int c) {
      const float chunk_max = shared.chunk[c].max;
      if (chunk_max < min_logit || chunk_max == -HUGE_VALF) return Chunk{chunk_max, 0};
      float mine = 0;
      for_each_of(c, [&](int64_t, const Pack<T> &p, int count) {
#pragma unroll
        for (int i = 0; i < kWidth; i++) {
          const float x = i < count ? widen(p.at[i]) : -HUGE_VALF;
          mine += x >= min_logit ? exponential(x, chunk_max) : 0;
        }
      });
      return Chunk{chunk_max, lanes_sum<kWarp>(mine)};
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
  __device__ double mass_from(float min_logit) {
    add_up(min_logit);
    return mass();
  }

  // Adds a weight to a bin with two additions of 32 bits, because a GPU has an instruction for those in shared memory.
  __device__ void add_to_bin(unsigned bin, uint64_t weight) {
    const auto low = static_cast<unsigned>(weight);
    const unsigned old = atomicAdd(&bins.sum[bin].x, low), high = static_cast<unsigned>(weight >> 32) + (old + low < old);
    if (high != 0) atomicAdd(&bins.sum[bin].y, high);
  }
  __device__ static uint64_t sum_of(uint2 bin) { return static_cast<uint64_t>(bin.y) << 32 | bin.x; }

  // Adds up weight(logit) by bin, for keys in [from, to]. Bin 0 has the largest keys. Afterwards each block has the sums of all blocks for
  // its share of the bins.
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
          const uint32_t key = begin + i < n ? Order<T>::key(widen(p.at[i])) : 0;  // 0 is not the key of a number
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

  // Returns, to every thread of every block, the last of the bins 0 to `last` for which the sum of all bins above it is less than the
  // budget. `above` is the sum of the weights above bin 0.
  __device__ Bin last_bin_below(double budget, uint64_t above, unsigned last) {
    auto blocks = cluster();
    const int share = kBins / static_cast<int>(blocks.num_blocks()), each = share / kRowThreads;
    const unsigned first = blocks.block_rank() * share + threadIdx.x * each;
    uint64_t own = 0;
    for (int i = 0; i < each; i++) own += sum_of(bins.sum[first + i]);
    uint64_t prefix = own;  // inclusive prefix sums over the lanes of the warp
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const uint64_t before = __shfl_up_sync(kAllLanes, prefix, by);
      if (lane() >= by) prefix += before;
    }
    if (lane() == 31) bins.warp_sum[warp()] = prefix;
    __syncthreads();
    for (int w = 0; w < warp(); w++) prefix += bins.warp_sum[w];
    if (threadIdx.x == kRowThreads - 1) bins.share_sum = prefix;
    blocks.sync();
    uint64_t running = above + prefix - own;
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

  // Returns the smallest key in [from, to] for which the weights of all greater logits add up to less than the budget. The budget must be
  // above 0.
  template <class Weight>
  __device__ uint32_t min_key(uint32_t from, uint32_t to, double budget, const Weight &weight) {
    for (uint64_t above = 0;;) {
      const int bits = 32 - __clz(static_cast<int>(to - from)), shift = bits > kBinBits ? bits - kBinBits : 0;
      fill_bins(from, to, shift, weight);
      const Bin found = last_bin_below(budget, above, (to - from) >> shift);
      above = found.above;
      to -= found.number << shift;
      if (shift == 0) return to;
      const uint32_t width = (1u << shift) - 1;
      if (to - from > width) from = to - width;
    }
  }

  __device__ float top_k() {
    return Order<T>::value(min_key(Order<T>::key(-HUGE_VALF), Order<T>::key(max), settings.top_k, [](float) { return uint64_t{1}; }));
  }

  // Returns the smallest logit that top_p keeps, at least min_logit. Most rows need only the keys from lower_bound on: all tokens below
  // lower_bound together have less weight than top_p discards.
  __device__ float top_p(float min_logit) {
    const double kept = min_logit == -HUGE_VALF ? mass() : mass_from(min_logit);
    const auto unit = static_cast<float>(uint64_t{1} << (30 + __clz(vocab)));  // so that the sum of all weights is below 2^62
    const auto weight = [&](float x) { return static_cast<uint64_t>(exponential(x, max) * unit); };
    const double budget = settings.top_p * kept * unit, lower_bound = max + (log2((1 - settings.top_p) * kept / vocab) - 0.01) / scale;
    const uint32_t low = Order<T>::key(min_logit), top = Order<T>::key(max),
                   from = lower_bound > min_logit ? Order<T>::key(static_cast<float>(lower_bound)) : low;
    for (uint32_t at = from;; at = low) {
      const uint32_t found = min_key(at, top, budget, weight);
      if (found != at || at == low) return Order<T>::value(found);
    }
  }

  // Returns the smallest logit that the filters keep.
  __device__ float cut() {
    const mgrpo_sampling &s = settings;
    float min_logit = -HUGE_VALF;
    if (s.top_k > 0 && s.top_k < vocab) min_logit = top_k();
    if (s.top_p > 0 && s.top_p < 1) min_logit = top_p(min_logit);
    if (s.min_p > 0) {
      const double lowest = log(s.min_p);
      min_logit = min_value<T>(min_logit, max, [&](uint32_t key) { return exponent(Order<T>::value(key)) >= lowest; });
    }
    return min_logit;
  }

  // Returns the first chunk in which the running sum of f(chunk) exceeds the threshold. *before is the running sum at its beginning. If
  // rounding prevents the sum from exceeding the threshold, returns the last chunk with f(chunk) > 0, and *before is -Inf.
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

  // Returns the first token of a chunk at which the running sum of exponentials of logits >= min_logit exceeds the threshold. If rounding
  // prevents that, returns the last such token. A warp calls it.
  __device__ int token_beyond(int c, double threshold, float min_logit) const {
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
        e[i] = x >= min_logit ? exponential(x, shared.chunk[c].max) : 0;
        mine += e[i];
        if (e[i] > 0) last = at + i;
      }
      const double prefix = below + warp_scan(mine);
      double running = __shfl_up_sync(kAllLanes, prefix, 1);
      if (lane() == 0) running = below;
      const unsigned beyond = __ballot_sync(kAllLanes, mine > 0 && prefix > threshold);
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
      below = __shfl_sync(kAllLanes, prefix, 31);
    }
    return c * length + __reduce_max_sync(kAllLanes, last);
  }
};

// Returns the random number of a draw, in [0, 1).
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
        report_min(out.bad_row, r);
        out.store(r, -1, NAN, NAN);
      }
      continue;
    }
    const double sum = row.mass();
    double kept = sum;
    float min_logit = -HUGE_VALF;
    if (truncates(s)) {
      min_logit = row.cut();
      kept = row.mass_from(min_logit);
    }
    double threshold = uniform_of(s) * kept, before;
    int c;
    if (s.temperature == 0) {  // the first token with the largest logit
      threshold = 0;
      min_logit = row.max;
      c = row.chunk_beyond(0, [&](int i) { return shared.chunk[i].max == row.max ? 1.0 : 0.0; }, &before);
    } else {
      c = row.chunk_beyond(threshold, [&](int i) { return row.mass(i); }, &before);
    }
    if (row.block_of(c) != rank || c % kRowWarps != warp()) continue;
    const int chosen = row.token_beyond(c, (threshold - before) / shared.factor[c], min_logit);
    if (lane() == 0) {
      const double d = row.exponent(widen(row.z[chosen]));
      out.store(r, chosen, d - log(sum), d - log(kept));
    }
  }
}

// Sets *blocks to the largest number of blocks per row for which the GPU can run the blocks of all rows at once, and each thread has a
// pack.
int32_t blocks_of_row(int64_t rows, int64_t packs, int *blocks) {
  int device, multiprocessors, largest;
  MGRPO_TRY(max_cluster_blocks(&largest));
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
