// A mixture of experts. A model has few experts, so one thread chooses the experts of a token. The entries are sorted by a counting sort.
// Warps first count the experts in runs of entries. Then they place the entries of each run after the entries of earlier runs. So the order
// of the entries of an expert is kept.
#include "layers.cuh"
#include "mgrpo/moe.h"
#include "moe_token.h"
#include "vector.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t thread_number() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t thread_total() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

Shape shape_of_items(int64_t items, int threads) { return {block_count((items + threads - 1) / threads), threads}; }

constexpr int kTokenThreads = 64;

__global__ __launch_bounds__(kTokenThreads) void moe_route_kernel(const float *logits, const int32_t *given, int32_t *expert, float *weight,
                                                                  int32_t *differs, int64_t tokens, int64_t experts, int64_t k,
                                                                  bool normalise) {
  for (int64_t t = thread_number(); t < tokens; t += thread_total()) {
    const int32_t *choice = given != nullptr && given[t * k] != kFree ? given + t * k : nullptr;
    int32_t *other = differs != nullptr ? differs + t : nullptr;
    if (choice == nullptr || valid_choice(choice, experts, k)) {
      route_token(logits + t * experts, choice, expert + t * k, weight + t * k, other, experts, k, normalise);
      continue;
    }
    for (int64_t j = 0; j < k; j++) {
      expert[t * k + j] = 0;
      weight[t * k + j] = NAN;
    }
    if (other != nullptr) *other = 1;
  }
}

__global__ __launch_bounds__(kTokenThreads) void moe_route_bwd_kernel(const float *dweight, const float *logits, const int32_t *expert,
                                                                      const float *dprob, float *dlogits, int64_t tokens, int64_t experts,
                                                                      int64_t k, bool normalise) {
  for (int64_t t = thread_number(); t < tokens; t += thread_total())
    route_token_bwd(dweight + t * k, logits + t * experts, expert + t * k, dprob, dlogits + t * experts, experts, k, normalise);
}

// Divides entries into runs. A warp counts or places the entries of one run for up to kTile experts at a time. counts [experts, runs] first
// holds the number of entries, and after moe_scan_kernel the row of the first entry of an expert in a run.
struct Sort {
  static constexpr int kTile = 1024;
  const int32_t *expert;
  int32_t *counts;
  int64_t entries, experts, runs;

  __host__ __device__ int64_t tiles() const { return (experts + kTile - 1) / kTile; }
  __device__ int64_t first_of(int64_t run) const { return entries * run / runs; }
  // Calls f(run, first expert, number of experts) for this block's tiles of experts.
  template <class F>
  __device__ void for_each_tile(const F &f) const {
    for (int64_t b = blockIdx.x; b < runs * tiles(); b += gridDim.x) {
      const int64_t base = b / runs * kTile;
      f(b % runs, base, static_cast<int>(min(experts - base, int64_t{kTile})));
    }
  }
};

Sort sort_of(const int32_t *expert, int64_t entries, int64_t experts) {
  constexpr int64_t kMinRunEntries = 256, kMaxRuns = 128, kMaxCounts = 1 << 24;
  const int64_t max_runs = min(kMaxRuns, max(kMaxCounts / experts, int64_t{1}));
  return {expert, nullptr, entries, experts, max(min((entries + kMinRunEntries - 1) / kMinRunEntries, max_runs), int64_t{1})};
}

__global__ __launch_bounds__(kWarp) void moe_count_kernel(Sort in) {
  __shared__ int32_t count[Sort::kTile];
  in.for_each_tile([&](int64_t run, int64_t base, int experts) {
    for (int e = threadIdx.x; e < experts; e += kWarp) count[e] = 0;
    __syncwarp();
    for (int64_t i = in.first_of(run) + threadIdx.x; i < in.first_of(run + 1); i += kWarp) {
      const int64_t e = in.expert[i] - base;
      if (e >= 0 && e < experts) atomicAdd(&count[e], 1);
    }
    __syncwarp();
    for (int e = threadIdx.x; e < experts; e += kWarp) in.counts[(base + e) * in.runs + run] = count[e];
    __syncwarp();  // the next tile sets the counts to 0
  });
}

constexpr int kScanThreads = 1024;

