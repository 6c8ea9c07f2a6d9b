// The RMS norm and its backward pass. A block computes one row at a time. It has at most as many warps as the row has packs for.
#include <type_traits>

#include "copy_ahead.cuh"
#include "mgrpo/rms_norm.h"
#include "norm.cuh"

namespace mgrpo::cuda {
namespace {

template <class T>
struct Norm {
  const T *x, *residual, *w;  // If residual is not null, it is added to x first, and the sum is written
  float offset, eps;
  T *sum, *y;
  float *inv_rms;
  int64_t rows, d;
};

// Calls f(i, column) for each pack of a row that the thread computes, at most kPacks. column is the first column of pack i.
template <class T, int kPacks, class F>
__device__ void for_each_own_pack(int64_t d, const F &f) {
#pragma unroll
  for (int i = 0; i < kPacks; i++) {
    const int64_t begin = static_cast<int64_t>(threadIdx.x + i * blockDim.x) * Pack<T>::kWidth;
    if (begin < d) f(i, begin);
  }
}

// The forward pass for rows that consist of whole aligned packs. A thread keeps its packs of a row, at most kPacks, in registers.
template <class T, int kPacks>
__global__ __launch_bounds__(kNormThreads) void whole_rms_norm_kernel(Norm<T> in) {
  constexpr int kWidth = Pack<T>::kWidth;
  __shared__ float shared[kNormWarps];
  const auto for_each_own = [&](const auto &f) { for_each_own_pack<T, kPacks>(in.d, f); };
  Pack<T> w[kPacks];
  for_each_own([&](int i, int64_t begin) { w[i] = whole_pack(in.w + begin); });
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    Pack<T> x[kPacks], more[kPacks];
    for_each_own([&](int i, int64_t begin) { x[i] = whole_pack(in.x + r * in.d + begin); });
    if (in.residual != nullptr) {
      for_each_own([&](int i, int64_t begin) { more[i] = whole_pack(in.residual + r * in.d + begin); });
      for_each_own([&](int i, int64_t begin) {
#pragma unroll
        for (int k = 0; k < kWidth; k++) narrow(widen(x[i].at[k]) + widen(more[i].at[k]), &x[i].at[k]);
        store_whole(in.sum + r * in.d + begin, x[i]);
      });
    }
    float squares = 0;
    for_each_own([&](int i, int64_t) { squares = add_squares(squares, x[i]); });
    const float inv = inverse_rms(team_sum<true>(squares, shared), in.d, in.eps);
    for_each_own([&](int i, int64_t begin) {
      normalise(&x[i], w[i], inv, in.offset);
      store_whole(in.y + r * in.d + begin, x[i]);
    });
    if (in.inv_rms != nullptr && threadIdx.x == 0) in.inv_rms[r] = inv;
  }
}

// The forward pass for rows of any width and any alignment.
template <class T>
__global__ __launch_bounds__(kNormThreads) void rms_norm_kernel(Norm<T> in) {
  __shared__ float shared[kNormWarps];
  const int64_t d = in.d;
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    const T *row = in.x + r * d;
    float squares = 0;
    if (in.residual == nullptr) {
      for_each_pack(row, d, [&](int64_t, const Pack<T> &p, int count) { squares = add_squares(squares, p, count); });
    } else {
      const T *more = in.residual + r * d;
      T *to = in.sum + r * d;
      const bool more_aligned = aligned(more), to_aligned = aligned(to);
      for_each_pack(row, d, [&](int64_t begin, Pack<T> p, int count) {
        const Pack<T> added = load_pack(more, begin, d, more_aligned);
#pragma unroll
        for (int i = 0; i < Pack<T>::kWidth; i++)
          if (i < count) narrow(widen(p.at[i]) + widen(added.at[i]), &p.at[i]);
        squares = add_squares(squares, p, count);
        store_pack(to, p, begin, d, to_aligned);
      });
      row = to;
    }
    const float inv = inverse_rms(team_sum<true>(squares, shared), d, in.eps);
    T *to = in.y + r * d;
    const bool w_aligned = aligned(in.w), to_aligned = aligned(to);
    for_each_pack(row, d, [&](int64_t begin, Pack<T> p, int count) {
      normalise(&p, load_pack(in.w, begin, d, w_aligned), inv, in.offset, count);
      store_pack(to, p, begin, d, to_aligned);
    });
    if (in.inv_rms != nullptr && threadIdx.x == 0) in.inv_rms[r] = inv;
  }
}

template <class T>
struct NormBack {
  const T *dy, *x, *w;
  float offset;
  const float *inv_rms;
  const T *more;  // null, or a second gradient of x that is added to dx
  T *dx;
  float *parts;  // partial sums of dw, [runs.parts, d]; null if dw is not needed
  Runs runs;
  int64_t d;
};

