// The gradient of a function of a row's softmax, which replaces the row of logits.
//
// One block computes a row. If the row does not fit into the shared memory of one block, a cluster of up to eight blocks computes it (sm_90
// and later). The row is read once. It stays in shared memory until its sums are known, and the gradient is written once. Meanwhile the
// next row is copied to shared memory. If a row does not fit into the shared memory of a cluster, one block reads it twice. The second read
// comes from the L2 cache if that is large enough.
//
// The gradient may have a narrower type than the logits that it overwrites. So no thread writes before all threads have read the bytes that
// it overwrites.
#pragma once
#include <type_traits>

#include "cluster.cuh"
#include "copy_ahead.cuh"
#include "device.h"
#include "softmax_row.cuh"

namespace mgrpo::cuda {

struct LogitRows {
  int64_t rows, vocab, ld;
  const int32_t *targets;
  double tau;
};

// Merges the sums of the cluster's blocks in the order of their ranks. A warp calls it, and every lane gets the result. `place` is the
// address of the sums in each block's shared memory.
__device__ inline RowSums merge_cluster(RowSums *place, double inv_tau) {
  auto blocks = cluster();
  const unsigned lane = threadIdx.x % kWarp, count = blocks.num_blocks();
  RowSums part, total;
  if (lane < count) part = *blocks.map_shared_rank(place, lane);
  double max = part.max;
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) max = fmax(max, __shfl_xor_sync(kAllLanes, max, by));
  part.raise(max, inv_tau);
  total.max = max;
  for (unsigned k = 0; k < count; k++) {
    RowSums other;
    other.sum = __shfl_sync(kAllLanes, part.sum, k);
    other.weighted = __shfl_sync(kAllLanes, part.weighted, k);
    other.unreadable = __shfl_sync(kAllLanes, part.unreadable, k);
    total.add(other);
  }
  return total;
}

// The gradient of a logit that is not the target is dz_v = 2^d_v (constant + slope d_v). differentiate in kernels/cpu/logits_row.h has the
// same formula with e in place of 2.
template <class A>
struct Gradient {
  A max, to_exponent, constant, slope, at_target;

  __device__ A operator()(A z) const {
    const A d = clamp_min_exponent((z - max) * to_exponent);
    return exp2_of(d) * multiply_add(slope, d, constant);
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
#pragma unroll 1
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) narrow(value, row + v);
}

// Stores the elements [begin, begin + kWidth) of a row [n] at once if the row is aligned. They have 16 or 8 bytes. begin is a multiple of
// kWidth.
template <int kWidth, class G, class Column>
__device__ void store(G *row, const G (&values)[kWidth], Column begin, Column n, bool is_aligned) {
  if (is_aligned && begin + kWidth <= n) {
    if constexpr (sizeof values == 16) {
      uint4 raw;
      __builtin_memcpy(&raw, values, sizeof raw);
      store_bytes(row + begin, raw);
    } else {
      uint2 raw;
      __builtin_memcpy(&raw, values, sizeof raw);
      *reinterpret_cast<uint64_t *>(row + begin) = static_cast<uint64_t>(raw.y) << 32 | raw.x;  // as a struct it may become two stores
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; i++)
    if (begin + i < n) row[begin + i] = values[i];
}

// A copy of a block's part of a row, [n], in shared memory. A thread reads and overwrites only the packs that it copied itself, so no
// barrier is needed. Elements of the last pack after the end of the row are -Inf.
template <class T>
struct Staged {
  static constexpr int kWidth = Pack<T>::kWidth, kGroup = 4, kStep = kRowThreads * kWidth;

  uint4 *kept;
  int n;

  __device__ static int first() { return static_cast<int>(threadIdx.x) * kWidth; }
  // Calls f(column) for the thread's packs in the group of packs that begins at column `from`.
  template <class F>
  __device__ void for_each(int from, const F &f) const {
#pragma unroll
    for (int i = 0; i < kGroup; i++) {
      const int at = from + first() + i * kStep;
      if (at < n) f(at);
    }
  }
  __device__ uint4 *place(int begin) const { return kept + static_cast<unsigned>(begin) / kWidth; }
  __device__ Pack<T> at(int begin) const { return pack_of<T>(*place(begin)); }
  __device__ void fetch(const T *part, bool is_aligned, int begin) const {
    if (is_aligned && begin + kWidth <= n) {
      copy_ahead(place(begin), part + begin);
      return;
    }
    Pack<T> p;
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      if (begin + i < n)
        p.at[i] = part[begin + i];
      else
        narrow(-kInf, &p.at[i]);
    }
    *place(begin) = bytes_of(p);
  }
  __device__ void fetch(const T *part) const {
    const bool is_aligned = aligned(part);
#pragma unroll 1
    for (int from = 0; from < n; from += kGroup * kStep) {
#pragma unroll 1
      for (int at = from + first(); at < n && at < from + kGroup * kStep; at += kStep) fetch(part, is_aligned, at);
      end_copies();
    }
  }
  // Waits for the thread's packs, group by group, and calls f(pack) for each.
  template <class F>
  __device__ void arrive(const F &f) const {
    int left = (n + kGroup * kStep - 1) / (kGroup * kStep);
#pragma unroll 1
    for (int from = 0; from < n; from += kGroup * kStep) {
      wait_for_copies(--left);
      for_each(from, [&](int begin) { f(at(begin)); });
    }
  }
};

