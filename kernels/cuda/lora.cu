// Low-rank adapters, in two launches: one for the products of rows with A, one for the products with B. A block computes a tile of
// consecutive rows, for one adapter after another, and skips adapters that no row of the tile has. If there are few rows, each adapter has
// blocks of its own. The order of a row's sums does not depend on the other rows.
#include <algorithm>

#include "block.cuh"
#include "layers.cuh"
#include "lora.h"
#include "vector.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kAdapters = 16;  // adapters of one launch, whose arguments have at most 4 KiB
// Products with A. The threads of a block divide k among them.
constexpr int kProjectThreads = 256, kProjectWarps = kProjectThreads / kWarp;
constexpr int kProjectRows = 8, kRanks = 2;  // rows and ranks of a tile
// Products with B. A thread computes one column of y.
constexpr int kExpandThreads = 128, kExpandRows = 8;
constexpr int kDepth = 32;  // products with A that are in shared memory at a time

// One part of an adapter: scale * B u is added to the columns [from, to) of y. u begins at element `first` of the products with A.
struct Columns {
  const float *b;
  int64_t from, to;
  int r, first;
  float scale;
};

struct Adapter {
  const float *values;
  int rank, count;
  Columns parts[MGRPO_LORA_PARTS];
};

struct Adapters {
  int first, count;
  Adapter all[kAdapters];
};

// The division of tiles among blocks. A block computes `run` consecutive tiles, so that the values of an adapter stay in the L1 cache from
// one tile to the next. It computes them for every `slices`-th adapter.
struct Work {
  int64_t tiles, run;
  unsigned slices, blocks;

  static Work of(int64_t tiles, int64_t adapters, int64_t block_limit) {
    const int64_t max_blocks = block_count(block_limit), run = (tiles + max_blocks - 1) / max_blocks, runs = (tiles + run - 1) / run;
    const int64_t slices = std::min(adapters, max_blocks / runs);
    return {tiles, run, static_cast<unsigned>(slices), static_cast<unsigned>(runs * slices)};
  }

  template <class F>
  __device__ void for_each_tile(const F &f) const {
    const int64_t begin = blockIdx.x / slices * run, end = min(begin + run, tiles);
    for (int64_t tile = begin; tile < end; tile++) f(tile);
  }
  // Calls f(adapter, mask of its rows) for the adapters of the kRows rows from `begin` on. All threads of the block make the same calls.
  template <int kRows, class F>
  __device__ void for_each_adapter(const Adapters &adapters, const int32_t *which, int64_t begin, int64_t rows, const F &f) const {
    const int lane = threadIdx.x % kWarp;
    const bool has_row = lane < kRows && begin + lane < rows;
    const int number = !has_row ? -1 : which != nullptr ? which[begin + lane] : 0;
    for (int i = static_cast<int>(blockIdx.x % slices); i < adapters.count; i += static_cast<int>(slices)) {
      const unsigned mask = __ballot_sync(kAllLanes, has_row && number == adapters.first + i);
      if (mask != 0) f(adapters.all[i], mask);
    }
  }
};

// Computes u [rows, rank] = A x. A block computes kRanks rows of A at a time.
template <class T, bool kWhole>
__global__ __launch_bounds__(kProjectThreads, 2) void lora_project_kernel(const __grid_constant__ Adapters adapters, const int32_t *which,
                                                                          const T *x, float *u, int64_t rows, int64_t k, int rank,
                                                                          Work work) {
  constexpr int kSums = kProjectRows * kRanks;
  __shared__ float shared[kProjectWarps][kSums];
  const int thread = threadIdx.x, lane = thread % kWarp;
  const int groups = (rank + kRanks - 1) / kRanks;
  work.for_each_tile([&](int64_t tile) {
    const int64_t begin = tile / groups * kProjectRows;
    const int first = static_cast<int>(tile % groups) * kRanks;
    work.for_each_adapter<kProjectRows>(adapters, which, begin, rows, [&](const Adapter &a, unsigned mask) {
      if (first >= a.rank) return;
      float sums[kSums] = {};
      for (int64_t c = thread * kVector; c < k; c += kProjectThreads * kVector) {
        float w[kRanks][kVector], v[kVector];
#pragma unroll
        for (int j = 0; j < kRanks; j++) load_vector<kWhole>(a.values + min(first + j, a.rank - 1) * k, c, k, w[j]);
#pragma unroll
        for (int i = 0; i < kProjectRows; i++) {
          load_vector<kWhole>(x + min(begin + i, rows - 1) * k, c, k, v);
#pragma unroll
          for (int e = 0; e < kVector; e++)
#pragma unroll
            for (int j = 0; j < kRanks; j++) sums[i * kRanks + j] = fmaf(w[j][e], v[e], sums[i * kRanks + j]);
        }
      }
      const float of_warp = lanes_sums(sums);
      if (lane % (kWarp / kSums) == 0) shared[thread / kWarp][lane / (kWarp / kSums)] = of_warp;
      __syncthreads();
      const int i = thread / kRanks, j = thread % kRanks;
      if (thread < kSums && (mask >> i & 1) != 0 && first + j < a.rank) {
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < kProjectWarps; warp++) sum += shared[warp][thread];
        u[(begin + i) * rank + first + j] = sum;
      }
      __syncthreads();  // the next sums may overwrite them
    });
  });
}

// Loads a pack of row [n] from `begin` on. Elements after the end of the row are 0.
__device__ inline Pack<float> padded_pack(const float *row, int begin, int n, bool is_aligned) {
  Pack<float> p = {};
  if (is_aligned && begin + Pack<float>::kWidth <= n) return whole_pack(row + begin);
#pragma unroll
  for (int i = 0; i < Pack<float>::kWidth; i++)
    if (begin + i < n) p.at[i] = row[begin + i];
  return p;
}

