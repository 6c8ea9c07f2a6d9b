// One block a part of a row of the product: its queries, its keys or its values. The backward pass divides its work alike.
#include "heads.h"
#include "mgrpo/nn.h"
#include "norm.cuh"
#include "pages.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = kNormThreads, kParts = 3;

struct Rotation {
  const float *cos, *sin;  // [max_pos, rotary / 2]
  const int32_t *pos;
  int64_t max_pos;

  // Cosine and sine of a plane of `half`; NaN at a position outside of the table.
  __device__ float2 angle(int64_t row, int half, int plane) const {
    const int64_t at = pos[row];
    if (at < 0 || at >= max_pos) return {NAN, NAN};
    return {cos[at * half + plane], sin[at * half + plane]};
  }
};

// The heads of a row that are treated alike.
template <class T>
struct Part {
  T *heads_of;   // [rows, heads, hd], or a cache: what is written, in the backward pass the gradient of it
  const T *norm; // null: not normalised
  float *inv_rms;
  int heads, from;  // how many, and their first number in a row of the product
  int half;         // the planes that turn
  int groups, group;  // what is normalised together: so many times a row, so many values
};

template <class T>
struct Layout {
  Part<T> part[kParts];
  Rotation rotation;
  int64_t rows, width;  // of the product
  int hd;
  float offset;
  double eps;
};

template <class T>
Layout<T> layout_of(const mgrpo_heads &h, const void *q, const void *k, const void *v, const float *inv_q, const float *inv_k, int64_t rows) {
  const auto part = [&](const void *of, const void *norm, const float *inv, int64_t heads, int64_t from, int64_t rotary) {
    return Part<T>{static_cast<T *>(const_cast<void *>(of)), static_cast<const T *>(norm), const_cast<float *>(inv), static_cast<int>(heads),
                   static_cast<int>(from * h.hd), static_cast<int>(rotary / 2), static_cast<int>(groups_of(h, heads)),
                   static_cast<int>(group_of(h, heads))};
  };
  return {{part(q, h.q_norm, inv_q, h.heads, 0, h.rotary), part(k, h.k_norm, inv_k, h.kv_heads, h.heads, h.rotary),
           part(v, nullptr, nullptr, h.kv_heads, h.heads + h.kv_heads, 0)},
          {h.cos, h.sin, h.pos, h.max_pos}, rows, width_of(h), static_cast<int>(h.hd), h.offset, h.eps};
}

// Turns the heads of a row. load(head, from, begin, n) is the pack at `begin` of the n values of a head from `from` on, to(head) is where
// it goes.
template <class T, class Load, class To>
__device__ void turn(const Rotation &in, int64_t row, int heads, int hd, int half, float sign, const Load &load, const To &to) {
  constexpr int kWidth = Pack<T>::kWidth;
  const int packs = static_cast<int>(packs_of<T>(half));
  for (int item = threadIdx.x; item < heads * packs; item += kThreads) {
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
  const int rest = hd - 2 * half, rest_packs = static_cast<int>(packs_of<T>(rest));  // what does not turn
  for (int item = threadIdx.x; item < heads * rest_packs; item += kThreads) {
    const int head = item / rest_packs, begin = item % rest_packs * kWidth;
    T *to_rest = to(head) + 2 * half;
    store_pack(to_rest, load(head, 2 * half, begin, rest), begin, rest, aligned(to_rest));
  }
}

// f(number, its first value, the thread's number in the team) for the groups of a part that the thread's team has.
template <int kTeam, class T, class F>
__device__ void for_each_group(const Part<T> &p, const F &f) {
  for (int g = static_cast<int>(threadIdx.x) / kTeam; g < p.groups; g += kThreads / kTeam) f(g, g * p.group, threadIdx.x % kTeam);
}

// inv [groups]: 1 / rms of the groups x of a row.
template <int kTeam, class T>
__device__ void measure(const T *x, const Part<T> &p, const Layout<T> &in, int64_t row, float *inv, float *shared) {
  for_each_group<kTeam>(p, [&](int g, int first, unsigned thread) {
    float squares = 0;
    for_each_pack_of<kTeam>(x + first, p.group, thread, [&](int64_t, const Pack<T> &v, int count) {
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++)
        if (i < count) squares = fmaf(widen(v.at[i]), widen(v.at[i]), squares);
    });
    const float result = inverse_rms<kTeam>(squares, p.group, in.eps, shared);
    if (thread != 0) return;
    inv[g] = result;
    if (p.inv_rms != nullptr) p.inv_rms[row * p.groups + g] = result;
  });
}

