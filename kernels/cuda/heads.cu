// Splits the product of a layer into heads, and computes their norms and rotations. A block computes one part of a row: its queries, its
// keys or its values. The backward pass divides its work in the same way.
#include "heads.cuh"
#include "mgrpo/heads.h"
#include "whole_heads.cuh"

namespace mgrpo::cuda {
namespace {

// Rotates the heads of a row. load(head, from, begin, n) returns the pack at `begin` of the n values that begin at element `from` of a
// head. to(head) returns the address of the result.
template <class T, class Load, class To>
__device__ void turn(const Rotation &in, int64_t row, int heads, int hd, int half, float sign, const Load &load, const To &to) {
  constexpr int kWidth = Pack<T>::kWidth;
  const int packs = static_cast<int>(packs_of<T>(half));
  for (int item = threadIdx.x; item < heads * packs; item += kHeadThreads) {
    const int head = item / packs, begin = item % packs * kWidth;
    Pack<T> a = load(head, 0, begin, half), b = load(head, half, begin, half);
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      if (begin + i >= half) break;
      const float2 angle = in.angle(row, half, begin + i);
      const float c = angle.x, s = angle.y * sign, first = widen(a.at[i]), second = widen(b.at[i]);
      narrow(fmaf(first, c, -(second * s)), &a.at[i]);
      narrow(fmaf(second, c, first * s), &b.at[i]);
    }
    T *to_first = to(head), *to_second = to_first + half;
    store_pack(to_first, a, begin, half, aligned(to_first));
    store_pack(to_second, b, begin, half, aligned(to_second));
  }
  const int rest = hd - 2 * half, rest_packs = static_cast<int>(packs_of<T>(rest));  // the dimensions that are not rotated
  for (int item = threadIdx.x; item < heads * rest_packs; item += kHeadThreads) {
    const int head = item / rest_packs, begin = item % rest_packs * kWidth;
    T *to_rest = to(head) + 2 * half;
    store_pack(to_rest, load(head, 2 * half, begin, rest), begin, rest, aligned(to_rest));
  }
}

// Calls f(g, first value) for the groups of a part that the thread's warp computes, or the whole block if a group is wide.
template <class T, class F>
__device__ void for_each_group(const HeadGroup<T> &p, bool narrow, const F &f) {
  const int first = narrow ? warp() : 0, step = narrow ? kHeadThreads / kWarp : 1;
  for (int g = first; g < p.groups; g += step) f(g, g * p.group);
}

// Writes 1 / rms of the groups of a row x to inv [groups].
template <bool kBlock, class T>
__device__ void measure(const T *x, const HeadGroup<T> &p, const Layout<T> &in, int64_t row, float *inv, float *shared) {
  const int thread = threadIdx.x % (kBlock ? kHeadThreads : kWarp), threads = kBlock ? threads_of<T>(p.group) : kWarp;
  for_each_group(p, !kBlock, [&](int g, int first) {
    float squares = 0;
    for_each_pack_of(x + first, p.group, thread, threads,
                     [&](int64_t, const Pack<T> &v, int count) { squares = add_squares(squares, v, count); });
    const float result = inverse_rms(team_sum<kBlock>(squares, shared), p.group, in.eps);
    if (thread != 0) return;
    inv[g] = result;
    if (p.inv_rms != nullptr) p.inv_rms[row * p.groups + g] = result;
  });
}

template <class T, class Places>
__global__ __launch_bounds__(kHeadThreads) void heads_kernel(const T *qkv, Layout<T> in, Places places) {
  __shared__ float shared[kNormWarps];
  __shared__ int superseded;
  float *const inv = static_cast<float *>(dynamic_shared());  // 1 / rms of the part's groups
  for (int64_t b = blockIdx.x; b < in.rows * kParts; b += gridDim.x) {
    const int64_t row = b / kParts;
    const bool queries = b % kParts == 0;
    const HeadGroup<T> p = in.part[b % kParts];
    const int64_t place = queries ? row : places.claim(row, &superseded);
    if (place < 0) continue;
    const T *x = qkv + row * in.width + p.from;
    if (p.norm != nullptr) {
      if (narrow_row<T>(p.group))
        measure<false>(x, p, in, row, inv, shared);
      else
        measure<true>(x, p, in, row, inv, shared);
      __syncthreads();
    }
    const auto load = [&](int head, int from, int begin, int n) {
      const int at = head * in.hd + from;
      Pack<T> v = load_pack(x + at, begin, n, aligned(x + at));
      if (p.norm != nullptr) {
        const T *w = p.norm + at % p.group;
        normalise(&v, load_pack(w, begin, n, aligned(w)), inv[at / p.group], in.offset, n - begin);
      }
      return v;
    };
    turn<T>(in.rotation, row, p.heads, in.hd, p.half, 1, load,
            [&](int head) { return p.heads_of + (queries ? row * p.heads + head : places.row_of(place, head, p.heads)) * in.hd; });
    __syncthreads();  // the next part may overwrite inv
  }
}

// Replaces the gradients of the normalised groups of a row by the gradients of the groups x before the norm.
template <bool kBlock, class T>
__device__ void back(const T *x, T *grad, const HeadGroup<T> &p, const Layout<T> &in, int64_t row, float *shared) {
  const int thread = threadIdx.x % (kBlock ? kHeadThreads : kWarp), threads = kBlock ? threads_of<T>(p.group) : kWarp;
  for_each_group(p, !kBlock, [&](int g, int first) {
    row_back<kBlock>(grad + first, x + first, p.norm, in.offset, p.inv_rms[row * p.groups + g], static_cast<const T *>(nullptr),
                     grad + first, p.group, thread, threads, shared);
  });
}

template <class T>
__global__ __launch_bounds__(kHeadThreads) void heads_bwd_kernel(const T *qkv, Layout<T> in, T *dqkv) {
  __shared__ float shared[kNormWarps];
  for (int64_t b = blockIdx.x; b < in.rows * kParts; b += gridDim.x) {
    const int64_t row = b / kParts, at = row * in.width + in.part[b % kParts].from;
    const HeadGroup<T> p = in.part[b % kParts];
    const T *grad = p.heads_of + row * p.heads * in.hd;
    const auto load = [&](int head, int from, int begin, int n) {
      const T *v = grad + head * in.hd + from;
      return load_pack(v, begin, n, aligned(v));
    };
    turn<T>(in.rotation, row, p.heads, in.hd, p.half, -1, load, [&](int head) { return dqkv + at + head * in.hd; });
    if (p.norm == nullptr) continue;
    __syncthreads();  // waits for the values that other threads rotate
    if (narrow_row<T>(p.group))
      back<false>(qkv + at, dqkv + at, p, in, row, shared);
    else
      back<true>(qkv + at, dqkv + at, p, in, row, shared);
  }
}

// The division of the sum over rows for the gradient of a norm's weights.
template <class T>
struct WeightGradient {
  HeadGroup<T> part;
  Runs runs;     // of the part's groups
  float *parts;  // partial sums, [runs.parts, group]; null if they are not needed

