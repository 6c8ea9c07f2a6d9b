// Two launches: the products of rows with A, then the products with B. A block takes a tile of consecutive rows. Rows
// with the same adapter share one reading of its matrix; other adapters follow one after the other. Sums have one order
// for any other rows.
#include <algorithm>

#include "block.cuh"
#include "lora.h"
#include "nn.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kAdapters = 16;                 // of one launch: its arguments are at most 4 KiB
constexpr int kVector = 8;                        // elements that a lane loads at a time
constexpr int kProjectRows = 4, kExpandRows = 8;  // of a tile
constexpr int kDepth = 32;                        // columns of B that wait in shared memory

struct Adapter {
  const float *values;
  int64_t rank, count;
  mgrpo_lora_part parts[MGRPO_LORA_PARTS];
};

struct Adapters {
  int64_t first, count;
  Adapter all[kAdapters];
};

// Consecutive rows [from, to) of a tile [begin, end).
struct Rows {
  int64_t begin, end, from, to;
  __device__ bool has(int64_t row) const { return row >= from && row < to; }
};

// f(adapter, rows) for all rows of a tile that share one of the adapters and follow each other. The same for the whole block.
template <class F>
__device__ void for_each_run(const Adapters &adapters, const int32_t *which, int64_t begin, int64_t end, const F &f) {
  for (int64_t from = begin, to; from < end; from = to) {
    const int32_t number = which != nullptr ? which[from] : 0;
    for (to = from + 1; to < end && (which == nullptr || which[to] == number);) to++;
    const int64_t i = number - adapters.first;
    if (i >= 0 && i < adapters.count) f(adapters.all[i], Rows{begin, end, from, to});
  }
}

// kVector elements of row [n] from `begin` on, 0 beyond it.
template <class T>
__device__ void load_vector(const T *row, int64_t begin, int64_t n, float (&to)[kVector]) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(row);
#pragma unroll
  for (int at = 0; at < kVector; at += kWidth) {
    const Pack<T> p = load_pack(row, begin + at, n, is_aligned);
#pragma unroll
    for (int i = 0; i < kWidth; i++) to[at + i] = begin + at + i < n ? widen(p.at[i]) : 0;
  }
}

