// The gradient of a function of a row's softmax, in the row's place. A block or, where the row is too long for one block's shared memory, a
// cluster of up to eight a row (sm_90 on): the row is read once, waits in shared memory for its sums, and is written once. Where shared
// memory does not hold it either, one block reads the row twice, the second time from L2 if that is large enough.
// The gradient may be narrower than the logits, in whose place it is written: no thread writes before all have read what lies there.
#pragma once
#include "cluster.cuh"
#include "device.h"
#include "row.cuh"

namespace mgrpo::cuda {

struct LogitRows {
  int64_t rows, vocab, ld;
  const int32_t *targets;
  double tau;
};

// The sums of the cluster's blocks merged in the order of their ranks, for every thread. place: shared memory.
__device__ inline RowSums merge_cluster(const RowSums &mine, RowSums *place, double inv_tau) {
  auto blocks = cluster();
  if (blocks.num_blocks() == 1) return mine;
  if (threadIdx.x == 0) *place = mine;
  blocks.sync();
  RowSums total;
  for (unsigned k = 0; k < blocks.num_blocks(); k++) total.max = fmax(total.max, blocks.map_shared_rank(place, k)->max);
  for (unsigned k = 0; k < blocks.num_blocks(); k++) {
    RowSums part = *blocks.map_shared_rank(place, k);
    part.raise(total.max, inv_tau);
    total.add(part);
  }
  blocks.sync();  // wait: all must have read before a block overwrites its place or ends
  return total;
}

// dz_v = 2^d_v (constant + slope d_v) off the target; as logits_row.h's differentiate on the CPU, where d_v are exponents of e.
template <class A>
struct Gradient {
  A max, to_exponent, constant, slope, at_target;

  __device__ A operator()(A z) const {
    const A d = floored((z - max) * to_exponent);
    return exp2_of(d) * fused(slope, d, constant);
  }
};

template <class A>
__device__ Gradient<A> gradient_of(const RowSums &s, double dy, double tau, double g, double e) {
  const double mean = s.mean_exponent(), scale = 1 / (tau * s.sum), ey = exp(dy);
  return {static_cast<A>(s.max), exponent_scale<A>(tau), static_cast<A>(-scale * (g - e * mean)), static_cast<A>(-scale * e * kLn2),
          static_cast<A>(scale * (g * (s.sum - ey) - (ey > 0 ? e * ey * (dy - mean) : 0)))};
}

template <class G>
__device__ void fill(G *row, int64_t n, double value) {
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) narrow(value, row + v);
}

// A store of `kBytes` bytes.
template <size_t kBytes>
struct Word;
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<16> {
  using type = uint4;
};

// Stores the elements [begin, begin + kWidth) of a row [n]; begin is a multiple of kWidth.
template <class G, int kWidth>
__device__ void store(G *row, const G (&values)[kWidth], int64_t begin, int64_t n, bool is_aligned) {
  if (is_aligned && begin + kWidth <= n) {
    typename Word<sizeof values>::type word;
    __builtin_memcpy(&word, values, sizeof word);
    *reinterpret_cast<decltype(word) *>(row + begin) = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; i++)
    if (begin + i < n) row[begin + i] = values[i];
}