// Adds scale * B u to y in the rows of a mask, for those columns of the part that the block computes. The block's columns begin at
// `columns`. y and u point to the first row of the tile. The function is not inlined. Otherwise the compiler would keep values that depend
// only on the tile in registers, and spill them.
template <class T>
__attribute__((noinline)) __device__ void expand(Columns part, const float *u, int rank, unsigned mask, T *y, int64_t n, int64_t columns) {
  alignas(16) __shared__ float products[kExpandRows][kDepth];
  constexpr int kWidth = Pack<float>::kWidth;
  if (part.from >= columns + kExpandThreads || part.to <= columns) return;
  const int64_t column = columns + threadIdx.x;
  const bool mine = column >= part.from && column < part.to;
  const unsigned changed = mine ? mask : 0;
  const float *const row = part.b + (mine ? column - part.from : 0) * part.r;
  const bool is_aligned = aligned(row);
  Pack<float> own = padded_pack(row, 0, part.r, is_aligned);
  T *to = y + column, before[kExpandRows];
#pragma unroll
  for (int i = 0; i < kExpandRows; i++, to += n) {
    before[i] = T{};
    if ((changed >> i & 1) != 0) before[i] = *to;
  }
  float sums[kExpandRows] = {};
#pragma unroll 1
  for (int from = 0; from < part.r; from += kDepth) {
    __syncthreads();  // waits until all threads have read the previous products
#pragma unroll
    for (int first = 0; first < kExpandRows * kDepth; first += kExpandThreads) {
      const int i = (first + static_cast<int>(threadIdx.x)) / kDepth, c = static_cast<int>(threadIdx.x) % kDepth;
      products[i][c] = (mask >> i & 1) != 0 && from + c < part.r ? u[i * rank + part.first + from + c] : 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int c = 0; c < kDepth && from + c < part.r; c += kWidth) {
      const Pack<float> next = padded_pack(row, from + c + kWidth, part.r, is_aligned);
#pragma unroll
      for (int i = 0; i < kExpandRows; i++) {
        const Pack<float> p = whole_pack(&products[i][c]);
#pragma unroll
        for (int e = 0; e < kWidth; e++) sums[i] = fmaf(own.at[e], p.at[e], sums[i]);
      }
      own = next;
    }
  }
#pragma unroll
  for (int i = kExpandRows - 1; i >= 0; i--) {
    to -= n;
    if ((changed >> i & 1) != 0) narrow(fmaf(part.scale, sums[i], widen(before[i])), to);
  }
}

template <class T>
__global__ __launch_bounds__(kExpandThreads, 8) void lora_expand_kernel(const __grid_constant__ Adapters adapters, const int32_t *which,
                                                                        const float *u, T *y, int64_t rows, int64_t n, int rank,
                                                                        Work work) {
  const int64_t down = (rows + kExpandRows - 1) / kExpandRows;
  work.for_each_tile([&](int64_t tile) {
    const int64_t begin = tile % down * kExpandRows, columns = tile / down * kExpandThreads;
    work.for_each_adapter<kExpandRows>(adapters, which, begin, rows, [&](const Adapter &a, unsigned mask) {
      for (int p = 0; p < a.count; p++) expand(a.parts[p], u + begin * rank, rank, mask, y + begin * n, n, columns);
    });
  });
}

Adapter argument(const mgrpo_lora &a, int64_t k) {
  const int rank = static_cast<int>(rank_of(a));
  Adapter out{a.values, rank, static_cast<int>(a.count), {}};
  const float *b = a.values + rank * k;
  int first = 0;
  for (int64_t p = 0; p < a.count; p++) {
    const mgrpo_lora_part &part = a.parts[p];
    const int r = static_cast<int>(part.r);
    out.parts[p] = {b, part.from, part.from + part.n, r, first, static_cast<float>(part.scale)};
    b += part.n * r;
    first += r;
  }
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
      Adapters some{static_cast<int>(first), static_cast<int>(std::min<int64_t>(kAdapters, count - first)), {}};
      int rank = 0;
      bool whole = whole_packs<T>(k, {x});
      for (int64_t i = 0; i < some.count; i++) {
        some.all[i] = argument(adapters[first + i], k);
        whole = whole && whole_packs<float>(k, {adapters[first + i].values});
        rank = std::max(rank, some.all[i].rank);
      }
      if (rank == 0) continue;
      Scratch<float> u(stream_of(stream));
      MGRPO_TRY(u.allocate(rows * rank));
      const auto tiles = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
      // Several times as many blocks as a GPU runs at once.
      constexpr int64_t kProjectBlocks = 1 << 10, kExpandBlocks = 1 << 13;
      const Work project = Work::of(tiles(rows, kProjectRows) * tiles(rank, kRanks), some.count, kProjectBlocks);
      MGRPO_TRY(launch(whole ? lora_project_kernel<T, true> : lora_project_kernel<T, false>, {project.blocks, kProjectThreads},
                       stream_of(stream), some, which_or_null, static_cast<const T *>(x), u.get(), rows, k, rank, project));
      const Work expand = Work::of(tiles(rows, kExpandRows) * tiles(n, kExpandThreads), some.count, kExpandBlocks);
      MGRPO_TRY(launch(lora_expand_kernel<T>, {expand.blocks, kExpandThreads}, stream_of(stream), some, which_or_null, u.get(),
                       static_cast<T *>(y), rows, n, rank, expand));
    }
    return MGRPO_OK;
  });
}