// Keys and values beside each other, as queries are.
struct InRows {
  __device__ bool takes(int64_t, int *) const { return true; }
  __device__ int64_t row_of(int64_t row, int head, int heads) const { return row * heads + head; }
};

// Keys and values in the blocks of a cache.
struct InCache {
  Pages pages;
  const int32_t *sequence, *pos;
  int64_t rows;

  __device__ int64_t place(int64_t row) const { return pages.place(sequence[row], pos[row]); }
  // Whether a row has a place and is the last to name it, which is the one that stays; blocks run in any order. All threads ask.
  __device__ bool takes(int64_t row, int *superseded) const {
    const int64_t mine = place(row);
    if (mine < 0) return false;
    __syncthreads();  // every thread has read the last answer
    if (threadIdx.x == 0) *superseded = 0;
    __syncthreads();
    for (int64_t later = row + 1 + threadIdx.x; later < rows; later += kThreads)
      if (place(later) == mine) atomicExch(superseded, 1);
    __syncthreads();
    return !*superseded;
  }
  __device__ int64_t row_of(int64_t row, int head, int) const { return pages.row(place(row), head); }
};

template <class T, class Places>
__global__ __launch_bounds__(kThreads) void heads_kernel(const T *qkv, Layout<T> in, Places places) {
  __shared__ float shared[kThreads];
  __shared__ int superseded;
  float *const inv = static_cast<float *>(dynamic_shared());  // of the part's groups
  for (int64_t b = blockIdx.x; b < in.rows * kParts; b += gridDim.x) {
    const int64_t row = b / kParts;
    const bool queries = b % kParts == 0;
    const Part<T> p = in.part[b % kParts];
    if (!queries && !places.takes(row, &superseded)) continue;
    const T *x = qkv + row * in.width + p.from;
    if (p.norm != nullptr) {
      if (narrow_row<T>(p.group))
        measure<kWarp>(x, p, in, row, inv, shared);
      else
        measure<kThreads>(x, p, in, row, inv, shared);
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
    turn<T>(in.rotation, row, p.heads, in.hd, p.half, 1, load, [&](int head) {
      return p.heads_of + (queries ? row * p.heads + head : places.row_of(row, head, p.heads)) * in.hd;
    });
    __syncthreads();  // the next part may overwrite inv
  }
}

// grad, the gradients of the groups x of a row after their norm, becomes that before it.
template <int kTeam, class T>
__device__ void back(const T *x, T *grad, const Part<T> &p, const Layout<T> &in, int64_t row, float *shared) {
  for_each_group<kTeam>(p, [&](int g, int first, unsigned thread) {
    const float inv = p.inv_rms[row * p.groups + g];
    norm_back<T, kTeam>(grad + first, x + first, p.norm, in.offset, inv, nullptr, grad + first, p.group, thread, shared);
  });
}

template <class T>
__global__ __launch_bounds__(kThreads) void heads_bwd_kernel(const T *qkv, Layout<T> in, T *dqkv) {
  __shared__ float shared[kThreads];
  for (int64_t b = blockIdx.x; b < in.rows * kParts; b += gridDim.x) {
    const int64_t row = b / kParts, at = row * in.width + in.part[b % kParts].from;
    const Part<T> p = in.part[b % kParts];
    const T *grad = p.heads_of + row * p.heads * in.hd;
    const auto load = [&](int head, int from, int begin, int n) {
      const T *v = grad + head * in.hd + from;
      return load_pack(v, begin, n, aligned(v));
    };
    turn<T>(in.rotation, row, p.heads, in.hd, p.half, -1, load, [&](int head) { return dqkv + at + head * in.hd; });
    if (p.norm == nullptr) continue;
    __syncthreads();  // what a thread goes on with others have turned
    if (narrow_row<T>(p.group))
      back<kWarp>(qkv + at, dqkv + at, p, in, row, shared);
    else
      back<kThreads>(qkv + at, dqkv + at, p, in, row, shared);
  }
}

// How the sum over rows for a norm's weights is divided.
template <class T>
struct WeightGradient {
  Part<T> part;
  float *parts, *dw;  // [count, group], [group]
  int64_t rows, part_rows, count, packs;

  WeightGradient(const Layout<T> &in, const Part<T> &p, float *dw)
      : part(p), parts(nullptr), dw(dw), rows(in.rows * p.groups), part_rows(rows_of_part(rows)),
        count(dw != nullptr ? (rows + part_rows - 1) / part_rows : 0), packs(packs_of<T>(p.group)) {}
  __host__ __device__ int64_t threads() const { return count * packs; }
  __host__ __device__ int64_t columns() const { return count > 0 ? part.group : 0; }
};

// Those of both norms, chosen by a number: a choice between two arguments would be copied to local memory.
template <class T>
struct WeightGradients {
  WeightGradient<T> of[2];  // queries, keys

  // Which one is meant by number i of as many as f makes of the first, and on to the second; i becomes its number there.
  template <class F>
  __device__ const WeightGradient<T> &choose(int64_t *i, const F &f) const {
    const int64_t first = f(of[0]);
    const int which = *i >= first;
    *i -= which * first;
    return of[which];
  }
};

// Element j of a group of a gradient, turned back.
template <class T>
__device__ float turned_back(const Rotation &in, const T *grad, int64_t row, int j, int c, int half) {
  const float own = widen(grad[j]);
  if (c >= 2 * half) return own;
  const bool first = c < half;
  const float2 angle = in.angle(row, half, first ? c : c - half);
  const float other = widen(grad[first ? j + half : j - half]), across = other * angle.y;
  T turned;
  narrow(fmaf(own, angle.x, first ? across : -across), &turned);
  return widen(turned);
}

// What each part of the rows adds to dw. A thread has a pack of columns of a part.
template <class T>
__global__ __launch_bounds__(kColumnThreads) void heads_dw_kernel(const T *qkv, Layout<T> in, WeightGradients<T> both) {
  constexpr int kWidth = Pack<T>::kWidth;
  const int64_t threads = both.of[0].threads() + both.of[1].threads();
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x; t < threads; t += static_cast<int64_t>(gridDim.x) * kColumnThreads) {
    int64_t mine = t;
    const auto &w = both.choose(&mine, [](const auto &of) { return of.threads(); });
    const int64_t number = mine / w.packs;
    const int d = w.part.group, groups = w.part.groups, begin = static_cast<int>(mine % w.packs) * kWidth;
    float sum[kWidth] = {};
    for (int64_t r = number * w.part_rows; r < min(w.rows, (number + 1) * w.part_rows); r++) {
      const int64_t row = r / groups;
      const T *grad = w.part.heads_of + r * d, *x = qkv + row * in.width + w.part.from + r % groups * d;
      const Pack<T> v = load_pack(x, begin, d, aligned(x));
#pragma unroll
      for (int i = 0; i < kWidth; i++) {
        const int j = begin + i;
        if (j < d) sum[i] = fmaf(turned_back(in.rotation, grad, row, j, j % in.hd, w.part.half) * w.part.inv_rms[r], widen(v.at[i]), sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kWidth; i++)
      if (begin + i < d) w.parts[number * d + begin + i] = sum[i];
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void heads_dw_sum_kernel(WeightGradients<T> both) {
  const int64_t columns = both.of[0].columns() + both.of[1].columns();
  for (int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; j < columns; j += static_cast<int64_t>(gridDim.x) * kThreads) {
    int64_t mine = j;
    const auto &w = both.choose(&mine, [](const auto &of) { return of.columns(); });
    add_parts(w.parts, w.dw, w.count, w.part.group, mine);
  }
}

template <class T, class Places>
int32_t forward(const void *qkv, const mgrpo_heads &how, const Layout<T> &in, const Places &places, cudaStream_t stream) {
  const size_t room = normalised(how) ? static_cast<size_t>(groups_of(how, how.heads)) * sizeof(float) : 0;
  return launch(heads_kernel<T, Places>, {block_count(in.rows * kParts), kThreads, room}, stream, static_cast<const T *>(qkv), in, places);
}

template <class T>
int32_t add_dw(const T *qkv, const Layout<T> &in, float *dw_q, float *dw_k, cudaStream_t stream) {
  WeightGradients<T> both{{{in, in.part[0], dw_q}, {in, in.part[1], dw_k}}};
  auto &[queries, keys] = both.of;
  const int64_t of_queries = queries.count * queries.columns(), columns = queries.columns() + keys.columns();
  if (columns == 0) return MGRPO_OK;
  Scratch<float> parts(stream);
  MGRPO_TRY(parts.allocate(of_queries + keys.count * keys.columns()));
  queries.parts = parts.get();
  keys.parts = parts.get() + of_queries;
  const int64_t blocks = (queries.threads() + keys.threads() + kColumnThreads - 1) / kColumnThreads;
  MGRPO_TRY(launch(heads_dw_kernel<T>, {block_count(blocks), kColumnThreads}, stream, qkv, in, both));
  return launch(heads_dw_sum_kernel<T>, {block_count((columns + kThreads - 1) / kThreads), kThreads}, stream, both);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_split_heads_cuda(const void *qkv, mgrpo_heads how, int32_t dtype, void *q, void *k, void *v, float *inv_q_or_null,
                               float *inv_k_or_null, int64_t rows, void *stream) {
  if (!valid_heads(how, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(how) || any_null({qkv, q, k, v})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return forward<T>(qkv, how, layout_of<T>(how, q, k, v, inv_q_or_null, inv_k_or_null, rows), InRows{}, stream_of(stream));
  });
}

int32_t mgrpo_cache_heads_cuda(const void *qkv, mgrpo_heads how, int32_t dtype, void *q, void *k_cache, void *v_cache, mgrpo_pages pages,
                               const int32_t *sequence, int64_t rows, void *stream) {
  if (!valid_heads(how, rows) || !valid_pages(pages) || pages.kv_heads != how.kv_heads || pages.hd != how.hd) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(how) || any_null({qkv, q, how.pos, sequence}) || (pages.sequences * pages.width > 0 && pages.table == nullptr) ||
      (pages.blocks > 0 && any_null({k_cache, v_cache})))
    return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const InCache places{Pages(pages), sequence, how.pos, rows};
    return forward<T>(qkv, how, layout_of<T>(how, q, k_cache, v_cache, nullptr, nullptr, rows), places, stream_of(stream));
  });
}

int32_t mgrpo_split_heads_bwd_cuda(const void *dq, const void *dk, const void *dv, const void *qkv_or_null, mgrpo_heads how,
                                   const float *inv_q_or_null, const float *inv_k_or_null, int32_t dtype, void *dqkv, float *dw_q_or_null,
                                   float *dw_k_or_null, int64_t rows, void *stream) {
  if (!valid_heads(how, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (!has_angles(how) || any_null({dq, dk, dv, dqkv}) || (normalised(how) && any_null({qkv_or_null, inv_q_or_null, inv_k_or_null})))
    return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto *qkv = static_cast<const T *>(qkv_or_null);
    const Layout<T> in = layout_of<T>(how, dq, dk, dv, inv_q_or_null, inv_k_or_null, rows);
    if (normalised(how)) MGRPO_TRY(add_dw(qkv, in, dw_q_or_null, dw_k_or_null, stream_of(stream)));
    return launch(heads_bwd_kernel<T>, {block_count(rows * kParts), kThreads}, stream_of(stream), qkv, in, static_cast<T *>(dqkv));
  });
}
