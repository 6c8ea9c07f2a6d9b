// Decode attention.
//
// In float32 a block computes up to eight query heads of one key/value head of a row, for a part of the row's keys. So it reads a key once
// for all these heads. The lanes of a group share a key, and each lane has packs of 16 bytes of it. The groups of a block compute different
// keys, each with a running softmax. The groups are merged in order, and then the parts of a row. In bf16 tensor cores compute the products
// (attention_cached_mma.cuh).
#include "attention_cached_mma.cuh"
#include "mgrpo/attention.h"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = kAttentionThreads;
constexpr int64_t kScratchBytes = 64 << 20;  // if the results of parts need more memory, the rows take several launches

// Loads the lane's elements of row [n]. Lane l of kLanes has the packs l, l + kLanes... Elements after the end of the row are 0.
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

// A running sum of values with softmax weights: the maximum score, the sum of exponentials, and the lane's elements of the weighted values.
template <int kWide>
struct Running {
  float max = kFloor, sum = 0, values[kWide] = {};

  // Replaces scores by their exponentials, and adds these to the sum. It rescales the sums if the maximum grows.
  template <int kKeys>
  __device__ void add_exponentials(float (&score)[kKeys]) {
    float merged_max = max;
#pragma unroll
    for (int j = 0; j < kKeys; j++) merged_max = fmaxf(merged_max, score[j]);
    const float rescale = exp2f(max - merged_max);
    max = merged_max;
    sum *= rescale;
#pragma unroll
    for (int c = 0; c < kWide; c++) values[c] *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys; j++) {
      score[j] = exp2f(score[j] - merged_max);
      sum += score[j];
    }
  }
};

