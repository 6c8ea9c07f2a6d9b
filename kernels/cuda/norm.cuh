// The RMS norm of a row. A team of threads computes a row: some lanes of a warp, or a block.
//
// Thread p % threads of the team has pack p of the row. Each thread adds up its packs in their order. The sums of lanes are added in a
// fixed tree, and then the sums of warps in their order. So the bits of a sum depend only on the row. A thread without a pack adds 0, which
// changes no bit. So a whole warp can also compute a row that has packs for only 8 or 16 lanes.
#pragma once
#include "layers.cuh"

namespace mgrpo::cuda {

constexpr int kNormThreads = 256, kNormWarps = kNormThreads / kWarp;

// Returns the number of lanes that share a row of at most 32 packs.
__host__ __device__ constexpr int lanes_of(int64_t packs) { return packs <= 8 ? 8 : packs <= 16 ? 16 : kWarp; }

// Reports whether lanes of one warp compute a row, instead of a block: rows of few packs, such as the heads of queries and keys.
template <class T>
__host__ __device__ bool narrow_row(int64_t d) {
  return packs_of<T>(d) <= kWarp;
}

// Returns the maximum number of packs of a thread if a block computes the row: 1, 2 or 4. It is 0 if the row is wider.
template <class T>
__host__ __device__ int packs_of_thread(int64_t d) {
  const int64_t each = (packs_of<T>(d) + kNormThreads - 1) / kNormThreads;
  return each <= 2 ? static_cast<int>(each) : each <= 4 ? 4 : 0;
}

// Returns the number of threads of a block for a row: whole warps, and no more than the row has packs for.
template <class T>
__host__ __device__ int threads_of(int64_t d) {
  const int each = packs_of_thread<T>(d);
  if (each == 0) return kNormThreads;
  return static_cast<int>((packs_of<T>(d) + each * kWarp - 1) / (each * kWarp)) * kWarp;
}

// Returns the sum over the threads of a team: of a warp, or of the block if kBlock. `shared` has kNormWarps elements.
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

// Returns 1 / rms of a row of d values whose squares add up to `squares`.
__device__ inline float inverse_rms(float squares, int64_t d, float eps) { return rsqrtf(squares * (1 / static_cast<float>(d)) + eps); }

// Returns the factor of x in the backward pass. `projection` is the sum of grad w x over the row.
__device__ inline float along_row(float inv, float projection, int64_t d) {
  return -(inv * inv) * (projection * (1 / static_cast<float>(d)));
}

// Does what for_each_pack does, for thread number `thread` of a team of `threads` threads.
template <class T, class F>
__device__ void for_each_pack_of(const T *row, int64_t n, int thread, int threads, const F &f) {
  constexpr int kWidth = Pack<T>::kWidth;
  if (thread >= threads) return;
  const bool is_aligned = aligned(row);
  for (int64_t begin = static_cast<int64_t>(thread) * kWidth; begin < n; begin += threads * kWidth)
    f(begin, load_pack(row, begin, n, is_aligned), static_cast<int>(n - begin < kWidth ? n - begin : kWidth));
}

// Returns sum plus the squares of the first `count` elements of a pack.
template <class T>
__device__ float add_squares(float sum, const Pack<T> &p, int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) sum = fmaf(widen(p.at[i]), widen(p.at[i]), sum);
  return sum;
}

// Multiplies the first `count` elements of a pack by inv and by the weights.
template <class T>
__device__ void normalise(Pack<T> *p, const Pack<T> &weight, float inv, float offset, int64_t count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) narrow(widen(p->at[i]) * inv * (widen(weight.at[i]) + offset), &p->at[i]);
}

// Returns sum plus the products grad w x of the first `count` elements of a pack.
template <class T>
__device__ float add_projection(float sum, const Pack<T> &grad, const Pack<T> &x, const Pack<T> &weight, float offset,
                                int count = Pack<T>::kWidth) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++)
    if (i < count) sum = fmaf(widen(grad.at[i]) * (widen(weight.at[i]) + offset), widen(x.at[i]), sum);
  return sum;
}

// Replaces gradients of the norm's results by gradients of its inputs, for the first `count` elements of a pack. They are inv (grad w + x
// along), plus `more` if `adds` is true.
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

// Computes a row of the backward pass, with any alignment. All threads of the team call it. `to` may be grad or more.
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

// Divides rows into runs of consecutive rows. Each team of a block computes one run. The sums of the runs of a block, added in order, are
// one partial sum of dw. The order of a sum determines its bits, so the division depends only on the number of rows and on their width.
struct Runs {
  int64_t rows, parts;
  int teams;
  int64_t each, more;  // the rows of a run, and the number of runs that have one more row

  Runs(int64_t rows, int64_t parts, int teams)
      : rows(rows), parts(parts), teams(teams), each(rows / (parts * teams)), more(rows % (parts * teams)) {}
  __host__ __device__ int64_t first(int64_t part, int team) const {
    const int64_t run = part * teams + team;
    return run * each + (run < more ? run : more);
  }
};

constexpr int64_t kMaxDwParts = 512;  // about four blocks of eight warps for each multiprocessor of an H100

template <class T>
Runs runs_of(int64_t rows, int64_t d) {
  constexpr int64_t kMinRunRows = 8;  // the minimum number of rows; a partial sum of dw then costs little
  const int teams = narrow_row<T>(d) ? kNormThreads / lanes_of(packs_of<T>(d)) : 1;
  const int64_t parts = (rows + kMinRunRows * teams - 1) / (kMinRunRows * teams);
  return {rows, parts < kMaxDwParts ? parts : kMaxDwParts, teams};
}

// Adds the contribution of a row to dw.
template <class T>
__device__ void add_dw(const Pack<T> &grad, const Pack<T> &x, float inv, float (&dw)[Pack<T>::kWidth]) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) dw[i] = fmaf(widen(grad.at[i]) * inv, widen(x.at[i]), dw[i]);
}

// Computes a partial sum of dw for rows of any alignment, for the columns of one pack. load(r, begin) returns the pack of the gradient of
// row r, row(r, begin) the pack of the row, and inverse(r) its 1 / rms.
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

// Partial sums [n, d] that are added to dw [d]. d is 0 if there are no partial sums.
struct DwParts {
  const float *parts;
  float *dw;
  int64_t n, d;

  __host__ __device__ int64_t tiles() const { return (d + kColumns - 1) / kColumns; }
};
struct AllDwParts {
  DwParts of[2];  // an array, because a choice between two arguments would be copied to local memory

  int64_t tiles() const { return of[0].tiles() + of[1].tiles(); }
};

namespace {  // each file that includes this one has its own kernel

// Adds up the partial sums. A warp adds up every 32nd partial sum of 32 columns.
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
