// Decode attention: a block takes the query heads of one key/value head of a row, up to eight of them, over a part of
// the keys the row sees, so that a key is read once for all of them and a few rows fill a GPU. The lanes of a group
// share a key, each with 16 bytes of it; the groups of a block take keys in turn, each with a running softmax of its
// own. Groups are merged in their order, and then the parts of a row in theirs. Where a row is cut depends on
// how many keys it sees alone.
#include "mgrpo/nn.h"
#include "pages.cuh"

#include <cfloat>

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxHeadDim = 256, kLeastPart = 128;
constexpr int kMostParts = 64;
constexpr int64_t kScratchBytes = 64 << 20;  // rows beyond it take another launch
constexpr float kFloor = -FLT_MAX;  // below every score but -Inf, whose exponential is 0 then

// Into how many parts a row that sees `keys` keys is cut.
__host__ __device__ inline int parts_of(int64_t keys) {
  const int64_t parts = (keys + kLeastPart - 1) / kLeastPart;
  return parts < 1 ? 1 : parts < kMostParts ? static_cast<int>(parts) : kMostParts;
}

template <class T>
struct Attention {
  const T *q, *k, *v;
  Pages pages;
  const int32_t *sequence, *length;
  T *out;
  float *partial;  // [rows, heads, parts, hd + 2]: weighted values, maximum, sum; of rows with more than one part
  int64_t rows, heads, kv_heads, hd;
  int parts;     // of the longest row there can be
  float scale;  // of a score, times log2 e
  int64_t window;  // 0: all keys

  __device__ bool known(int64_t row) const {
    return sequence[row] >= 0 && sequence[row] < pages.sequences && length[row] >= 0 && length[row] <= pages.longest();
  }
  // The number of keys that a known row sees: the last of its length.
  __device__ int64_t seen(int64_t row) const {
    const int64_t n = length[row];
    return window > 0 && window < n ? window : n;
  }
  __device__ float *partial_of(int64_t row, int64_t head, int part) const {
    return partial + ((row * heads + head) * parts + part) * (hd + 2);
  }
};

// The lane's elements of row [n], 0 beyond it; lane l of kLanes has the packs l, l + kLanes...
template <class T, int kLanes, int kWide>
__device__ void load_share(const T *row, int lane, int64_t n, float (&to)[kWide]) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(row);
#pragma unroll
  for (int at = 0; at < kWide; at += kWidth) {
    const int64_t begin = static_cast<int64_t>(at) * kLanes + lane * kWidth;
    const Pack<T> p = load_pack(row, begin, n, is_aligned);
#pragma unroll
    for (int i = 0; i < kWidth; i++) to[at + i] = begin + i < n ? widen(p.at[i]) : 0.0f;
  }
}

// A running softmax-weighted sum of values: the largest score, the sum of exponentials and a lane's share of values.
template <int kWide>
struct Running {
  float max = kFloor, sum = 0, values[kWide] = {};
};