// Replaces each count by the sum of all counts before it, in the order of experts and then of runs. There is one block.
__global__ __launch_bounds__(kScanThreads) void moe_scan_kernel(Sort in, int32_t *first) {
  __shared__ double shared[2 * kScanThreads];
  const int64_t n = in.experts * in.runs, begin = n * threadIdx.x / kScanThreads, end = n * (threadIdx.x + 1) / kScanThreads;
  int32_t own = 0;
  for (int64_t i = begin; i < end; i++) own += in.counts[i];
  const double *sums = block_scan<kScanThreads>(own, shared);
  int32_t before = static_cast<int32_t>(sums[threadIdx.x]) - own;
  for (int64_t i = begin; i < end; i++) {
    const int32_t count = in.counts[i];
    in.counts[i] = before;
    before += count;
  }
  if (threadIdx.x == kScanThreads - 1) first[in.experts] = before;
}

__global__ __launch_bounds__(kWarp) void moe_place_kernel(Sort in, int32_t *first, int32_t *source, int32_t *place) {
  __shared__ int32_t next[Sort::kTile];
  in.for_each_tile([&](int64_t run, int64_t base, int experts) {
    for (int e = threadIdx.x; e < experts; e += kWarp) {
      next[e] = in.counts[(base + e) * in.runs + run];
      if (run == 0) first[base + e] = next[e];
    }
    __syncwarp();
    for (int64_t from = in.first_of(run), end = in.first_of(run + 1); from < end; from += kWarp) {
      const int64_t i = from + threadIdx.x, other = i < end ? in.expert[i] - base : -1;
      const int e = other >= 0 && other < experts ? static_cast<int>(other) : -1;
      const unsigned same = __match_any_sync(kAllLanes, e), before = same & ((1u << threadIdx.x) - 1);
      const int32_t row = e < 0 ? 0 : next[e] + __popc(before);
      if (e >= 0) {
        source[row] = static_cast<int32_t>(i);
        place[i] = row;
      }
      __syncwarp();  // waits until all lanes have read next[e]
      if (e >= 0 && before == 0) next[e] = row + __popc(same);
      __syncwarp();
    }
  });
}

// Calls f(row, begin) for the thread's packs of [rows, d]. begin is the first column of the pack.
template <class T, class F>
__device__ void for_each_row_pack(int64_t rows, int64_t d, const F &f) {
  const int64_t packs = packs_of<T>(d);
  for (int64_t i = thread_number(); i < rows * packs; i += thread_total()) f(i / packs, i % packs * Pack<T>::kWidth);
}

template <class T>
__global__ __launch_bounds__(kThreads) void moe_gather_kernel(const T *x, const int32_t *source, T *y, int64_t entries, int64_t k,
                                                              int64_t d) {
  for_each_row_pack<T>(entries, d, [&](int64_t s, int64_t begin) {
    if (source[s] < 0 || source[s] >= entries) return;
    const T *from = x + source[s] / k * d;
    T *to = y + s * d;
    store_pack(to, load_pack(from, begin, d, aligned(from)), begin, d, aligned(to));
  });
}

template <class T>
__global__ __launch_bounds__(kThreads) void moe_combine_kernel(const T *x, const int32_t *place, const float *weight, T *y, int64_t tokens,
                                                               int64_t k, int64_t d) {
  constexpr int kWidth = Pack<T>::kWidth;
  for_each_row_pack<T>(tokens, d, [&](int64_t t, int64_t begin) {
    float sum[kWidth] = {};
    for (int64_t j = 0; j < k; j++) {
      const int64_t s = place[t * k + j];
      if (s < 0 || s >= tokens * k) continue;
      const T *row = x + s * d;
      const Pack<T> p = load_pack(row, begin, d, aligned(row));
      const float w = weight != nullptr ? weight[t * k + j] : 1;
#pragma unroll
      for (int i = 0; i < kWidth; i++)
        if (begin + i < d) sum[i] = fmaf(w, widen(p.at[i]), sum[i]);
    }
    Pack<T> out;
#pragma unroll
    for (int i = 0; i < kWidth; i++) narrow(sum[i], &out.at[i]);
    T *to = y + t * d;
    store_pack(to, out, begin, d, aligned(to));
  });
}