template <class T, int kLanes, int kPacks, int kHeads>
__global__ __launch_bounds__(kThreads) void attend_kernel(Attention<T> in) {
  constexpr int kWide = kPacks * Pack<T>::kWidth, kGroups = kThreads / kLanes;
  constexpr int kKeys = 16 / kHeads;  // the number of keys that a group reads before it updates its maximum
  __shared__ float group_max[kHeads][kGroups], group_sum[kHeads][kGroups], group_values[kGroups][kLanes * kWide];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  for_each_part<kHeads>(in, [&](const Part &part) {
    float q[kHeads][kWide];
    Running<kWide> state[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; h++) load_share<T, kLanes>(in.q + (part.first_head + (h < part.heads ? h : 0)) * in.hd, lane, in.hd, q[h]);

    for (unsigned base = part.begin; base < part.end;
         base += kGroups * kKeys) {  // all groups take the same steps, because the lanes of a warp shuffle
      const unsigned key = base + static_cast<unsigned>(group * kKeys);
      float score[kHeads][kKeys];
      int64_t at[kKeys];  // the place of a key in the cache, or -1 if the table has no block for it
#pragma unroll
      for (int j = 0; j < kKeys; j++) {
        at[j] = key + j < part.end ? in.row_at(part, key + j) : -1;
        float key_share[kWide];
        load_share<T, kLanes>(in.k + (at[j] < 0 ? 0 : at[j]), lane, at[j] < 0 ? 0 : in.hd, key_share);
#pragma unroll
        for (int h = 0; h < kHeads; h++) {
          float dot = 0;
#pragma unroll
          for (int c = 0; c < kWide; c++) dot = fmaf(q[h][c], key_share[c], dot);
#pragma unroll
          for (int other = kLanes / 2; other > 0; other /= 2) dot += __shfl_xor_sync(kAllLanes, dot, other);
          score[h][j] = key + j >= part.end ? -INFINITY : at[j] < 0 ? NAN : dot * in.scale;
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; h++) state[h].add_exponentials(score[h]);
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
      if (h >= part.heads) break;
      float merged_max = kFloor, sum = 0;
      for (int g = 0; g < kGroups; g++) merged_max = fmaxf(merged_max, group_max[h][g]);
      for (int g = 0; g < kGroups; g++) sum = fmaf(exp2f(group_max[h][g] - merged_max), group_sum[h][g], sum);
      const float rescale = exp2f(state[h].max - merged_max);
#pragma unroll
      for (int c = 0; c < kWide; c++)
        group_values[group][c / Pack<T>::kWidth * kLanes * Pack<T>::kWidth + lane * Pack<T>::kWidth + c % Pack<T>::kWidth] =
            state[h].values[c] * rescale;
      __syncthreads();
      for (int64_t c = threadIdx.x; c < in.hd; c += kThreads) {
        float value = 0;
        for (int g = 0; g < kGroups; g++) value += group_values[g][c];
        in.put(part, h, c, value, sum);
      }
      if (threadIdx.x == 0) in.put_sums(part, h, merged_max, sum);
      __syncthreads();  // group_values is written again
    }
  });
}

// Blocks of attend_mma_kernel on a multiprocessor at a time. Their registers hold the queries of the heads that share keys.
constexpr int blocks_at_a_time(int heads, int head_size) {
  if (heads * head_size <= 512) return 4;
  return heads * head_size <= 1024 ? 3 : 2;
}

template <int kHd, int kHeads>
__global__ __launch_bounds__(kAttentionThreads, blocks_at_a_time(kHeads, kHd)) void attend_mma_kernel(Attention<Bf16> in) {
  constexpr int kWarps = kAttentionThreads / kWarp,
                kRow = kHd + 4;  // the stride of rows in shared memory, so that they begin in different banks
  __shared__ float warp_max[kWarps][kHeads], warp_sum[kWarps][kHeads];
  alignas(16) __shared__ float warp_values[kWarps][8][kRow];
  for_each_part<kHeads>(in, [&](const Part &part) {
    WarpAttention<kHd, kHeads> mine(in, part, warp_values[warp()]);
    mine.run(part.begin / kKeyTile * kKeyTile + warp() * kKeyTile, kWarps * kKeyTile);
    const int g = mine.g, t = mine.t;
#pragma unroll
    for (int half = 0; half < kHeads / 8; half++) {
      if (t == 0) {
        warp_max[warp()][g + 8 * half] = mine.max[half];
        warp_sum[warp()][g + 8 * half] = mine.sum[half];
      }
    }
    __syncthreads();
    const auto merged_max_of = [&](int head) {
      float merged_max = kFloor;
      for (int w = 0; w < kWarps; w++) merged_max = fmaxf(merged_max, warp_max[w][head]);
      return merged_max;
    };
#pragma unroll
    for (int half = 0; half < kHeads / 8; half++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float rescale = exp2_of(warp_max[warp()][8 * half + 2 * t + h] - merged_max_of(8 * half + 2 * t + h));
#pragma unroll
        for (int e = 0; e < kHd / 64; e++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float (&pair)[4] = mine.value[half][e][i];
            *reinterpret_cast<float2 *>(&warp_values[warp()][2 * t + h][64 * e + 8 * g + 2 * i]) =
                make_float2(pair[h] * rescale, pair[2 + h] * rescale);
          }
      }
      __syncthreads();
      for (int head = 8 * half + warp(); head < min(part.heads, 8 * half + 8); head += kWarps) {
        const float merged_max = merged_max_of(head);
        float sum = 0;
        for (int w = 0; w < kWarps; w++) sum = fmaf(exp2_of(warp_max[w][head] - merged_max), warp_sum[w][head], sum);
        for (int64_t c = lane(); c < in.hd; c += kWarp) {
          float value = 0;
          for (int w = 0; w < kWarps; w++) value += warp_values[w][head % 8][c];
          in.put(part, head, c, value, sum);
        }
        if (lane() == 0) in.put_sums(part, head, merged_max, sum);
      }
      __syncthreads();  // warp_values is written again
    }
  });
}

// Merges the parts of a row, and adds the sink of the head, which has a weight but no value. One block merges one query head of a row.
template <class T>
__global__ __launch_bounds__(kThreads) void attend_merge_kernel(Attention<T> in) {
  __shared__ float weight[kMaxParts];
  for (int64_t b = blockIdx.x; b < in.rows * in.heads; b += gridDim.x) {
    const int64_t row = b / in.heads;
    if (!in.known(row) || in.length[row] == 0) continue;
    const int parts = in.cut(row).parts;
    if (parts <= in.alone) continue;
    if (threadIdx.x < parts) weight[threadIdx.x] = in.partial_of(b, threadIdx.x)[in.hd];
    __syncthreads();
    float merged_max = kFloor, sum = 0;
    for (int p = 0; p < parts; p++) merged_max = fmaxf(merged_max, weight[p]);
    for (int p = 0; p < parts; p++) sum = fmaf(exp2f(weight[p] - merged_max), in.partial_of(b, p)[in.hd + 1], sum);
    if (in.sinks != nullptr) sum += exp2_of(in.sinks[b % in.heads] * static_cast<float>(kLog2E) - merged_max);
    for (int64_t c = threadIdx.x; c < in.hd; c += kThreads) {
      float value = 0;
      for (int p = 0; p < parts; p++) value = fmaf(exp2f(weight[p] - merged_max), in.partial_of(b, p)[c], value);
      narrow(value / sum, in.out + b * in.hd + c);
    }
    __syncthreads();  // weight is written again
  }
}

