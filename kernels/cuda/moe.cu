// A mixture of experts. A token's choice is one thread's, since experts are few; sorting counts the same entries twice
// instead of sharing a queue, so that the order is the entries'.
#include "mgrpo/moe.h"
#include "moe_token.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256, kWarp = 32;

__device__ int64_t thread_number() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t thread_total() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

Shape shape_of_items(int64_t items, int threads) { return {block_count((items + threads - 1) / threads), threads}; }

constexpr int kTokenThreads = 64;

__global__ __launch_bounds__(kTokenThreads) void route_kernel(const float *logits, const int32_t *given, int32_t *expert, float *weight,
                                                              int32_t *differs, int64_t tokens, int64_t experts, int64_t k,
                                                              bool normalise) {
  for (int64_t t = thread_number(); t < tokens; t += thread_total()) {
    const int32_t *its = given != nullptr && given[t * k] != kFree ? given + t * k : nullptr;
    int32_t *other = differs != nullptr ? differs + t : nullptr;
    if (its == nullptr || valid_choice(its, experts, k)) {
      route_token(logits + t * experts, its, expert + t * k, weight + t * k, other, experts, k, normalise);
      continue;
    }
    for (int64_t j = 0; j < k; j++) {
      expert[t * k + j] = 0;
      weight[t * k + j] = NAN;
    }
    if (other != nullptr) *other = 1;
  }
}

__global__ __launch_bounds__(kTokenThreads) void route_bwd_kernel(const float *dweight, const float *logits, const int32_t *expert,
                                                                  const float *dprob, float *dlogits, int64_t tokens,
                                                                  int64_t experts, int64_t k, bool normalise) {
  for (int64_t t = thread_number(); t < tokens; t += thread_total())
    route_token_bwd(dweight + t * k, logits + t * experts, expert + t * k, dprob, dlogits + t * experts, experts, k, normalise);
}

// A thread's share of the entries: consecutive ones.
__device__ int64_t share(int64_t entries, int64_t thread) { return entries * thread / kThreads; }

__device__ double count_share(const int32_t *expert, int64_t entries, int32_t e) {
  double count = 0;
  for (int64_t i = share(entries, threadIdx.x); i < share(entries, threadIdx.x + 1); i++) count += expert[i] == e;
  return count;
}

// A block an expert: how many entries it has.
__global__ __launch_bounds__(kThreads) void count_kernel(const int32_t *expert, int32_t *count, int64_t entries, int64_t experts) {
  __shared__ double shared[kThreads];
  for (int64_t e = blockIdx.x; e < experts; e += gridDim.x) {
    const double all = block_sum<kThreads>(count_share(expert, entries, static_cast<int32_t>(e)), shared);
    if (threadIdx.x == 0) count[e] = static_cast<int32_t>(all);
  }
}

// A block an expert: its rows, behind those of the experts before it.
__global__ __launch_bounds__(kThreads) void place_kernel(const int32_t *expert, const int32_t *count, int32_t *first, int32_t *source,
                                                         int32_t *place, int64_t entries, int64_t experts) {
  __shared__ double shared[2 * kThreads];
  for (int64_t e = blockIdx.x; e < experts; e += gridDim.x) {
    double before_it = 0;
    for (int64_t i = threadIdx.x; i < e; i += kThreads) before_it += count[i];
    const double base = block_sum<kThreads>(before_it, shared);
    const double own = count_share(expert, entries, static_cast<int32_t>(e));
    const double *sums = block_scan<kThreads>(own, shared);
    int64_t row = static_cast<int64_t>(base + sums[threadIdx.x] - own);
    __syncthreads();  // the next expert's sums may overwrite these
    for (int64_t i = share(entries, threadIdx.x); i < share(entries, threadIdx.x + 1); i++)
      if (expert[i] == e) {
        source[row] = static_cast<int32_t>(i);
        place[i] = static_cast<int32_t>(row++);
      }
    if (threadIdx.x == 0) {
      first[e] = static_cast<int32_t>(base);
      if (e == experts - 1) first[experts] = static_cast<int32_t>(base) + count[e];
    }
  }
}

// f(row, begin) for each pack of [rows, d], begin the pack's first column.
template <class T, class F>
__device__ void for_each_row_pack(int64_t rows, int64_t d, const F &f) {
  const int64_t packs = packs_of<T>(d);
  for (int64_t i = thread_number(); i < rows * packs; i += thread_total()) f(i / packs, i % packs * Pack<T>::kWidth);
}

template <class T>
__global__ __launch_bounds__(kThreads) void gather_kernel(const T *x, const int32_t *source, T *y, int64_t entries, int64_t k, int64_t d) {
  for_each_row_pack<T>(entries, d, [&](int64_t s, int64_t begin) {
    if (source[s] < 0 || source[s] >= entries) return;
    const T *from = x + source[s] / k * d;
    T *to = y + s * d;
    store_pack(to, load_pack(from, begin, d, aligned(from)), begin, d, aligned(to));
  });
}