// One block computes a row.
template <class T>
__global__ __launch_bounds__(kThreads) void moe_weigh_kernel(T *g, T *a, const int32_t *source, const float *weight, float *dweight,
                                                             int64_t entries, int64_t d) {
  __shared__ float shared[kThreads];
  for (int64_t s = blockIdx.x; s < entries; s += gridDim.x) {
    const int64_t entry = source[s];
    if (entry < 0 || entry >= entries) continue;
    const float w = weight[entry];
    T *gradients = g + s * d, *values = a + s * d;
    const bool values_aligned = aligned(values), gradients_aligned = aligned(gradients);
    float product = 0;
    for_each_pack(gradients, d, [&](int64_t begin, Pack<T> p, int count) {
      Pack<T> v = load_pack(values, begin, d, values_aligned);
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++) {
        if (i >= count) break;
        product = fmaf(widen(p.at[i]), widen(v.at[i]), product);
        narrow(w * widen(p.at[i]), &p.at[i]);
        narrow(w * widen(v.at[i]), &v.at[i]);
      }
      store_pack(gradients, p, begin, d, gradients_aligned);
      store_pack(values, v, begin, d, values_aligned);
    });
    product = block_sum<kThreads>(product, shared);
    if (threadIdx.x == 0) dweight[entry] = product;
  }
}

constexpr int kOutputs = 4, kWarps = kThreads / kWarp;  // kOutputs: outputs of a warp, each with its row of weights

// Computes y [rows, outputs] = x w^T with one warp, for at most kRows rows and kOutputs outputs. x and y point to the first of these rows.
template <int kRows, bool kWhole, class T>
__device__ void multiply(const T *x, const T *w, T *y, int rows, int outputs, int64_t in, int64_t out) {
  constexpr int kSums = kRows * kOutputs, kLanes = kWarp / kSums;
  const int lane = threadIdx.x % kWarp, i = lane / kLanes / kOutputs, j = lane / kLanes % kOutputs;
  float sums[kSums] = {};
  for (int64_t c = lane * kVector; c < in; c += kWarp * kVector) {
    float weights[kOutputs][kVector], v[kVector];
#pragma unroll
    for (int o = 0; o < kOutputs; o++) load_vector<kWhole>(w + min(o, outputs - 1) * in, c, in, weights[o]);
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      load_vector<kWhole>(x + min(r, rows - 1) * in, c, in, v);
#pragma unroll
      for (int e = 0; e < kVector; e++)
#pragma unroll
        for (int o = 0; o < kOutputs; o++) sums[r * kOutputs + o] = fmaf(weights[o][e], v[e], sums[r * kOutputs + o]);
    }
  }
  const float sum = lanes_sums(sums);
  if (lane % kLanes == 0 && i < rows && j < outputs) narrow(sum, y + i * out + j);
}

// A warp reads its rows of weights once for several rows of x. For the next rows of the same expert it reads them from the L1 cache.
template <class T, bool kWhole>
__global__ __launch_bounds__(kThreads, 2) void moe_linear_kernel(const T *x, const T *w, const int32_t *first, T *y, int64_t entries,
                                                                 int64_t experts, int64_t in, int64_t out) {
  constexpr int kFew = 4, kMany = kWhole && sizeof(T) == 2 ? 8 : kFew;  // kMany is limited by the number of registers
  const int64_t groups = (out + kWarps * kOutputs - 1) / (kWarps * kOutputs);
  for (int64_t b = blockIdx.x; b < experts * groups; b += gridDim.x) {
    const int64_t e = b / groups, from = (b % groups * kWarps + threadIdx.x / kWarp) * kOutputs;
    if (from >= out) continue;
    const int64_t begin = e == 0 ? 0 : max(first[e], 0),
                  end = e == experts - 1 ? entries : min(static_cast<int64_t>(first[e + 1]), entries);
    const int outputs = static_cast<int>(min(out - from, int64_t{kOutputs}));
    for (int64_t s = begin; s < end; s += kMany) {
      const T *own = x + s * in, *weights = w + (e * out + from) * in;
      T *to = y + s * out + from;
      const int rows = static_cast<int>(min(end - s, int64_t{kMany}));
      if (rows > kFew)
        multiply<kMany, kWhole>(own, weights, to, rows, outputs, in, out);
      else
        multiply<kFew, kWhole>(own, weights, to, rows, outputs, in, out);
    }
  }
}