// Rows that a block keeps in shared memory: the current one, and the next one, which is being copied.
constexpr int kRowsAhead = 2;

// Returns the bytes of shared memory that a block of whole_rms_norm_bwd_kernel needs.
template <int kPacks>
size_t bytes_ahead(int threads) {
  return sizeof(uint4) * kRowsAhead * 3 * kPacks * threads;
}

// The backward pass for rows that consist of whole aligned packs. A block computes the rows of one partial sum of dw after another. It
// reads each row once. While it computes one row, it copies the next one to shared memory. The partial sum stays in registers. A thread
// reads only those packs of shared memory that it copied itself, so no barrier is needed.
template <class T, int kPacks>
__global__ __launch_bounds__(kNormThreads) void whole_rms_norm_bwd_kernel(NormBack<T> in) {
  constexpr int kWidth = Pack<T>::kWidth;
  __shared__ float shared[kNormWarps];
  uint4 *const ahead = static_cast<uint4 *>(dynamic_shared()) + threadIdx.x;
  const auto place = [&](int64_t r, int tensor, int i) {
    return ahead + ((static_cast<int>(r % kRowsAhead) * 3 + tensor) * kPacks + i) * blockDim.x;
  };
  const auto for_each_own = [&](const auto &f) { for_each_own_pack<T, kPacks>(in.d, f); };
  const auto fetch = [&](int64_t r) {
    for_each_own([&](int i, int64_t begin) {
      copy_ahead(place(r, 0, i), in.dy + r * in.d + begin);
      copy_ahead(place(r, 1, i), in.x + r * in.d + begin);
      if (in.more != nullptr) copy_ahead(place(r, 2, i), in.more + r * in.d + begin);
    });
    end_copies();
  };
  Pack<T> w[kPacks];
  for_each_own([&](int i, int64_t begin) { w[i] = whole_pack(in.w + begin); });
  for (int64_t part = blockIdx.x; part < in.runs.parts; part += gridDim.x) {
    const int64_t end = in.runs.first(part, 1);
    int64_t r = in.runs.first(part, 0);
    fetch(r);
    float next_inv = in.inv_rms[r], dw[kPacks][kWidth] = {};
    for (; r < end; r++) {
      const float inv = next_inv;
      const bool is_last = r + 1 == end;
      if (!is_last) {
        fetch(r + 1);
        next_inv = in.inv_rms[r + 1];
      }
      wait_for_copies(is_last ? 0 : 1);
      Pack<T> grad[kPacks], x[kPacks], more[kPacks];
      for_each_own([&](int i, int64_t) {
        grad[i] = pack_of<T>(*place(r, 0, i));
        x[i] = pack_of<T>(*place(r, 1, i));
        if (in.more != nullptr) more[i] = pack_of<T>(*place(r, 2, i));
      });
      float projection = 0;
      for_each_own([&](int i, int64_t) { projection = add_projection(projection, grad[i], x[i], w[i], in.offset); });
      const float along = along_row(inv, team_sum<true>(projection, shared), in.d);
      for_each_own([&](int i, int64_t begin) {
        if (in.parts != nullptr) add_dw(grad[i], x[i], inv, dw[i]);
        norm_back(&grad[i], x[i], w[i], in.offset, inv, along, in.more != nullptr, more[i]);
        store_whole(in.dx + r * in.d + begin, grad[i]);
      });
    }
    if (in.parts == nullptr) continue;
    for_each_own([&](int i, int64_t begin) {
#pragma unroll
      for (int k = 0; k < kWidth; k++) in.parts[part * in.d + begin + k] = dw[i][k];
    });
  }
}

// Computes dx for rows of any width and any alignment.
template <class T>
__global__ __launch_bounds__(kNormThreads) void rms_norm_bwd_kernel(NormBack<T> in) {
  __shared__ float shared[kNormWarps];
  for (int64_t r = blockIdx.x; r < in.runs.rows; r += gridDim.x)
    row_back<true>(in.dy + r * in.d, in.x + r * in.d, in.w, in.offset, in.inv_rms[r], in.more != nullptr ? in.more + r * in.d : nullptr,
                   in.dx + r * in.d, in.d, threadIdx.x, blockDim.x, shared);
}