// The formula of a row's gradient, and whether the row has a gradient. One thread of a block computes it for all threads.
template <class A>
struct RowVerdict {
  Gradient<A> gradient;
  int32_t target;
  bool differentiable;
};

// Returns the verdict on row r with the sums s, and reports a row without a gradient to f.
template <class A, class F>
__device__ RowVerdict<A> verdict_on(const F &f, int64_t r, int32_t target, const RowSums &s, double target_logit, double inv_tau,
                                    int64_t vocab) {
  RowVerdict<A> verdict{{}, target, false};
  if (s.unreadable || target < 0 || target >= vocab) {
    f.unreadable(r);
  } else if (s.all_impossible()) {
    f.impossible(r);
  } else {
    verdict.gradient = f.gradient(r, s, (target_logit - s.max) * inv_tau);
    verdict.differentiable = true;
  }
  return verdict;
}

// Overwrites the block's part [n] of a row by its gradients. `target` is the target's column in the part, or a number outside. If the row
// is staged, it also fetches the block's part of the next row, unless next_part is null.
template <bool kStaged, class T, class G, class A, class Column>
__device__ void write_gradients(G *gradients, const Staged<T> &staged, const T *part, Column n, const Gradient<A> gradient, Column target,
                                const T *next_part) {
  constexpr int kWidth = Pack<T>::kWidth;
  const bool is_aligned = aligned(part), next_aligned = aligned(next_part);
  const auto differentiate = [&](const Pack<T> &p, Column at) {
    G out[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; i++) narrow(gradient(static_cast<A>(widen(p.at[i]))), &out[i]);
    store(gradients, out, at, n, is_aligned);
    if (target >= at && target < at + kWidth) narrow(gradient.at_target, gradients + target);
  };
  if constexpr (kStaged) {
#pragma unroll 1
    for (int first = 0; first < staged.n; first += staged.kGroup * staged.kStep) {
#pragma unroll 1
      for (int at = first + staged.first(); at < staged.n && at < first + staged.kGroup * staged.kStep; at += staged.kStep) {
        differentiate(staged.at(at), at);
        if (next_part != nullptr) staged.fetch(next_part, next_aligned, at);
      }
      if (next_part != nullptr) end_copies();
    }
  } else {
#pragma unroll 1
    for (Column first = 0; first < n; first += staged.kStep) {
      const Column at = first + staged.first();
      const Pack<T> p = load_pack(part, at, n, is_aligned);
      if constexpr (sizeof(G) < sizeof(T))
        __syncthreads();  // waits until other threads have read the packs that the stores below overwrite
      if (at < n) differentiate(p, at);
    }
  }
}