bool valid_shape(int64_t tokens, int64_t experts, int64_t k) {
  return valid_sizes({tokens, experts}) && valid_sizes({tokens, k}) && k >= 1 && k <= experts && k <= MGRPO_MOE_MOST_CHOSEN &&
         tokens * k <= INT32_MAX && experts < INT32_MAX;
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_moe_route_cuda(const float *logits, const int32_t *given_or_null, int32_t *expert, float *weight, int32_t *differs_or_null,
                             int64_t tokens, int64_t experts, int64_t k, int32_t normalise, void *stream) {
  if (!cuda::valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({logits, expert, weight})) return MGRPO_INVALID_ARGUMENT;
  return launch(moe_route_kernel, shape_of_items(tokens, kTokenThreads), stream_of(stream), logits, given_or_null, expert, weight,
                differs_or_null, tokens, experts, k, normalise != 0);
}

int32_t mgrpo_moe_route_bwd_cuda(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                 float *dlogits, int64_t tokens, int64_t experts, int64_t k, int32_t normalise, void *stream) {
  if (!cuda::valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({dweight, logits, expert, dlogits})) return MGRPO_INVALID_ARGUMENT;
  return launch(moe_route_bwd_kernel, shape_of_items(tokens, kTokenThreads), stream_of(stream), dweight, logits, expert, dprob_or_null,
                dlogits, tokens, experts, k, normalise != 0);
}

int32_t mgrpo_moe_sort_cuda(const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries, int64_t experts,
                            void *stream) {
  if (!valid_sizes({entries}) || !valid_sizes({experts}) || entries > INT32_MAX || experts < 1 || experts >= INT32_MAX ||
      first == nullptr || (entries > 0 && any_null({expert, source, place})))
    return MGRPO_INVALID_ARGUMENT;
  Sort sort = sort_of(expert, entries, experts);
  Scratch<int32_t> counts(stream_of(stream));
  MGRPO_TRY(counts.allocate(experts * sort.runs));
  sort.counts = counts.get();
  const Shape shape{block_count(sort.runs * sort.tiles()), kWarp};
  MGRPO_TRY(launch(moe_count_kernel, shape, stream_of(stream), sort));
  MGRPO_TRY(launch(moe_scan_kernel, {1, kScanThreads}, stream_of(stream), sort, first));
  return launch(moe_place_kernel, shape, stream_of(stream), sort, first, source, place);
}

int32_t mgrpo_moe_gather_cuda(const void *x, const int32_t *source, int32_t dtype, void *y, int64_t tokens, int64_t k, int64_t d,
                              void *stream) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  const int64_t entries = tokens * k;
  if (entries == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, source, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(moe_gather_kernel<T>, shape_of_items(entries * packs_of<T>(d), kThreads), stream_of(stream), static_cast<const T *>(x),
                  source, static_cast<T *>(y), entries, k, d);
  });
}

int32_t mgrpo_moe_linear_cuda(const void *x, const void *w, const int32_t *first, int32_t dtype, void *y, int64_t entries, int64_t experts,
                              int64_t in, int64_t out, void *stream) {
  if (!valid_sizes({entries, in, out}) || !valid_sizes({entries, out}) || !valid_sizes({experts, in, out}) || experts < 1 ||
      first == nullptr)
    return MGRPO_INVALID_ARGUMENT;
  if (entries == 0 || out == 0) return MGRPO_OK;
  if (y == nullptr || (in > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool whole = whole_packs<T>(in, {x, w}) && in % kVector == 0;
    return launch(whole ? moe_linear_kernel<T, true> : moe_linear_kernel<T, false>,
                  Shape{block_count(experts * ((out + kWarps * kOutputs - 1) / (kWarps * kOutputs))), kThreads}, stream_of(stream),
                  static_cast<const T *>(x), static_cast<const T *>(w), first, static_cast<T *>(y), entries, experts, in, out);
  });
}

int32_t mgrpo_moe_combine_cuda(const void *x, const int32_t *place, const float *weight_or_null, int32_t dtype, void *y, int64_t tokens,
                               int64_t k, int64_t d, void *stream) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, place, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(moe_combine_kernel<T>, shape_of_items(tokens * packs_of<T>(d), kThreads), stream_of(stream), static_cast<const T *>(x),
                  place, weight_or_null, static_cast<T *>(y), tokens, k, d);
  });
}

int32_t mgrpo_moe_weigh_cuda(void *g, void *a, const int32_t *source, const float *weight, int32_t dtype, float *dweight, int64_t entries,
                             int64_t d, void *stream) {
  if (!valid_sizes({entries, d}) || entries > INT32_MAX) return MGRPO_INVALID_ARGUMENT;
  if (entries == 0) return MGRPO_OK;
  if (any_null({source, weight, dweight}) || (d > 0 && any_null({g, a}))) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(moe_weigh_kernel<T>, Shape{block_count(entries), kThreads}, stream_of(stream), static_cast<T *>(g), static_cast<T *>(a),
                  source, weight, dweight, entries, d);
  });
}