template <class T>
__global__ __launch_bounds__(kThreads) void combine_kernel(const T *x, const int32_t *place, const float *weight, T *y, int64_t tokens,
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

// A block a row.
template <class T>
__global__ __launch_bounds__(kThreads) void weigh_kernel(T *g, T *a, const int32_t *source, const float *weight, float *dweight,
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

// The expert whose rows include s: the last whose first row is not behind it.
__device__ int64_t expert_of(const int32_t *first, int64_t experts, int64_t s) {
  int64_t low = 0, high = experts - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (first[middle] <= s) low = middle;
    else high = middle - 1;
  }
  return low;
}

// A block of one warp an output of a row.
template <class T>
__global__ __launch_bounds__(kWarp) void linear_kernel(const T *x, const T *w, const int32_t *first, T *y, int64_t entries,
                                                       int64_t experts, int64_t in, int64_t out) {
  __shared__ float shared[kWarp];
  for (int64_t b = blockIdx.x; b < entries * out; b += gridDim.x) {
    const int64_t s = b / out, j = b % out;
    const T *row = x + s * in, *weights = w + (expert_of(first, experts, s) * out + j) * in;
    const bool weights_aligned = aligned(weights);
    float sum = 0;
    for_each_pack(row, in, [&](int64_t begin, const Pack<T> &p, int count) {
      const Pack<T> v = load_pack(weights, begin, in, weights_aligned);
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++)
        if (i < count) sum = fmaf(widen(p.at[i]), widen(v.at[i]), sum);
    });
    sum = block_sum<kWarp>(sum, shared);
    if (threadIdx.x == 0) narrow(sum, y + b);
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

int32_t mgrpo_moe_route_cuda(const float *logits, const int32_t *given_or_null, int32_t *expert, float *weight,
                             int32_t *differs_or_null, int64_t tokens, int64_t experts, int64_t k, int32_t normalise, void *stream) {
  if (!cuda::valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({logits, expert, weight})) return MGRPO_INVALID_ARGUMENT;
  return launch(route_kernel, shape_of_items(tokens, kTokenThreads), stream_of(stream), logits, given_or_null, expert, weight,
                differs_or_null, tokens, experts, k, normalise != 0);
}

int32_t mgrpo_moe_route_bwd_cuda(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                 float *dlogits, int64_t tokens, int64_t experts, int64_t k, int32_t normalise, void *stream) {
  if (!cuda::valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({dweight, logits, expert, dlogits})) return MGRPO_INVALID_ARGUMENT;
  return launch(route_bwd_kernel, shape_of_items(tokens, kTokenThreads), stream_of(stream), dweight, logits, expert, dprob_or_null,
                dlogits, tokens, experts, k, normalise != 0);
}

int32_t mgrpo_moe_sort_cuda(const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries, int64_t experts,
                            void *stream) {
  if (!valid_sizes({entries}) || !valid_sizes({experts}) || entries > INT32_MAX || experts < 1 || experts >= INT32_MAX || first == nullptr ||
      (entries > 0 && any_null({expert, source, place})))
    return MGRPO_INVALID_ARGUMENT;
  Scratch<int32_t> count(stream_of(stream));
  MGRPO_TRY(count.allocate(experts));
  const Shape shape{block_count(experts), kThreads};
  MGRPO_TRY(launch(count_kernel, shape, stream_of(stream), expert, count.get(), entries, experts));
  return launch(place_kernel, shape, stream_of(stream), expert, count.get(), first, source, place, entries, experts);
}

int32_t mgrpo_moe_gather_cuda(const void *x, const int32_t *source, int32_t dtype, void *y, int64_t tokens, int64_t k, int64_t d,
                              void *stream) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  const int64_t entries = tokens * k;
  if (entries == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, source, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(gather_kernel<T>, shape_of_items(entries * packs_of<T>(d), kThreads), stream_of(stream), static_cast<const T *>(x), source,
                  static_cast<T *>(y), entries, k, d);
  });
}

int32_t mgrpo_moe_linear_cuda(const void *x, const void *w, const int32_t *first, int32_t dtype, void *y, int64_t entries,
                              int64_t experts, int64_t in, int64_t out, void *stream) {
  if (!valid_sizes({entries, in, out}) || !valid_sizes({entries, out}) || !valid_sizes({experts, in, out}) || experts < 1 || first == nullptr)
    return MGRPO_INVALID_ARGUMENT;
  if (entries == 0 || out == 0) return MGRPO_OK;
  if (y == nullptr || (in > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(linear_kernel<T>, Shape{block_count(entries * out), kWarp}, stream_of(stream), static_cast<const T *>(x),
                  static_cast<const T *>(w), first, static_cast<T *>(y), entries, experts, in, out);
  });
}

int32_t mgrpo_moe_combine_cuda(const void *x, const int32_t *place, const float *weight_or_null, int32_t dtype, void *y, int64_t tokens,
                               int64_t k, int64_t d, void *stream) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, place, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(combine_kernel<T>, shape_of_items(tokens * packs_of<T>(d), kThreads), stream_of(stream), static_cast<const T *>(x), place,
                  weight_or_null, static_cast<T *>(y), tokens, k, d);
  });
}

int32_t mgrpo_moe_weigh_cuda(void *g, void *a, const int32_t *source, const float *weight, int32_t dtype, float *dweight,
                             int64_t entries, int64_t d, void *stream) {
  if (!valid_sizes({entries, d}) || entries > INT32_MAX) return MGRPO_INVALID_ARGUMENT;
  if (entries == 0) return MGRPO_OK;
  if (any_null({source, weight, dweight}) || (d > 0 && any_null({g, a}))) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return launch(weigh_kernel<T>, Shape{block_count(entries), kThreads}, stream_of(stream), static_cast<T *>(g), static_cast<T *>(a), source,
                  weight, dweight, entries, d);
  });
}