  __host__ __device__ int64_t packs() const { return packs_of<T>(part.group); }
  __host__ __device__ int64_t threads() const { return parts != nullptr ? runs.parts * packs() : 0; }
};

template <class T>
struct WeightGradients {
  WeightGradient<T> of[2];  // queries and keys; an array for the same reason as in AllDwParts
};

// Returns element j of a group of a gradient after the inverse rotation. c is its index in its head.
template <class T>
__device__ T turned_back(const Rotation &in, const T *grad, int64_t row, int j, int c, int half) {
  if (c >= 2 * half) return grad[j];
  const bool first = c < half;
  const float2 angle = in.angle(row, half, first ? c : c - half);
  const float other = widen(grad[first ? j + half : j - half]), across = other * angle.y;
  T turned;
  narrow(fmaf(widen(grad[j]), angle.x, first ? across : -across), &turned);
  return turned;
}

// Computes partial sums of dw for heads of any alignment. A thread computes a pack of columns of one partial sum.
template <class T>
__global__ __launch_bounds__(kHeadThreads) void heads_dw_kernel(const T *qkv, const __grid_constant__ Layout<T> in,
                                                                const __grid_constant__ WeightGradients<T> both) {
  constexpr int kWidth = Pack<T>::kWidth;
  const int64_t of_queries = both.of[0].threads(), threads = of_queries + both.of[1].threads();
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kHeadThreads + threadIdx.x; t < threads;
       t += static_cast<int64_t>(gridDim.x) * kHeadThreads) {
    const int which = t >= of_queries;
    const WeightGradient<T> &w = both.of[which];
    const int64_t mine = t - which * of_queries, part = mine / w.packs();
    const int d = w.part.group, groups = w.part.groups;
    const auto turned = [&](int64_t r, int64_t begin) {
      Pack<T> g;
#pragma unroll
      for (int i = 0; i < kWidth; i++) {
        const int j = static_cast<int>(begin) + i;
        if (j < d) g.at[i] = turned_back(in.rotation, w.part.heads_of + r * d, r / groups, j, j % in.hd, w.part.half);
      }
      return g;
    };
    const auto row = [&](int64_t r, int64_t begin) {
      const T *x = qkv + r / groups * in.width + w.part.from + r % groups * d;
      return load_pack(x, begin, d, aligned(x));
    };
    part_of_dw<T>(w.runs, part, d, mine % w.packs() * kWidth, w.parts + part * d, turned, row,
                  [&](int64_t r) { return w.part.inv_rms[r]; });
  }
}

