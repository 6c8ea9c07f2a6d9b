// The RMS norm of a row by a team: lanes of a warp, or a block. Pack p of a row belongs to thread p % threads of the team, which
// adds its own packs up in their order. A fixed tree adds up lanes, and warps follow in their order. So the width of a row fixes
// the bits of its sums. Threads without a pack add 0, which changes no bit: a whole warp may do what 8 or 16 of its lanes could.
#pragma once
#include "layers.cuh"

namespace mgrpo::cuda {

constexpr int kNormThreads = 256, kNormWarps = kNormThreads / kWarp;

// The lanes that share a row of at most 32 packs.
__host__ __device__ constexpr int lanes_of(int64_t packs) { return packs <= 8 ? 8 : packs <= 16 ? 16 : kWarp; }

// Rows of few packs, such as the heads of queries and keys, take lanes of a warp.
template <class T>
__host__ __device__ bool narrow_row(int64_t d) {
  return packs_of<T>(d) <= kWarp;
}

// How many packs a thread of the team has at most: 1, 2 or 4; 0 if the row is wider than that allows.
template <class T>
__host__ __device__ int packs_of_thread(int64_t d) {
  const int64_t each = (packs_of<T>(d) + kNormThreads - 1) / kNormThreads;
  return each <= 2 ? static_cast<int>(each) : each <= 4 ? 4 : 0;
}

// The threads of a team, in whole warps: no more than the row has packs for.
template <class T>
__host__ __device__ int threads_of(int64_t d) {
  const int each = packs_of_thread<T>(d);
  if (each == 0) return kNormThreads;
  return static_cast<int>((packs_of<T>(d) + each * kWarp - 1) / (each * kWarp)) * kWarp;
}

// The sum over the threads of a team: a warp, or all warps of the block. shared: [kNormWarps].
template <bool kBlock>
__device__ float team_sum(float value, float *shared) {
  value = lanes_sum<kWarp>(value);
  if constexpr (kBlock) {
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = shared[0];
#pragma unroll
    for (unsigned w = 1; w < kNormWarps; w++)
      if (w < blockDim.x / kWarp) value += shared[w];
    __syncthreads();  // the next sum may overwrite shared
  }
  return value;
}

// 1 / rms of a row of d values whose squares add up to `squares`.
__device__ inline float inverse_rms(float squares, int64_t d, float eps) { return rsqrtf(squares * (1 / static_cast<float>(d)) + eps); }

// The factor of x in the norm's backward pass, from the sum over the row of grad w x.
__device__ inline float along_row(float inv, float projection, int64_t d) {
  return -(inv * inv) * (projection * (1 / static_cast<float>(d)));
}

// for_each_pack for thread number `thread` of a team of `threads`.
template <class T, class F>
__device__ void for_each_pack_of(const T *row, int64_t n, int thread, int threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth;
  if (thread >= threads) return;
  const bool is_aligned = aligned(row);
  for (int64_t begin = static_cast<int64_t>(thread) * kWidth; begin < n; begin += threads * kWidth)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// The contribution of the first `count` values of a pack to a sum of squares.
template <class T>
__device__ float add_squares(float sum, const Pack<T> &p, int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) sum = fmaf(widen(p.at[i]), widen(p.at[i]), sum);
  return sum;
}

// The values of a pack times inv and the weights, the first `count` of them.
template <class T>
__device__ void normalise(Pack<T> *p, const Pack<T> &weight, float inv, float offset, int64_t count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) narrow(widen(p->at[i]) * inv * (widen(weight.at[i]) + offset), &p->at[i]);
}

// The contribution of the first `count` values of a pack to the sum of grad w x.
template <class T>
__device__ float add_projection(float sum, const Pack<T> &grad, const Pack<T> &x, const Pack<T> &weight, float offset,
                                int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) sum = fmaf(widen(grad.at[i]) * (widen(weight.at[i]) + offset), widen(x.at[i]), sum);
  return sum;
}

// Gradients of the first `count` values of a pack, after the norm, become those before it: inv (grad w + x along), and more if it adds.
template <class T>
__device__ void norm_back(Pack<T> *grad, const Pack<T> &x, const Pack<T> &weight, float offset, float inv, float along, bool adds,
                          const Pack<T> &more, int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) {
    if (i >= count) continue;
    const float own = inv * fmaf(widen(x.at[i]), along, widen(grad->at[i]) * (widen(weight.at[i]) + offset));
    narrow(adds ? own + widen(more.at[i]) : own, &grad->at[i]);
  }
}

