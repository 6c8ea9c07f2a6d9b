// Log-probabilities and entropies of tokens, and their gradients. In the forward pass one block computes a row and reads it once.
#include "mgrpo/logprob.h"
#include "row_gradient.cuh"
#include "temperature.h"

namespace mgrpo::cuda {
namespace {

struct Rows : LogitRows {
  const uint8_t *mask;
};

__device__ bool target_ok(const Rows &in, int64_t row) { return in.targets[row] >= 0 && in.targets[row] < in.vocab; }

template <class T>
__global__ __launch_bounds__(kRowThreads, 2) void logprob_kernel(const T *logits, Rows in, typename Compute<T>::type *logp,
                                                                 typename Compute<T>::type *entropy, int64_t *bad_row) {
  __shared__ Storage<MergeBuffer, 1> buffer;
  for (int64_t r = blockIdx.x; r < in.rows; r += gridDim.x) {
    double lp = 0, h = 0;
    if (in.mask == nullptr || in.mask[r] != 0) {
      const T *row = logits + r * in.ld;
      const RowSums s = row_sums(row, in.vocab, in.tau, *buffer.get());
      if (threadIdx.x > 0) continue;
      if (s.unreadable || !target_ok(in, r)) {
        lp = h = NAN;
        report_min(bad_row, r);
      } else if (s.all_impossible()) {
        lp = -kInf;
      } else {
        const double log_sum = log(s.sum);
        lp = (static_cast<double>(widen(row[in.targets[r]])) - s.max) / in.tau - log_sum;
        h = log_sum - s.mean_exponent();
      }
    }
    if (threadIdx.x > 0) continue;
    narrow(lp, logp + r);
    if (entropy) narrow(h, entropy + r);
  }
}

// The gradients of the rows, given the gradients of their log-probs and entropies. differentiate_rows calls the functions.
template <class A>
struct Gradients {
  const uint8_t *mask;
  double tau;
  const A *dlogp, *dentropy;
  int64_t *bad_row;

  __device__ bool skips(int64_t r) const { return mask != nullptr && mask[r] == 0; }
  __device__ void unreadable(int64_t r) const {
    if (threadIdx.x == 0) report_min(bad_row, r);
  }
  __device__ void impossible(int64_t r) const { unreadable(r); }
  __device__ Gradient<A> gradient(int64_t r, const RowSums &s, double dy) const {
    return gradient_of<A>(s, dy, tau, dlogp[r], dentropy != nullptr ? dentropy[r] : 0);
  }
};

template <class T, bool kStaged>
__global__ __launch_bounds__(kRowThreads, 2) void logprob_bwd_kernel(T *logits, LogitRows in, Gradients<typename Compute<T>::type> of) {
  differentiate_rows<T, T, kStaged>(logits, in, of);
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
  MGRPO_TRY(launch(logprob_kernel<T>, {block_count(in.rows), kRowThreads}, stream, static_cast<const T *>(logits), in,
                   static_cast<A *>(logp), static_cast<A *>(entropy), bad.get()));
  return finish(bad, bad_row);
}

template <class T>
int32_t backward(void *logits, const Rows &in, const void *dlogp, const void *dentropy, int64_t *bad_row, cudaStream_t stream) {
  using A = typename Compute<T>::type;
  Scratch<int64_t> bad(stream);
  MGRPO_TRY(bad.allocate_ones(1));
  const Gradients<A> of{in.mask, in.tau, static_cast<const A *>(dlogp), static_cast<const A *>(dentropy), bad.get()};
  MGRPO_TRY(launch_rows<T>(logprob_bwd_kernel<T, true>, logprob_bwd_kernel<T, false>, in, stream, static_cast<T *>(logits),
                           static_cast<const LogitRows &>(in), of));
  return finish(bad, bad_row);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo::cuda;

int32_t mgrpo_token_logprob_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                 const uint8_t *mask_or_null, double tau, void *logp, void *entropy_or_null, int64_t *bad_row,
                                 void *stream) {
  const Rows in{{rows, vocab, ld, targets, tau}, mask_or_null};
  if (!valid(in, logits, logp, bad_row)) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows == 0) return MGRPO_OK;
  switch (dtype) {
    case MGRPO_FLOAT32:
      return forward<float>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
    case MGRPO_BFLOAT16:
      return forward<__nv_bfloat16>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
    case MGRPO_FLOAT64:
      return forward<double>(logits, in, logp, entropy_or_null, bad_row, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}

int32_t mgrpo_token_logprob_bwd_cuda(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                     const uint8_t *mask_or_null, double tau, const void *dlogp, const void *dentropy_or_null,
                                     int64_t *bad_row, void *stream) {
  const Rows in{{rows, vocab, ld, targets, tau}, mask_or_null};
  if (!valid(in, logits, dlogp, bad_row)) return MGRPO_INVALID_ARGUMENT;
  *bad_row = -1;
  if (rows == 0) return MGRPO_OK;
  switch (dtype) {
    case MGRPO_FLOAT32:
      return backward<float>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
    case MGRPO_BFLOAT16:
      return backward<__nv_bfloat16>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
    case MGRPO_FLOAT64:
      return backward<double>(logits, in, dlogp, dentropy_or_null, bad_row, stream_of(stream));
  }
  return MGRPO_INVALID_ARGUMENT;
}