// Reports whether heads consist of whole aligned packs. `each`: each head is normalised by itself, or heads are not normalised.
template <class T>
bool whole_heads(const Layout<T> &in, bool each, std::initializer_list<const void *> products) {
  const auto &[q, k, v] = in.part;
  return each && in.hd <= kWarp * Pack<T>::kWidth && q.half % Pack<T>::kWidth == 0 && whole_packs<T>(in.hd, products) &&
         whole_packs<T>(in.hd, {q.heads_of, k.heads_of, v.heads_of, q.norm, k.norm, in.rotation.cos, in.rotation.sin});
}

template <class T, class Places>
int32_t forward(const void *qkv, const mgrpo_heads &layout, const Layout<T> &in, const Places &places, cudaStream_t stream) {
  const T *product = static_cast<const T *>(qkv);
  if (whole_heads(in, !layout.whole || !normalised(layout), {qkv}))
    return for_lanes<T>(in.hd, [&](auto lanes) {
      const int teams = kHeadThreads / lanes;
      const auto runs = [&](int64_t heads) {
        // With more blocks than this, a team has at least four heads, so that it reads the angles of a row less often.
        constexpr int64_t kFew = 128;
        const int64_t all = in.rows * heads, each = (all + teams - 1) / teams, fewer = max(each / 4, kFew);
        return Runs(all, min(each, min(fewer, kMaxDwParts)), teams);
      };
      const WholeHeads<T> work{in, {{runs(layout.heads), nullptr}, {runs(layout.kv_heads), nullptr}}};
      return launch(whole_heads_kernel<T, lanes, Places>, work.shape(), stream, product, work, places);
    });
  const size_t room = normalised(layout) ? static_cast<size_t>(groups_of(layout, layout.heads)) * sizeof(float) : 0;
  return launch(heads_kernel<T, Places>, {block_count(in.rows * kParts), kHeadThreads, room}, stream, product, in, places);
}

