// One block a row. Forward reads the row once; backward reads it twice, the second time mostly from L2
// (a float32 row of 49,152 is 192 KiB), and writes it once.
#include "mgrpo/logprob.h"

#include "device.h"
#include "row.cuh"
#include "temperature.h"

namespace mgrpo::cuda {
namespace {

struct Rows {
  int64_t rows, vocab, ld;
  const int32_t *targets;
  const uint8_t *mask;
  double tau;
};

__device__ bool target_ok(const Rows &in, int64_t row) { return in.targets[row] >= 0 && in.targets[row] < in.vocab; }

template <class T>
__global__ __launch_bounds__(kRowThreads, 2) void forward_kernel(const T *logits, Rows in, typename Compute<T>::type *logp,
                                                              typename Compute<T>::type *entropy, int64_t *bad_row) {
  __shared__ Storage<RowRoom, 1> room;
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    double lp = 0, h = 0;
    if (in.mask == nullptr || in.mask[r] != 0) {
      const T *row = logits + r * in.ld;
      const RowSums s = row_sums(row, in.vocab, in.tau, *room.get());
      if (s.unreadable || !target_ok(in, r)) {
        lp = h = NAN;
        if (threadIdx.x == 0) report_least(bad_row, r);
      } else if (s.all_impossible()) {
        lp = -kInf;
      } else {
        const double log_sum = log(s.sum);
        lp = (static_cast<double>(widen(row[in.targets[r]])) - s.max) / in.tau - log_sum;
        h = log_sum - s.mean_exponent();
      }
    }
    if (threadIdx.x == 0) {
      narrow(lp, logp + r);
      if (entropy) narrow(h, entropy + r);
    }
  }
}

template <class T>
__device__ void fill(T *row, int64_t n, double value) {
  for (int64_t v = threadIdx.x; v < n; v += blockDim.x) narrow(value, row + v);
}

template <class T>
__global__ __launch_bounds__(kRowThreads, 2) void backward_kernel(T *logits, Rows in, const typename Compute<T>::type *dlogp,
                                                               const typename Compute<T>::type *dentropy,
                                                               int64_t *bad_row) {
  using A = typename Compute<T>::type;
  __shared__ Storage<RowRoom, 1> room;
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    T *row = logits + r * in.ld;
    if (in.mask != nullptr && in.mask[r] == 0) {
      fill(row, in.vocab, 0);
      continue;
    }
    const RowSums s = row_sums(row, in.vocab, in.tau, *room.get());
    if (s.unreadable || s.all_impossible() || !target_ok(in, r)) {
      if (threadIdx.x == 0) report_least(bad_row, r);
      fill(row, in.vocab, NAN);
      continue;
    }
    // As in the CPU kernel: dz_v = exp(d_v) (constant + slope d_v), and at the target G (1 - p) from S - exp(d_y). Here d_v is an exponent of 2.
    const double g = dlogp[r], e = dentropy ? dentropy[r] : 0;
    const double mean = s.mean_exponent(), scale = 1 / (in.tau * s.sum);
    const int32_t y = in.targets[r];
    const double dy = (static_cast<double>(widen(row[y])) - s.max) / in.tau, ey = exp(dy);
    const double at_target = scale * (g * (s.sum - ey) - (ey > 0 ? e * ey * (dy - mean) : 0));
    __syncthreads();  // every thread has read z_y
    const A max = static_cast<A>(s.max), to_exponent = exponent_scale<A>(in.tau);
    const A constant = static_cast<A>(-scale * (g - e * mean)), slope = static_cast<A>(-scale * e * kLn2);
    transform(row, in.vocab, [=](A z) {
      const A d = floored((z - max) * to_exponent);
      return exp2_of(d) * fused(slope, d, constant);
    });
    __syncthreads();
    if (threadIdx.x == 0) narrow(at_target, row + y);
  }
}

bool valid(const Rows &in, const void *logits, const void *output, const int64_t *bad_row) {
  return in.rows >= 0 && in.vocab >= 1 && in.vocab <= in.ld && valid_temperature(in.tau) && bad_row &&
         (in.rows == 0 || (logits && in.targets && output));
}

int32_t finish(const Scratch<int64_t> &bad, int64_t *bad_row) {
  MGRPO_TRY(bad.download(bad_row, 1));
  return *bad_row < 0 ? MGRPO_OK : MGRPO_NON_FINITE;
}

template <class T>
int32_t forward(const void *logits, const Rows &in, void *logp, void *entropy, int64_t *bad_row, cudaStream_t stream) {
  using A = typename Compute<T>::type;
  Scratch<int64_t> bad(stream);
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(launch(forward_kernel<T>, {block_count(in.rows), kRowThreads}, stream, static_cast<const T *>(logits), in,
                   static_cast<A *>(logp), static_cast<A *>(entropy), bad.get()));
  return finish(bad, bad_row);
}

template <class T>
int32_t backward(void *logits, const Rows &in, const void *dlogp, const void *dentropy, int64_t *bad_row,
                 cudaStream_t stream) {
  using A = typename Compute<T>::type;
  Scratch<int64_t> bad(stream);
  MGRPO_TRY(bad.allocate_ones(1));
  MGRPO_TRY(launch(backward_kernel<T>, {block_count(in.rows), kRowThreads}, stream, static_cast<T *>(logits), in,
                   static_cast<const A *>(dlogp), static_cast<const A *>(dentropy), bad.get()));
  return finish(bad, bad_row);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

int32_t mgrpo_token_logprob_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                 const int32_t *targets, const uint8_t *mask_or_null, double tau, void *logp,
                                 void *entropy_or_null, int64_t *bad_row, void *stream) {
  const Rows in{rows, vocab, ld, targets, mask_or_null, tau};
  if (!valid(in, logits, logp, bad_row)) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows == 0) return MGRPO_OK;
  switch (dtype) {
    case MGRPO_FLOAT32: return forward<float>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
    case MGRPO_BFLOAT16: return forward<__nv_bfloat16>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
    case MGRPO_FLOAT64: return forward<double>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}

int32_t mgrpo_token_logprob_bwd_cuda(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                     const int32_t *targets, const uint8_t *mask_or_null, double tau, const void *dlogp,
                                     const void *dentropy_or_null, int64_t *bad_row, void *stream) {
  const Rows in{rows, vocab, ld, targets, mask_or_null, tau};
  if (!valid(in, logits, dlogp, bad_row)) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows == 0) return MGRPO_OK;
  switch (dtype) {
    case MGRPO_FLOAT32: return backward<float>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
    case MGRPO_BFLOAT16: return backward<__nv_bfloat16>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
    case MGRPO_FLOAT64: return backward<double>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}