// Computes the partial sums of dw for such rows. A thread computes the columns of one pack of one partial sum.
template <class T>
__global__ __launch_bounds__(kNormThreads) void rms_norm_dw_kernel(NormBack<T> in) {
  const int64_t packs = packs_of<T>(in.d), threads = in.runs.parts * packs;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kNormThreads + threadIdx.x; t < threads;
       t += static_cast<int64_t>(gridDim.x) * kNormThreads) {
    const auto pack_of = [&](const T *of) {
      return [=](int64_t r, int64_t begin) { return load_pack(of + r * in.d, begin, in.d, aligned(of + r * in.d)); };
    };
    const int64_t part = t / packs;
    part_of_dw<T>(in.runs, part, in.d, t % packs * Pack<T>::kWidth, in.parts + part * in.d, pack_of(in.dy), pack_of(in.x),
                  [&](int64_t r) { return in.inv_rms[r]; });
  }
}

// Calls f with the number of packs of a thread as an integral constant. It is 0 if the rows do not consist of whole aligned packs.
template <class T, class F>
int32_t for_packs(int64_t d, bool whole, const F &f) {
  switch (whole ? packs_of_thread<T>(d) : 0) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
  }
  return f(std::integral_constant<int, 0>{});
}

template <class T>
int32_t rms_norm(const Norm<T> &in, cudaStream_t stream) {
  const Shape shape{block_count(min(in.rows, 2 * kMaxDwParts)), threads_of<T>(in.d)};  // blocks read the weights once
  return for_packs<T>(in.d, whole_packs<T>(in.d, {in.x, in.residual, in.w, in.sum, in.y}), [&](auto packs) {
    if constexpr (packs > 0) return launch(whole_rms_norm_kernel<T, packs>, shape, stream, in);
    return launch(rms_norm_kernel<T>, shape, stream, in);
  });
}

template <class T>
int32_t rms_norm_bwd(NormBack<T> in, float *dw, cudaStream_t stream) {
  Scratch<float> parts(stream);
  if (dw != nullptr) {
    MGRPO_TRY(parts.allocate(in.runs.parts * in.d));
    in.parts = parts.get();
  }
  const int threads = threads_of<T>(in.d);
  const bool whole = !narrow_row<T>(in.d) && whole_packs<T>(in.d, {in.dy, in.x, in.w, in.more, in.dx});
  MGRPO_TRY(for_packs<T>(in.d, whole, [&](auto packs) {
    if constexpr (packs > 0)
      return launch(whole_rms_norm_bwd_kernel<T, packs>, {block_count(in.runs.parts), threads, bytes_ahead<packs>(threads)}, stream, in);
    if (dw != nullptr) {  // before dx is written, because dx may be dy
      const int64_t columns = in.runs.parts * packs_of<T>(in.d);
      MGRPO_TRY(launch(rms_norm_dw_kernel<T>, {block_count((columns + kNormThreads - 1) / kNormThreads), kNormThreads}, stream, in));
    }
    return launch(rms_norm_bwd_kernel<T>, {block_count(in.runs.rows), threads}, stream, in);
  }));
  return dw == nullptr ? MGRPO_OK : sum_dw({{{in.parts, dw, in.runs.parts, in.d}, {}}}, stream);
}

bool valid(int64_t rows, int64_t d, double eps) { return valid_sizes({rows, d}) && d > 0 && eps >= 0; }

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_rms_norm_cuda(const void *x, const void *w, int32_t dtype, float offset, double eps, void *y, float *inv_rms_or_null,
                            int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, w, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return rms_norm(Norm<T>{static_cast<const T *>(x), nullptr, static_cast<const T *>(w), offset, static_cast<float>(eps), nullptr,
                            static_cast<T *>(y), inv_rms_or_null, rows, d},
                    stream_of(stream));
  });
}

int32_t mgrpo_add_rms_norm_cuda(const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps, void *sum,
                                void *y, float *inv_rms_or_null, int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, eps)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, residual, w, sum, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return rms_norm(Norm<T>{static_cast<const T *>(x), static_cast<const T *>(residual), static_cast<const T *>(w), offset,
                            static_cast<float>(eps), static_cast<T *>(sum), static_cast<T *>(y), inv_rms_or_null, rows, d},
                    stream_of(stream));
  });
}

int32_t mgrpo_rms_norm_bwd_cuda(const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more_or_null,
                                int32_t dtype, float offset, void *dx, float *dw_or_null, int64_t rows, int64_t d, void *stream) {
  if (!cuda::valid(rows, d, 0)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, w, inv_rms, dx})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return rms_norm_bwd(NormBack<T>{static_cast<const T *>(dy), static_cast<const T *>(x), static_cast<const T *>(w), offset, inv_rms,
                                    static_cast<const T *>(dx_more_or_null), static_cast<T *>(dx), nullptr, runs_of<T>(rows, d), d},
                        dw_or_null, stream_of(stream));
  });
}