template <class T>
int32_t backward(const T *qkv, const mgrpo_heads &layout, const Layout<T> &in, T *dqkv, float *dw_q, float *dw_k, cudaStream_t stream) {
  WeightGradients<T> both{{{in.part[0], runs_of<T>(in.rows * in.part[0].groups, in.part[0].group), nullptr},
                           {in.part[1], runs_of<T>(in.rows * in.part[1].groups, in.part[1].group), nullptr}}};
  AllDwParts all{{{nullptr, dw_q, 0, 0}, {nullptr, dw_k, 0, 0}}};
  Scratch<float> q_parts(stream), k_parts(stream);
  Scratch<float> *const room[] = {&q_parts, &k_parts};
  for (int i = 0; normalised(layout) && i < 2; i++) {
    if (all.of[i].dw == nullptr) continue;
    WeightGradient<T> &w = both.of[i];
    MGRPO_TRY(room[i]->allocate(w.runs.parts * w.part.group));
    w.parts = room[i]->get();
    all.of[i] = {w.parts, all.of[i].dw, w.runs.parts, w.part.group};
  }
  if (whole_heads(in, !layout.whole || !normalised(layout), {normalised(layout) ? qkv : nullptr, dqkv})) {
    MGRPO_TRY(for_lanes<T>(in.hd, [&](auto lanes) {
      const auto work_of = [&](int i, int64_t heads) {
        return HeadWork{normalised(layout) ? both.of[i].runs : runs_of<T>(in.rows * heads, in.hd), both.of[i].parts};
      };
      const WholeHeads<T> work{in, {work_of(0, layout.heads), work_of(1, layout.kv_heads)}};
      return launch(whole_heads_bwd_kernel<T, lanes>, work.shape(), stream, qkv, work, dqkv);
    }));
  } else {
    const int64_t threads = both.of[0].threads() + both.of[1].threads();
    if (threads > 0)
      MGRPO_TRY(
          launch(heads_dw_kernel<T>, {block_count((threads + kHeadThreads - 1) / kHeadThreads), kHeadThreads}, stream, qkv, in, both));
    MGRPO_TRY(launch(heads_bwd_kernel<T>, {block_count(in.rows * kParts), kHeadThreads}, stream, qkv, in, dqkv));
  }
  return all.tiles() > 0 ? sum_dw(all, stream) : MGRPO_OK;
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_split_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k, void *v, float *inv_q_or_null,
                               float *inv_k_or_null, int64_t rows, void *stream) {
  if (!valid_heads(layout, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(layout) || any_null({qkv, q, k, v})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return forward<T>(qkv, layout, layout_of<T>(layout, q, k, v, inv_q_or_null, inv_k_or_null, rows), InRows{}, stream_of(stream));
  });
}

int32_t mgrpo_cache_heads_cuda(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k_cache, void *v_cache, mgrpo_pages pages,
                               const int32_t *sequence, int64_t rows, void *stream) {
  if (!valid_heads(layout, rows) || !valid_pages(pages) || pages.kv_heads != layout.kv_heads || pages.hd != layout.hd)
    return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(layout) || any_null({qkv, q, layout.pos, sequence}) || (pages.sequences * pages.width > 0 && pages.table == nullptr) ||
      (pages.blocks > 0 && any_null({k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    InCache places{Pages(pages), sequence, layout.pos, rows, nullptr, 0};
    Scratch<InCache::Row> table(stream_of(stream));
    MGRPO_TRY(fill_table(&places, &table, stream_of(stream)));
    return forward<T>(qkv, layout, layout_of<T>(layout, q, k_cache, v_cache, nullptr, nullptr, rows), places, stream_of(stream));
  });
}

int32_t mgrpo_split_heads_bwd_cuda(const void *dq, const void *dk, const void *dv, const void *qkv_or_null, mgrpo_heads layout,
                                   const float *inv_q_or_null, const float *inv_k_or_null, int32_t dtype, void *dqkv, float *dw_q_or_null,
                                   float *dw_k_or_null, int64_t rows, void *stream) {
  if (!valid_heads(layout, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(layout) || any_null({dq, dk, dv, dqkv}) || (normalised(layout) && any_null({qkv_or_null, inv_q_or_null, inv_k_or_null})))
    return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto *qkv = static_cast<const T *>(qkv_or_null);
    const Layout<T> in = layout_of<T>(layout, dq, dk, dv, inv_q_or_null, inv_k_or_null, rows);
    return backward<T>(qkv, layout, in, static_cast<T *>(dqkv), dw_q_or_null, dw_k_or_null, stream_of(stream));
  });
}