// One row of the backward pass, wherever it lies, for a thread of the team. to may be grad or more.
template <bool kBlock, class T>
__device__ void row_back(const T *grad, const T *row, const T *w, float offset, float inv, const T *more, T *to, int64_t d, int thread,
                         int threads, float *shared) {
  const bool row_aligned = aligned(row), w_aligned = aligned(w), more_aligned = aligned(more), to_aligned = aligned(to);
  float projection = 0;
  for_each_pack_of(grad, d, thread, threads, [&](int64_t begin, const Pack<T> &g, int count) {
    projection = add_projection(projection, g, load_pack(row, begin, d, row_aligned), load_pack(w, begin, d, w_aligned), offset, count);
  });
  const float along = along_row(inv, team_sum<kBlock>(projection, shared), d);
  for_each_pack_of(grad, d, thread, threads, [&](int64_t begin, Pack<T> g, int count) {
    Pack<T> m;
    if (more != nullptr) m = load_pack(more, begin, d, more_aligned);
    norm_back(&g, load_pack(row, begin, d, row_aligned), load_pack(w, begin, d, w_aligned), offset, inv, along, more != nullptr, m, count);
    store_pack(to, g, begin, d, to_aligned);
  });
}

// Rows in runs, one for each team of a block. The sums of a block's runs, added up in order, are a part of dw. The
// assignment of rows depends only on their number and width, since it determines the order of a sum.
struct Runs {
  int64_t rows, parts;
  int teams;
  int64_t each, more;  // rows of a run, and how many runs have one more

  Runs(int64_t rows, int64_t parts, int teams)
      : rows(rows), parts(parts), teams(teams), each(rows / (parts * teams)), more(rows % (parts * teams)) {}
  __host__ __device__ int64_t first(int64_t part, int team) const {
    const int64_t run = part * teams + team;
    return run * each + (run < more ? run : more);
  }
};

constexpr int64_t kMostDwParts = 512;  // some four blocks of eight warps for each multiprocessor of an H100

template <class T>
Runs runs_of(int64_t rows, int64_t d) {
  constexpr int64_t kLeastRun = 8;  // rows, large enough to make a part of dw cheap
  const int teams = narrow_row<T>(d) ? kNormThreads / lanes_of(packs_of<T>(d)) : 1;
  const int64_t parts = (rows + kLeastRun * teams - 1) / (kLeastRun * teams);
  return {rows, parts < kMostDwParts ? parts : kMostDwParts, teams};
}

// The contribution of a row to dw.
template <class T>
__device__ void add_dw(const Pack<T> &grad, const Pack<T> &x, float inv, float (&dw)[Pack<T>::kWidth]) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) dw[i] = fmaf(widen(grad.at[i]) * inv, widen(x.at[i]), dw[i]);
}

// A part of dw, by rows that lie anywhere: a thread has a pack of its columns. load(r, begin) is the gradient of row r.
template <class T, class Load, class Row, class Inverse>
__device__ void part_of_dw(const Runs &runs, int64_t part, int64_t d, int64_t begin, float *to, const Load &load, const Row &row,
                           const Inverse &inverse) {
  constexpr int kWidth = Pack<T>::kWidth;
  float total[kWidth];
  for (int team = 0; team < runs.teams; team++) {
    float sum[kWidth] = {};
    for (int64_t r = runs.first(part, team); r < runs.first(part, team + 1); r++) add_dw(load(r, begin), row(r, begin), inverse(r), sum);
#pragma unroll
    for (int i = 0; i < kWidth; i++) total[i] = team == 0 ? sum[i] : total[i] + sum[i];
  }
#pragma unroll
  for (int i = 0; i < kWidth; i++)
    if (begin + i < d) to[begin + i] = total[i];
}

constexpr int kSlices = 32, kColumns = 32, kSumThreads = kSlices * kColumns;

// parts [n, d] that are added to dw [d]; nothing where d is 0.
struct DwParts {
  const float *parts;
  float *dw;
  int64_t n, d;

  __host__ __device__ int64_t tiles() const { return (d + kColumns - 1) / kColumns; }
};
struct AllDwParts {
  DwParts of[2];  // chosen by a number: a choice between two arguments would be copied to local memory

  int64_t tiles() const { return of[0].tiles() + of[1].tiles(); }
};

namespace {  // the names of kernels tell the file that they are compiled in

// A warp adds up every 32nd part of 32 columns.
__global__ __launch_bounds__(kSumThreads) void dw_sum_kernel(const __grid_constant__ AllDwParts all) {
  __shared__ float sums[kSlices][kColumns + 1];
  const int slice = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  const int64_t first_tiles = all.of[0].tiles(), tiles = first_tiles + all.of[1].tiles();
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int which = tile >= first_tiles;
    const DwParts &w = all.of[which];
    const int64_t j = (tile - which * first_tiles) * kColumns + column;
    float sum = 0;
    if (j < w.d)
#pragma unroll 8
      for (int64_t p = slice; p < w.n; p += kSlices) sum += w.parts[p * w.d + j];
    sums[slice][column] = sum;
    __syncthreads();
    if (slice == 0 && j < w.d) {
      float total = w.dw[j];
      for (int s = 0; s < kSlices; s++) total += sums[s][column];
      w.dw[j] = total;
    }
    __syncthreads();  // the next tile may overwrite the sums
  }
}

int32_t sum_dw(const AllDwParts &all, cudaStream_t stream) {
  return launch(dw_sum_kernel, {block_count(all.tiles()), kSumThreads}, stream, all);
}

}  // namespace

}  // namespace mgrpo::cuda