// T: the type of the logits; G: the type of their gradient. kStaged: shared memory has room for the block's part of a
// row. The whole cluster calls these for a row number: f.skips() returns whether the row is not read, and is 0;
// f.unreadable() handles a row that is NaN or whose target is not a column, and f.impossible() a row of -Inf only. One
// thread of every block calls f.gradient(r, sums, d_y).
template <class T, class G, bool kStaged, class F>
__device__ void differentiate_rows(T *logits, const LogitRows &in, const F &f) {
  using A = typename Compute<T>::type;
  constexpr int kWidth = Pack<T>::kWidth;
  uint4 *const kept = static_cast<uint4 *>(dynamic_shared());
  __shared__ Storage<RowRoom, 1> room;
  __shared__ Storage<RowSums, 1> of_block;
  __shared__ Storage<Gradient<A>, 1> of_row;
  const double inv_tau = 1 / in.tau;
  const int64_t blocks = cluster().num_blocks(), packs = (in.vocab + kWidth - 1) / kWidth, share = (packs + blocks - 1) / blocks * kWidth;
  const int64_t from = cluster().block_rank() * share, begin = from < in.vocab ? from : in.vocab;
  const int64_t n = share < in.vocab - begin ? share : in.vocab - begin;

  for (int64_t r = blockIdx.x / blocks; r < in.rows; r += gridDim.x / blocks) {
    T *const row = logits + r * in.ld, *const part = row + begin;
    G *const gradients = reinterpret_cast<G *>(row) + begin;
    if (f.skips(r)) {
      fill(gradients, n, 0);
      continue;
    }
    const int32_t y = in.targets[r];
    const bool target_ok = y >= 0 && y < in.vocab;
    const double zy = target_ok ? static_cast<double>(widen(row[y])) : 0;  // before any block writes

    OnlineSums<A> mine;
    const A scale = exponent_scale<A>(in.tau);
    for_each_pack_ahead(part, n, threadIdx.x, kRowThreads, [&](int64_t at, const Pack<T> &p, int count) {
      if constexpr (kStaged) __builtin_memcpy(kept + at / kWidth, p.at, sizeof(uint4));
      mine.add(p, count, scale);
    });
    const RowSums s = merge_cluster(merge_block(mine, inv_tau, *room.get()), of_block.get(), inv_tau);

    if (s.unreadable || !target_ok || s.all_impossible()) {
      if (s.unreadable || !target_ok)
        f.unreadable(r);
      else
        f.impossible(r);
      fill(gradients, n, NAN);
      continue;
    }
    if (threadIdx.x == 0) *of_row.get() = f.gradient(r, s, (zy - s.max) * inv_tau);
    __syncthreads();
    const Gradient<A> gradient = *of_row.get();
    const int64_t target = y - begin;
    const bool is_aligned = aligned(part);
    constexpr int64_t kStep = static_cast<int64_t>(kRowThreads) * kWidth;
    for (int64_t first = 0; first < n; first += kStep) {
      const int64_t at = first + static_cast<int64_t>(threadIdx.x) * kWidth;
      Pack<T> p;
      if constexpr (kStaged) {
        if (at < n) __builtin_memcpy(p.at, kept + at / kWidth, sizeof(uint4));
      } else {
        p = load_pack(part, at, n, is_aligned);
        if constexpr (sizeof(G) < sizeof(T)) __syncthreads();  // what is stored now lies where others have just read, or before
      }
      if (at >= n) continue;
      G out[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; i++) narrow(at + i == target ? gradient.at_target : gradient(static_cast<A>(widen(p.at[i]))), &out[i]);
      store(gradients, out, at, n, is_aligned);
    }
  }
}

// How a row is spread: bytes of shared memory a block, 0 where the row is not kept.
struct Spread {
  int cluster;
  size_t bytes;
};

// The fewest blocks whose part leaves room for a second block on the multiprocessor; in the largest cluster, any that fits.
inline int32_t spread_of(int64_t row_bytes, Spread *out) {
  int device, most, largest;
  MGRPO_TRY(largest_cluster(&largest));
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  constexpr int64_t kStatic = 2 << 10;  // what differentiate_rows declares, and the runtime's reserve
  const int64_t room = most - kStatic, half = most / 2 - kStatic;
  for (int cluster = 1; cluster <= largest; cluster *= 2) {
    const int64_t part = (row_bytes / cluster / 16 + 2) * 16;
    if (part > (cluster == largest ? room : half)) continue;
    *out = {cluster, static_cast<size_t>(part)};
    return MGRPO_OK;
  }
  *out = {1, 0};
  return MGRPO_OK;
}

// Launches a kernel of differentiate_rows for rows of T: `staged` or, where shared memory holds no row, `other`.
template <class T, class Kernel, class... Arguments>
int32_t launch_rows(Kernel *staged, Kernel *other, const LogitRows &in, cudaStream_t stream, const Arguments &...arguments) {
  Spread spread{1, 0};
  MGRPO_TRY(spread_of(in.vocab * static_cast<int64_t>(sizeof(T)), &spread));
  return launch(spread.bytes > 0 ? staged : other,
                {block_count(in.rows) * static_cast<unsigned>(spread.cluster), kRowThreads, spread.bytes, spread.cluster}, stream,
                arguments...);
}

}  // namespace mgrpo::cuda
