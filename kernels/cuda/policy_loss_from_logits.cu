// A block or, where the row is too long for one block's shared memory, a cluster of up to eight a row (sm_90 on): the
// row is read once, waits in shared memory for its sums, and is written once. Where shared memory does not hold it
// either, one block reads the row twice, the second time from L2 if that is large enough.
// The gradient may be narrower than the logits, in whose place it is written: no thread writes before all have read what lies there.
#include "mgrpo/policy_loss_from_logits.h"

#include "cluster.cuh"
#include "device.h"
#include "policy_rules.h"
#include "row.cuh"

namespace mgrpo::cuda {
namespace {

// The values of a token that come from its trajectory.
struct TokenTrajectory {
  double weight, advantage, coefficient;
};

struct Rows {
  int64_t rows, vocab, ld, first;
  const int32_t *targets;
  double tau;
  const TokenTrajectory *trajectory;  // [rows]
};

// The sums of the cluster's blocks merged in the order of their ranks, for every thread. place: shared memory.
__device__ RowSums merge_cluster(const RowSums &mine, RowSums *place, double inv_tau) {
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
  blocks.sync();  // nobody overwrites its place, or ends, before all have read
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
  return {static_cast<A>(s.max), exponent_scale<A>(tau), static_cast<A>(-scale * (g - e * mean)),
          static_cast<A>(-scale * e * kLn2),
          static_cast<A>(scale * (g * (s.sum - ey) - (ey > 0 ? e * ey * (dy - mean) : 0)))};
}

template <class G>
__device__ void fill(G *row, int64_t n, double value) {
  for (int64_t v = threadIdx.x; v < n; v += kRowThreads) narrow(value, row + v);
}

// A store of so many bytes.
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

// T: the type of the logits, G that of their gradient. kept: room in shared memory for the block's part of a row, unless kStaged is false.
template <class T, class G, bool kStaged>
__global__ __launch_bounds__(kRowThreads, 2) void gradient_kernel(T *logits, Rows in, mgrpo_loss_config c,
                                                               TokenArrays<typename Compute<T>::type> tokens,
                                                               typename Compute<T>::type *logp,
                                                               typename Compute<T>::type *entropy, int64_t *bad_row) {
  using A = typename Compute<T>::type;
  constexpr int kWidth = Pack<T>::kWidth;
  uint4 *const kept = static_cast<uint4 *>(dynamic_shared());
  __shared__ Storage<RowRoom, 1> room;
  __shared__ Storage<RowSums, 1> of_block;
  __shared__ Storage<Gradient<A>, 1> of_row;
  const double inv_tau = 1 / in.tau;
  const int64_t blocks = cluster().num_blocks(), packs = (in.vocab + kWidth - 1) / kWidth, share = (packs + blocks - 1) / blocks * kWidth;
  const int64_t begin = min_of(in.vocab, cluster().block_rank() * share), n = min_of(share, in.vocab - begin);

  for (int64_t r = blockIdx.x / blocks; r < in.rows; r += gridDim.x / blocks) {
    T *const row = logits + r * in.ld, *const part = row + begin;
    G *const gradients = reinterpret_cast<G *>(row) + begin;
    const int64_t token = in.first + r;
    const auto set = [&](double lp, double h) {
      if (cluster().block_rank() > 0 || threadIdx.x > 0) return;
      narrow(lp, logp + token);
      narrow(h, entropy + token);
    };
    const TokenTrajectory of = in.trajectory[r];
    if (tokens.mask[token] == 0 || !(of.weight > 0)) {
      set(0, 0);
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

    if (s.unreadable || !target_ok) {
      if (threadIdx.x == 0) report_least(bad_row, token);
      set(NAN, NAN);
      fill(gradients, n, NAN);
      continue;
    }
    if (s.all_impossible()) {  // the loss refuses its log-prob of -Inf
      set(-kInf, 0);
      fill(gradients, n, NAN);
      continue;
    }
    if (threadIdx.x == 0) {
      const double dy = (zy - s.max) * inv_tau, log_sum = log(s.sum);
      const A lp = static_cast<A>(dy - log_sum);
      const TrajectoryLoss<A> loss{c, tokens, of.weight, of.advantage, of.coefficient, TrajectoryScan{}};
      const TokenTerm<A> term = loss.term_without_entropy(token, lp);  // another block may have stored it
      set(lp, log_sum - s.mean_exponent());
      *of_row.get() = gradient_of<A>(s, dy, in.tau, term.dlogp_new, term.dentropy);
    }
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
int32_t spread_of(int64_t row_bytes, Spread *out) {
  int device, most, largest;
  MGRPO_TRY(largest_cluster(&largest));
  MGRPO_CUDA_TRY(cudaGetDevice(&device));
  MGRPO_CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  constexpr int64_t kStatic = 2 << 10;  // what gradient_kernel declares, and the runtime's reserve
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

template <class T, class G>
int32_t policy_gradient(const mgrpo_logits &z, int64_t first, const mgrpo_loss_batch &b, const mgrpo_loss_config &c,
                        void *logp, void *entropy, int64_t *bad_row, cudaStream_t stream) {
  std::vector<TokenTrajectory> host;
  for (int64_t r = 0; r < z.rows; r++) {
    const int64_t j = trajectory_of(b, first + r);
    host.push_back({b.weight[j], b.advantage[j], b.coefficient[j]});
  }
  Scratch<TokenTrajectory> trajectory(stream);
  MGRPO_TRY(trajectory.upload(host.data(), z.rows));
  const Rows in{z.rows, z.vocab, z.ld, first, z.targets, z.tau, trajectory.get()};
  Spread spread;
  MGRPO_TRY(spread_of(z.vocab * static_cast<int64_t>(sizeof(T)), &spread));
  using A = typename Compute<T>::type;
  return launch(spread.bytes > 0 ? gradient_kernel<T, G, true> : gradient_kernel<T, G, false>,
                {block_count(in.rows) * static_cast<unsigned>(spread.cluster), kRowThreads, spread.bytes, spread.cluster}, stream,
                static_cast<T *>(z.data), in, c, token_arrays<A>(b), static_cast<A *>(logp), static_cast<A *>(entropy), bad_row);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_policy_gradient_from_logits_cuda(const mgrpo_logits *logits, int64_t first, const mgrpo_loss_batch *batch,
                                               const mgrpo_loss_config *config, void *logp, void *entropy,
                                               int64_t *bad_row, mgrpo_loss_error *error, void *stream) {
  if (!logits || !batch || !config || !bad_row || !error) return MGRPO_INVALID_ARGUMENT;
  if (!valid(*config) || !valid(*batch) || !valid(*logits, first, *batch, *config)) return MGRPO_INVALID_ARGUMENT;
  if (batch->tokens > 0 && !(logp && entropy)) return MGRPO_INVALID_ARGUMENT;
  *error = {MGRPO_LOSS_OK, MGRPO_FIELD_NONE, -1, -1, 0};
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  MGRPO_TRY(check_weights(b.weight, b.trajectories, error));
  if (logits->rows == 0) return MGRPO_OK;
  MGRPO_TRY(check_supplied(b, *config, error));
  return guarded([&] {
    const auto run = [&](auto call) {
      return call(*logits, first, b, *config, logp, entropy, bad_row, stream_of(stream));
    };
    switch (logits->dtype) {
      case MGRPO_FLOAT32: return run(narrows(*logits) ? policy_gradient<float, __nv_bfloat16> : policy_gradient<float, float>);
      case MGRPO_BFLOAT16: return run(policy_gradient<__nv_bfloat16, __nv_bfloat16>);
      default: return run(policy_gradient<double, double>);
    }
  });
}

int32_t mgrpo_policy_loss_from_logits_cuda(const mgrpo_logits *logits, const mgrpo_loss_batch *batch,
                                           const mgrpo_loss_config *config, void *logp, void *entropy,
                                           mgrpo_loss_sums *sums, int64_t *bad_row, mgrpo_loss_error *error,
                                           void *stream) {
  if (!logits || !batch || !sums || !bad_row || logits->rows != batch->tokens) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  Scratch<int64_t> bad(stream_of(stream));
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(mgrpo_policy_gradient_from_logits_cuda(logits, 0, batch, config, logp, entropy, bad.get(), error, stream));
  const mgrpo_loss_batch b = with_outputs(*batch, logp, entropy);
  const int32_t status = mgrpo_policy_loss_cuda(&b, config, nullptr, nullptr, sums, error, stream);
  MGRPO_TRY(bad.download(bad_row, 1));
  return *bad_row < 0 ? status : MGRPO_NON_FINITE;
}