template <class T, int kLanes, int kPacks, int kHeads>
__global__ __launch_bounds__(kThreads) void attend_kernel(Attention<T> in) {
  constexpr int kWide = kPacks * Pack<T>::kWidth, kGroups = kThreads / kLanes;
  constexpr int kKeys = 16 / kHeads;  // keys that a group reads before it updates its maximum
  __shared__ float group_max[kHeads][kGroups], group_sum[kHeads][kGroups], group_values[kGroups][kLanes * kWide];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int64_t per_kv = in.heads / in.kv_heads, tiles = (per_kv + kHeads - 1) / kHeads;
  const int64_t blocks = in.rows * in.kv_heads * tiles * in.parts;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int part = static_cast<int>(b % in.parts);
    const int64_t tile = b / in.parts % tiles, kv_head = b / in.parts / tiles % in.kv_heads, row = b / in.parts / tiles / in.kv_heads;
    const int64_t first_head = kv_head * per_kv + tile * kHeads;
    const int heads = static_cast<int>(min(static_cast<int64_t>(kHeads), per_kv - tile * kHeads));
    const bool known = in.known(row);
    const int64_t seen = known ? in.seen(row) : 0;
    const int parts = parts_of(seen);
    if (part >= parts) continue;
    if (seen == 0) {
      for (int64_t i = threadIdx.x; i < heads * in.hd; i += kThreads)
        narrow(known ? 0.0f : NAN, in.out + (row * in.heads + first_head) * in.hd + i);
      continue;
    }
    const int64_t length = in.length[row], share = (seen + parts - 1) / parts;
    const int64_t begin = length - seen + part * share, end = min(length, begin + share);
    const int64_t sequence = in.sequence[row];

    float q[kHeads][kWide];
    Running<kWide> state[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; h++)
      load_share<T, kLanes>(in.q + (row * in.heads + first_head + (h < heads ? h : 0)) * in.hd, lane, in.hd, q[h]);

    for (int64_t base = begin; base < end; base += kGroups * kKeys) {  // all groups together: warps shuffle
      const int64_t key = base + group * kKeys;
      float score[kHeads][kKeys];
      int64_t at[kKeys];  // of a key in the cache; -1: the table names no block
#pragma unroll
      for (int j = 0; j < kKeys; j++) {
        const int64_t place = key + j < end ? in.pages.place_of(sequence, key + j) : -1;
        at[j] = place < 0 ? -1 : in.pages.row(place, kv_head) * in.hd;
        float key_share[kWide];
        load_share<T, kLanes>(in.k + (at[j] < 0 ? 0 : at[j]), lane, at[j] < 0 ? 0 : in.hd, key_share);
#pragma unroll
        for (int h = 0; h < kHeads; h++) {
          float dot = 0;
#pragma unroll
          for (int c = 0; c < kWide; c++) dot = fmaf(q[h][c], key_share[c], dot);
#pragma unroll
          for (int other = kLanes / 2; other > 0; other /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, other);
          score[h][j] = key + j >= end ? -INFINITY : at[j] < 0 ? NAN : dot * in.scale;
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; h++) {
        Running<kWide> &s = state[h];
        float most = s.max;
#pragma unroll
        for (int j = 0; j < kKeys; j++) most = fmaxf(most, score[h][j]);
        const float rescale = exp2f(s.max - most);
        s.max = most;
        s.sum *= rescale;
#pragma unroll
        for (int c = 0; c < kWide; c++) s.values[c] *= rescale;
#pragma unroll
        for (int j = 0; j < kKeys; j++) {
          score[h][j] = exp2f(score[h][j] - most);
          s.sum += score[h][j];
        }
      }
#pragma unroll
      for (int j = 0; j < kKeys; j++) {
        float value_share[kWide];
        load_share<T, kLanes>(in.v + (at[j] < 0 ? 0 : at[j]), lane, at[j] < 0 ? 0 : in.hd, value_share);
#pragma unroll
        for (int h = 0; h < kHeads; h++)
#pragma unroll
          for (int c = 0; c < kWide; c++) state[h].values[c] = fmaf(score[h][j], value_share[c], state[h].values[c]);
      }
    }

#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      if (lane == 0) {
        group_max[h][group] = state[h].max;
        group_sum[h][group] = state[h].sum;
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; h++) {
      if (h >= heads) break;
      float most = kFloor, sum = 0;
      for (int g = 0; g < kGroups; g++) most = fmaxf(most, group_max[h][g]);
      for (int g = 0; g < kGroups; g++) sum = fmaf(exp2f(group_max[h][g] - most), group_sum[h][g], sum);
      const float rescale = exp2f(state[h].max - most);
#pragma unroll
      for (int c = 0; c < kWide; c++)
        group_values[group][c / Pack<T>::kWidth * kLanes * Pack<T>::kWidth + lane * Pack<T>::kWidth + c % Pack<T>::kWidth] =
            state[h].values[c] * rescale;
      __syncthreads();
      float *to = parts > 1 ? in.partial_of(row, first_head + h, part) : nullptr;
      for (int64_t c = threadIdx.x; c < in.hd; c += kThreads) {
        float value = 0;
        for (int g = 0; g < kGroups; g++) value += group_values[g][c];
        if (to != nullptr) {
          to[c] = value;
        } else {
          narrow(value / sum, in.out + (row * in.heads + first_head + h) * in.hd + c);
        }
      }
      if (to != nullptr && threadIdx.x == 0) {
        to[in.hd] = most;
        to[in.hd + 1] = sum;
      }
      __syncthreads();  // group_values is written again
    }
  }
}