// u [rows, rank] = A x. A warp takes one row of A for all rows of the tile.
template <class T>
__global__ __launch_bounds__(kThreads) void project_kernel(const __grid_constant__ Adapters adapters, const int32_t *which, const T *x,
                                                           float *u, int64_t rows, int64_t k, int64_t rank) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t groups = (rank + kWarps - 1) / kWarps, tiles = (rows + kProjectRows - 1) / kProjectRows;
  for (int64_t item = blockIdx.x; item < tiles * groups; item += gridDim.x) {
    const int64_t begin = item / groups * kProjectRows, j = item % groups * kWarps + warp;
    for_each_run(adapters, which, begin, min(begin + kProjectRows, rows), [&](const Adapter &a, const Rows &in) {
      if (j >= a.rank) return;
      float sums[kProjectRows] = {};
      for (int64_t c = lane * kVector; c < k; c += kWarp * kVector) {
        float w[kVector], v[kVector];
        load_vector(a.values + j * k, c, k, w);
#pragma unroll
        for (int i = 0; i < kProjectRows; i++) {
          load_vector(x + min(in.begin + i, in.end - 1) * k, c, k, v);
#pragma unroll
          for (int e = 0; e < kVector; e++) sums[i] = fmaf(w[e], v[e], sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kProjectRows; i++) {
        for (int step = kWarp / 2; step > 0; step /= 2) sums[i] += __shfl_xor_sync(kAllLanes, sums[i], step);
        if (lane == 0 && in.has(in.begin + i)) u[(in.begin + i) * rank + j] = sums[i];
      }
    });
  }
}

struct Tiles {
  float b[kThreads][kDepth + 1];  // of a column of y each
  alignas(16) float u[kDepth][kExpandRows];
};

// Adds scale * B u to the columns [first, last) of y that a part has in common with the block's. A thread has one of the block's.
template <class T>
__device__ void expand(const mgrpo_lora_part &part, const float *b, const float *u, int64_t rank, const Rows &in, int64_t columns, T *y,
                       int64_t n, Tiles &tiles) {
  const int64_t first = max(part.from, columns), last = min(part.from + part.n, columns + kThreads), column = columns + threadIdx.x;
  if (first >= last) return;
  const bool mine = column >= first && column < last;
  float sums[kExpandRows] = {};
  for (int64_t from = 0; from < part.r; from += kDepth) {
    const int depth = static_cast<int>(min(part.r - from, static_cast<int64_t>(kDepth)));
    __syncthreads();  // what was in the tiles has been read
    for (int i = threadIdx.x; i < static_cast<int>(last - first) * depth; i += kThreads)
      tiles.b[first - columns + i / depth][i % depth] = b[(first - part.from + i / depth) * part.r + from + i % depth];
    for (int i = threadIdx.x; i < depth * kExpandRows; i += kThreads) {
      const int64_t row = in.begin + i % kExpandRows;
      tiles.u[i / kExpandRows][i % kExpandRows] = in.has(row) ? u[row * rank + from + i / kExpandRows] : 0;
    }
    __syncthreads();
#pragma unroll 2
    for (int c = 0; mine && c < depth; c++) {
      const float own = tiles.b[threadIdx.x][c];
#pragma unroll
      for (int i = 0; i < kExpandRows; i += 4) {
        float of[4];
        __builtin_memcpy(of, __builtin_assume_aligned(&tiles.u[c][i], sizeof of), sizeof of);
#pragma unroll
        for (int e = 0; e < 4; e++) sums[i + e] = fmaf(own, of[e], sums[i + e]);
      }
    }
  }
  if (!mine) return;
  T *const to = y + in.begin * n + column;
  float before[kExpandRows];
#pragma unroll
  for (int i = 0; i < kExpandRows; i++)
    if (in.has(in.begin + i)) before[i] = widen(to[i * n]);
#pragma unroll
  for (int i = 0; i < kExpandRows; i++)
    if (in.has(in.begin + i)) narrow(fmaf(static_cast<float>(part.scale), sums[i], before[i]), &to[i * n]);
}

template <class T>
__global__ __launch_bounds__(kThreads, 3) void expand_kernel(const __grid_constant__ Adapters adapters, const int32_t *which,
                                                             const float *u, T *y, int64_t rows, int64_t k, int64_t n, int64_t rank) {
  __shared__ Tiles tiles;
  const int64_t across = (n + kThreads - 1) / kThreads, down = (rows + kExpandRows - 1) / kExpandRows;
  for (int64_t item = blockIdx.x; item < across * down; item += gridDim.x) {
    const int64_t begin = item / across * kExpandRows;
    for_each_run(adapters, which, begin, min(begin + kExpandRows, rows), [&](const Adapter &a, const Rows &in) {
      const float *b = a.values + a.rank * k, *product = u;
      for (int64_t p = 0; p < a.count; p++) {
        expand(a.parts[p], b, product, rank, in, item % across * kThreads, y, n, tiles);
        b += a.parts[p].n * a.parts[p].r;
        product += a.parts[p].r;
      }
    });
  }
}

Adapter argument(const mgrpo_lora &a) {
  Adapter out{a.values, rank_of(a), a.count, {}};
  for (int64_t p = 0; p < a.count; p++) out.parts[p] = a.parts[p];
  return out;
}

}  // namespace
}  // namespace mgrpo::cuda

int32_t mgrpo_lora_add_cuda(const mgrpo_lora *adapters, int64_t count, const int32_t *which_or_null, const void *x, int32_t dtype, void *y,
                            int64_t rows, int64_t k, int64_t n, void *stream) {
  using namespace mgrpo;
  using namespace mgrpo::cuda;
  if (!valid_loras(adapters, count, rows, k, n)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0 || n == 0 || count == 0) return MGRPO_OK;
  if (y == nullptr || (k > 0 && x == nullptr)) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) -> int32_t {
    using T = decltype(zero);
    for (int64_t first = 0; first < count; first += kAdapters) {
      Adapters some{first, std::min(kAdapters, count - first), {}};
      int64_t rank = 0;
      for (int64_t i = 0; i < some.count; i++) {
        some.all[i] = argument(adapters[first + i]);
        rank = std::max(rank, some.all[i].rank);
      }
      if (rank == 0) continue;
      Scratch<float> u(stream_of(stream));
      MGRPO_TRY(u.allocate(rows * rank));
      const auto tiles = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
      MGRPO_TRY(launch(project_kernel<T>, {block_count(tiles(rows, kProjectRows) * tiles(rank, kWarps)), kThreads}, stream_of(stream), some,
                       which_or_null, static_cast<const T *>(x), u.get(), rows, k, rank));
      MGRPO_TRY(launch(expand_kernel<T>, {block_count(tiles(rows, kExpandRows) * tiles(n, kThreads)), kThreads}, stream_of(stream), some,
                       which_or_null, u.get(), static_cast<T *>(y), rows, k, n, rank));
    }
    return MGRPO_OK;
  });
}