// A kernel, and the maximum number of query heads that a block of it computes.
template <class T>
struct Kernel {
  void (*run)(Attention<T>);
  int64_t heads;
};

template <int kLanes, int kPacks>
Kernel<float> kernel_for(int64_t per_kv) {
  return per_kv <= 4 ? Kernel<float>{attend_kernel<float, kLanes, kPacks, 4>, 4}
                     : Kernel<float>{attend_kernel<float, kLanes, kPacks, 8>, 8};
}
Kernel<float> kernel_of(float, int64_t hd, int64_t per_kv) {
  const int64_t packs = packs_of<float>(hd);
  return packs <= 8    ? kernel_for<8, 1>(per_kv)
         : packs <= 16 ? kernel_for<16, 1>(per_kv)
         : packs <= 32 ? kernel_for<32, 1>(per_kv)
                       : kernel_for<32, 2>(per_kv);
}
// 16 heads of 256 elements are not possible, because their sums would take all registers.
Kernel<Bf16> kernel_of(Bf16, int64_t hd, int64_t per_kv) {
  if (hd > 128) return {attend_mma_kernel<256, 8>, 8};
  if (hd > 64) return per_kv > 8 ? Kernel<Bf16>{attend_mma_kernel<128, 16>, 16} : Kernel<Bf16>{attend_mma_kernel<128, 8>, 8};
  return per_kv > 8 ? Kernel<Bf16>{attend_mma_kernel<64, 16>, 16} : Kernel<Bf16>{attend_mma_kernel<64, 8>, 8};
}

// Chooses the number of blocks that share the parts of a row. The blocks fill a GPU several times, with about four blocks on a
// multiprocessor at a time, so that new blocks can start when short ones end. There are at least four blocks for each row, so that a long
// row among many rows is not the last to end.
int32_t splits_of(int64_t sets, int parts, int *splits) {
  constexpr int64_t kBlocks = 16, kMinSplits = 4;
  int device, multiprocessors;
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t wanted = block_count(kBlocks * multiprocessors) / sets;
  *splits = static_cast<int>(min(max(wanted, kMinSplits), int64_t{parts}));
  return MGRPO_OK;
}

template <class T>
int32_t attend(Attention<T> in, cudaStream_t stream) {
  const int64_t rows = in.rows, per_kv = in.heads / in.kv_heads, row_floats = in.heads * in.parts * (in.hd + 2);
  const Kernel<T> kernel = kernel_of(T{}, in.hd, per_kv);
  const int64_t sets_of_row = in.kv_heads * ((per_kv + kernel.heads - 1) / kernel.heads);
  int64_t at_once = rows;
  Scratch<float> partial(stream);
  if (in.parts > in.alone) {
    at_once = max(kScratchBytes / static_cast<int64_t>(sizeof(float)) / row_floats, int64_t{1});
    const int64_t launches = (rows + at_once - 1) / at_once;
    at_once = (rows + launches - 1) / launches;  // so that the last launch does not have only a few rows
    MGRPO_TRY(partial.allocate(at_once * row_floats));
    in.partial = partial.get();
  }
  for (int64_t done = 0; done < rows; done += in.rows) {
    in.rows = min(at_once, rows - done);
    MGRPO_TRY(splits_of(in.rows * sets_of_row, in.parts, &in.splits));
    MGRPO_TRY(launch(kernel.run, {block_count(in.rows * sets_of_row * in.splits), kThreads}, stream, in));
    if (in.parts > in.alone) MGRPO_TRY(launch(attend_merge_kernel<T>, {block_count(in.rows * in.heads), kThreads}, stream, in));
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
                                    const int32_t *length, const float *sinks_or_null, int32_t dtype, void *out, int64_t rows,
                                    int64_t heads, float scale, int64_t window, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_pages(pages) || !valid_sizes({rows, heads, pages.hd}) || pages.kv_heads == 0 || heads == 0 || heads % pages.kv_heads != 0 ||
      pages.hd == 0 || pages.hd > kMaxHeadDim || window < 0)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({q, sequence, length, out}) || (pages.sequences * pages.width > 0 && pages.table == nullptr) ||
      (pages.blocks > 0 && any_null({k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  const Pages places(pages);
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return attend(Attention<T>{static_cast<const T *>(q), static_cast<const T *>(k_cache), static_cast<const T *>(v_cache), places,
                               sequence, length, sinks_or_null, static_cast<T *>(out), nullptr, rows, heads, pages.kv_heads, pages.hd,
                               max_parts(places, window), 1, sinks_or_null == nullptr, static_cast<float>(scale * kLog2E), window},
                  stream_of(stream));
  });
}