// One block a row and query head: puts the parts of rows that have several together.
template <class T>
__global__ __launch_bounds__(kThreads) void merge_kernel(Attention<T> in) {
  __shared__ float weight[kMostParts];
  for (int64_t b = blockIdx.x; b < in.rows * in.heads; b += gridDim.x) {
    const int64_t row = b / in.heads, head = b % in.heads;
    const int parts = in.known(row) ? parts_of(in.seen(row)) : 1;
    if (parts == 1) continue;
    if (threadIdx.x < parts) weight[threadIdx.x] = in.partial_of(row, head, threadIdx.x)[in.hd];
    __syncthreads();
    float most = kFloor, sum = 0;
    for (int p = 0; p < parts; p++) most = fmaxf(most, weight[p]);
    for (int p = 0; p < parts; p++) sum = fmaf(exp2f(weight[p] - most), in.partial_of(row, head, p)[in.hd + 1], sum);
    for (int64_t c = threadIdx.x; c < in.hd; c += kThreads) {
      float value = 0;
      for (int p = 0; p < parts; p++) value = fmaf(exp2f(weight[p] - most), in.partial_of(row, head, p)[c], value);
      narrow(value / sum, in.out + b * in.hd + c);
    }
    __syncthreads();  // weight is written again
  }
}

template <class T, int kLanes, int kPacks>
void (*kernel_of(int64_t per_kv))(Attention<T>) {
  return per_kv <= 4 ? attend_kernel<T, kLanes, kPacks, 4> : attend_kernel<T, kLanes, kPacks, 8>;
}

template <class T>
int32_t attend(Attention<T> in, cudaStream_t stream) {
  const int64_t packs = packs_of<T>(in.hd), per_kv = in.heads / in.kv_heads, row_floats = in.heads * in.parts * (in.hd + 2);
  const auto kernel = packs <= 8    ? kernel_of<T, 8, 1>(per_kv)
                      : packs <= 16 ? kernel_of<T, 16, 1>(per_kv)
                      : packs <= 32 ? kernel_of<T, 32, 1>(per_kv)
                                    : kernel_of<T, 32, kMaxHeadDim / Pack<T>::kWidth / 32>(per_kv);
  const int64_t heads_of_block = per_kv <= 4 ? 4 : 8, tiles = (per_kv + heads_of_block - 1) / heads_of_block;
  const int64_t rows = in.rows;
  int64_t at_once = rows;
  Scratch<float> partial(stream);
  if (in.parts > 1) {
    at_once = kScratchBytes / static_cast<int64_t>(sizeof(float)) / row_floats;
    at_once = at_once < 1 ? 1 : at_once < rows ? at_once : rows;
    MGRPO_TRY(partial.allocate(at_once * row_floats));
    in.partial = partial.get();
  }
  for (int64_t done = 0; done < rows; done += in.rows) {
    in.rows = at_once < rows - done ? at_once : rows - done;
    MGRPO_TRY(launch(kernel, {block_count(in.rows * in.kv_heads * tiles * in.parts), kThreads}, stream, in));
    if (in.parts > 1) MGRPO_TRY(launch(merge_kernel<T>, {block_count(in.rows * in.heads), kThreads}, stream, in));
    in.q += in.rows * in.heads * in.hd;
    in.out += in.rows * in.heads * in.hd;
    in.sequence += in.rows;
    in.length += in.rows;
  }
  return MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_attention_cached_cuda(const void *q, const void *k_cache, const void *v_cache, mgrpo_pages pages, const int32_t *sequence,
                                    const int32_t *length, int32_t dtype, void *out, int64_t rows, int64_t heads, float scale,
                                    int64_t window, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_pages(pages) || !valid_sizes({rows, heads, pages.hd}) || pages.kv_heads == 0 || heads == 0 || heads % pages.kv_heads != 0 ||
      pages.hd == 0 || pages.hd > kMaxHeadDim || window < 0)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({q, sequence, length, out}) || (pages.sequences * pages.width > 0 && pages.table == nullptr) ||
      (pages.blocks > 0 && any_null({k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  const int64_t longest = pages.width * pages.block;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return attend(Attention<T>{static_cast<const T *>(q), static_cast<const T *>(k_cache), static_cast<const T *>(v_cache), Pages(pages),
                               sequence, length, static_cast<T *>(out), nullptr, rows, heads, pages.kv_heads, pages.hd,
                               parts_of(window > 0 && window < longest ? window : longest), static_cast<float>(scale * kLog2E), window},
                  stream_of(stream));
  });
}