// Overwrites rows of logits of type T by their gradients of type G. kStaged: the shared memory has space for the block's part of a row.
//
// All threads of the cluster call f.skips(r), which returns true if row r is masked. Such a row is not read, and its gradient is 0. One
// thread of every block calls the other functions. f.unreadable(r) is called for a row with a NaN or +Inf, and for a row whose target is
// not a column. f.impossible(r) is called for a row in which every logit is -Inf. For every other row f.gradient(r, sums, d_y) returns the
// gradient's formula.
template <class T, class G, bool kStaged, class F>
__device__ void differentiate_rows(T *logits, const LogitRows &in, const F &f) {
  using A = typename Compute<T>::type;
  constexpr int kWidth = Pack<T>::kWidth;
  __shared__ Storage<MergeBuffer, 1> buffer;
  // Of this row and of the previous row, whose sums another block may still be reading.
  __shared__ Storage<RowSums, 2> block_sums;
  __shared__ Storage<RowVerdict<A>, 1> verdict_of_row;
  __shared__ Storage<double, 1> target_logit;
  const double inv_tau = 1 / in.tau;
  const A scale = exponent_scale<A>(in.tau);
  using Column = std::conditional_t<kStaged, int, int64_t>;
  const unsigned blocks = cluster().num_blocks(), step = gridDim.x / blocks;
  const Column vocab = static_cast<Column>(in.vocab), share = ((vocab + kWidth - 1) / kWidth + blocks - 1) / blocks * kWidth;
  const Column begin = min(static_cast<Column>(cluster().block_rank() * share), vocab), n = min(share, vocab - begin);
  const Staged<T> staged{static_cast<uint4 *>(dynamic_shared()), static_cast<int>(n)};

  unsigned turn = 0;
  int64_t r = blockIdx.x / blocks;
  bool is_read = r < in.rows && !f.skips(r);
  if (kStaged && is_read) staged.fetch(logits + r * in.ld + begin);
  while (r < in.rows) {
    T *const row = logits + r * in.ld, *const part = row + begin;
    G *const gradients = reinterpret_cast<G *>(row) + begin;
    const int32_t y = in.targets[r];
    OnlineSums<A> mine;
    if (is_read) {
      if constexpr (kStaged)
        staged.arrive([&](const Pack<T> &p) { mine.add(p, kWidth, scale); });
      else
        for_each_pack_ahead(part, n, threadIdx.x, kRowThreads, [&](int64_t, const Pack<T> &p, int count) { mine.add(p, count, scale); });
    }
    const int64_t now = r;
    const bool was_read = is_read;
    r += step;
    is_read = r < in.rows && !f.skips(r);
    const T *const next_part = logits + r * in.ld + begin;
    if (!was_read) {
      fill(gradients, n, 0);
      if (kStaged && is_read) staged.fetch(next_part);
      continue;
    }
    const RowSums sums = merge_block(mine, inv_tau, *buffer.get());
    RowSums *const place = block_sums.get() + turn;
    turn ^= 1;
    if (threadIdx.x == 0) {
      *place = sums;
      *target_logit.get() =
          y >= 0 && y < in.vocab ? static_cast<double>(widen(row[y])) : NAN;  // must be read before any block overwrites it
      publish();
    }
    sync_row();
    if (threadIdx.x < kWarp) {
      const RowSums s = merge_cluster(place, inv_tau);
      if (threadIdx.x == 0) *verdict_of_row.get() = verdict_on<A>(f, now, y, s, *target_logit.get(), inv_tau, in.vocab);
    }
    __syncthreads();
    const RowVerdict<A> &verdict = *verdict_of_row.get();
    if (!verdict.differentiable) {
      fill(gradients, n, NAN);
      if (kStaged && is_read) staged.fetch(next_part);
      continue;
    }
    write_gradients<kStaged>(gradients, staged, part, n, verdict.gradient, static_cast<Column>(verdict.target - begin),
                             is_read ? next_part : nullptr);
  }
  sync_row();  // a block must not end while another block reads its sums
}

// The number of blocks that share a row, and the bytes of shared memory of each. 0 bytes means that the row is not kept in shared memory.
struct RowLayout {
  int cluster;
  size_t bytes;
};

// Chooses the smallest cluster whose blocks use at most half of a multiprocessor's shared memory, so that a second block can run there. The
// largest cluster may use the whole shared memory.
inline int32_t row_layout(int64_t row_bytes, RowLayout *out) {
  int device, max_bytes, max_cluster;
  MGRPO_TRY(max_cluster_blocks(&max_cluster));
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&max_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  // The static shared memory of differentiate_rows, and the part that the CUDA runtime reserves.
  constexpr int64_t kStatic = 2 << 10;
  const int64_t whole = max_bytes - kStatic, half = max_bytes / 2 - kStatic;
  for (int cluster = 1; cluster <= max_cluster; cluster *= 2) {
    const int64_t part = (row_bytes / cluster / 16 + 2) * 16;
    if (part > (cluster == max_cluster ? whole : half)) continue;
    *out = {cluster, static_cast<size_t>(part)};
    return MGRPO_OK;
  }
  *out = {1, 0};
  return MGRPO_OK;
}

// Launches a kernel of differentiate_rows for rows of T. It is `staged` if the shared memory has space for a row, and `other` if not.
// `staged` has at most as many blocks as can run at once, and each block computes several rows.
template <class T, class Kernel, class... Arguments>
int32_t launch_rows(Kernel *staged, Kernel *other, const LogitRows &in, cudaStream_t stream, const Arguments &...arguments) {
  RowLayout layout{1, 0};
  MGRPO_TRY(row_layout(in.vocab * static_cast<int64_t>(sizeof(T)), &layout));
  Shape shape{block_count(in.rows), kRowThreads, layout.bytes, layout.cluster};
  if (layout.bytes > 0) {
    unsigned resident;
    MGRPO_TRY(resident_clusters(staged, shape, &resident));
    shape.blocks = shape.blocks < resident ? shape.blocks : resident;
  }
  shape.blocks *= static_cast<unsigned>(layout.cluster);
  return launch(layout.bytes > 0 ? staged : other, shape, stream, arguments...);
}

}  // namespace mgrpo::cuda
