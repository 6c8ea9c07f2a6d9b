// The short convolution and its backward pass. A thread computes one pack of channels of a row. In the forward pass it reads the same
// channels of the rows before that row in its sequence. In the backward pass it reads them in the rows whose convolutions use that row.
#include "heads.cuh"
#include "short_conv.h"
#include "sigmoid.cuh"

namespace mgrpo::cuda {
namespace {

constexpr int kThreads = kHeadThreads;
constexpr int32_t kNone = -1, kUnknown = -2;

struct Segments {
  const int32_t *cu, *follows;  // follows may be null
  int64_t batch, rows;

  __device__ bool empty(int64_t s) const { return cu[s] == cu[s + 1]; }
  __device__ int32_t parent(int64_t s) const {
    const int32_t row = follows != nullptr ? follows[s] : kNone;
    return row < kNone || row >= cu[s] ? kUnknown : row;
  }
  // If segment s continues a row other than the last of segment s - 1, returns that row, else kNone.
  __device__ int32_t branch_row(int64_t s) const {
    const int32_t row = empty(s) ? kNone : parent(s);
    return row >= 0 && row != cu[s] - 1 ? row : kNone;
  }
};

// The order of rows in their sequences: the row before each row, and the segments that branch off after each row. The class Rows of
// kernels/cpu/short_conv.cpp has the same lists.
struct Rows {
  const int32_t *before, *first_branch, *segment;  // of each row: the row before it, the first branch after it, its segment
  const int32_t *next_branch, *cu;                 // of each segment: the next branch after the same row; its first row
  int64_t rows;
};

// Lists the order of the rows. A thread looks for the neighbours of a branch among all segments, so the search makes O(batch^2) reads in
// all. In a run the learner makes at most one segment of each sequence of a micro-batch, and each segment has a row. Some 40 sequences fill
// the default micro-batch of 4,096 rows if each adds 100 rows. A batch has 4,096 segments only if each sequence adds one row.
__global__ __launch_bounds__(kThreads) void short_conv_order_kernel(Segments in, int32_t *before, int32_t *first_branch, int32_t *segment,
                                                                    int32_t *next_branch) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads, first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (int64_t r = first; r < in.rows; r += stride) {
    int64_t low = 0, high = in.batch - 1;  // the last segment that begins at or before the row
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (in.cu[middle] <= r)
        low = middle;
      else
        high = middle - 1;
    }
    before[r] = r > in.cu[low] ? static_cast<int32_t>(r - 1) : in.parent(low);
    segment[r] = static_cast<int32_t>(low);
  }
  for (int64_t s = first; s < in.batch; s += stride) {
    const int32_t row = in.branch_row(s);
    if (row == kNone) continue;
    bool is_first = true;
    for (int64_t other = 0; other < s && is_first; other++) is_first = in.branch_row(other) != row;
    if (is_first) first_branch[row] = static_cast<int32_t>(s);
    int64_t after = s + 1;
    while (after < in.batch && in.branch_row(after) != row) after++;
    if (after < in.batch) next_branch[s] = static_cast<int32_t>(after);
  }
}

// The inputs of a convolution. With kSilu a row of bcx is u itself, and there are no gates.
template <class T, bool kSilu>
struct Conv {
  const T *bcx, *w, *bias;  // bias may be null
  int64_t rows, d;
  int width;

  Conv(const void *bcx, const mgrpo_short_conv &conv, int64_t rows)
      : bcx(static_cast<const T *>(bcx)),
        w(static_cast<const T *>(conv.w)),
        bias(static_cast<const T *>(conv.bias_or_null)),
        rows(rows),
        d(conv.d),
        width(static_cast<int>(conv.width)) {}

  enum Third { kB, kC, kX };
  __host__ __device__ int64_t at(int64_t row, Third third) const { return kSilu ? row * d : (row * 3 + third) * d; }
  __device__ Pack<T> load(int64_t row, Third third, int64_t begin) const {
    const T *from = bcx + at(row, third);
    return load_pack(from, begin, d, aligned(from));
  }
  __device__ Pack<T> input(int64_t row, int64_t begin) const {
    Pack<T> u = load(row, kB, begin);
    if constexpr (kSilu) return u;
    const Pack<T> x = load(row, kX, begin);
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) narrow(widen(u.at[i]) * widen(x.at[i]), &u.at[i]);
    return u;
  }
  // Returns one element of input().
  __device__ float input_at(int64_t row, int64_t j) const {
    T u = bcx[at(row, kB) + j];
    if constexpr (!kSilu) narrow(widen(u) * widen(bcx[at(row, kX) + j]), &u);
    return widen(u);
  }
  // Returns the result of a row whose convolution is `sum`.
  __device__ Pack<T> result(int64_t row, int64_t begin, const float (&sum)[Pack<T>::kWidth], bool unknown) const {
    Pack<T> y;
    if constexpr (kSilu) {
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++) narrow(unknown ? NAN : sum[i] * sigmoid(sum[i]), &y.at[i]);
    } else {
      y = load(row, kC, begin);
      scale(sum, unknown, &y);
    }
    return y;
  }
  __device__ float weight(int64_t channel, int tap) const { return channel < d ? widen(w[channel * width + tap]) : 0.0f; }

  // Multiplies the elements of a pack by factors.
  static __device__ void scale(const float (&factors)[Pack<T>::kWidth], bool unknown, Pack<T> *p) {
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) narrow(unknown ? NAN : widen(p->at[i]) * factors[i], &p->at[i]);
  }
};

// The gradients of the convolutions. With gates they are dy times C. With kSilu short_conv_slopes_kernel has computed them.
template <class T, bool kSilu>
struct ConvGradients {
  Conv<T, kSilu> in;
  const T *dy;
  const float *conv_gradients;  // [rows, d], with kSilu

  __device__ float at(int64_t row, int64_t j) const {
    if constexpr (kSilu) return conv_gradients[row * in.d + j];
    return widen(dy[row * in.d + j]) * widen(in.bcx[in.at(row, Conv<T, kSilu>::kC) + j]);
  }
  __device__ void load(int64_t row, int64_t begin, float (&to)[Pack<T>::kWidth]) const {
    if constexpr (kSilu) {
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++) to[i] = begin + i < in.d ? conv_gradients[row * in.d + begin + i] : 0.0f;
    } else {
      const Pack<T> grad = load_pack(dy + row * in.d, begin, in.d, aligned(dy + row * in.d)), c = in.load(row, Conv<T, kSilu>::kC, begin);
#pragma unroll
      for (int i = 0; i < Pack<T>::kWidth; i++) to[i] = widen(grad.at[i]) * widen(c.at[i]);
    }
  }
};

// Computes the convolution of a row. input(n) returns the pack of the row n places before it, for n < count.
template <class T, bool kSilu, class Load>
__device__ void convolve(const Conv<T, kSilu> &in, int64_t begin, int count, const Load &input, float (&sum)[Pack<T>::kWidth]) {
#pragma unroll
  for (int i = 0; i < Pack<T>::kWidth; i++) sum[i] = in.bias != nullptr && begin + i < in.d ? widen(in.bias[begin + i]) : 0.0f;
  for (int n = count - 1; n >= 0; n--) {
    const Pack<T> u = input(n);
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) sum[i] += in.weight(begin + i, in.width - 1 - n) * widen(u.at[i]);
  }
}

// The rows that the convolution of a row reads: that row and the rows before it, `count` in all. unknown: a segment follows an invalid row.
struct Window {
  int64_t at[kMaxTaps];
  int count;
  bool unknown;

  template <class T, bool kSilu>
  __device__ Window(const Conv<T, kSilu> &in, const Rows &rows, int64_t row) : count(0), unknown(false) {
#pragma unroll
    for (int n = 0; n < kMaxTaps; n++) {
      if (n >= in.width || row < 0) continue;
      at[n] = row;
      count++;
      row = rows.before[row];
      unknown |= row == kUnknown && n + 1 < in.width;
    }
  }
  __device__ int64_t of(int n) const {
    int64_t row = at[0];
#pragma unroll
    for (int i = 1; i < kMaxTaps; i++) row = i == n ? at[i] : row;
    return row;
  }
};

// Calls f(row, channel) for each of the thread's packs. channel is the first channel of the pack.
template <class T, class F>
__device__ void for_each_pack_of_rows(int64_t rows, int64_t d, const F &f) {
  const int64_t packs = packs_of<T>(d), stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; t < rows * packs; t += stride)
    f(t / packs, t % packs * Pack<T>::kWidth);
}

template <class T>
unsigned blocks_of(int64_t rows, int64_t d) {
  return block_count((rows * packs_of<T>(d) + kThreads - 1) / kThreads);
}

template <class T, bool kSilu>
__global__ __launch_bounds__(kThreads) void short_conv_packed_kernel(Conv<T, kSilu> in, Rows rows, T *y) {
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    const Window window(in, rows, row);
    float sum[Pack<T>::kWidth];
    convolve(in, begin, window.count, [&](int n) { return in.input(window.of(n), begin); }, sum);
    T *to = y + row * in.d;
    store_pack(to, in.result(row, begin, sum, window.unknown), begin, in.d, aligned(to));
  });
}

// Computes the gradients of convolutions with kSilu, [rows, d].
template <class T>
__global__ __launch_bounds__(kThreads) void short_conv_slopes_kernel(Conv<T, true> in, Rows rows, const T *dy, float *to) {
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    const Window window(in, rows, row);
    float sum[Pack<T>::kWidth];
    convolve(in, begin, window.count, [&](int n) { return in.input(window.of(n), begin); }, sum);
    const Pack<T> grad = load_pack(dy + row * in.d, begin, in.d, aligned(dy + row * in.d));
#pragma unroll
    for (int i = 0; i < Pack<T>::kWidth; i++) {
      const float2 s = both_sigmoids(sum[i]);
      if (begin + i < in.d) to[row * in.d + begin + i] = window.unknown ? NAN : widen(grad.at[i]) * s.x * fmaf(sum[i], s.y, 1.0f);
    }
  });
}

// Calls f(row, distance) for a row and for the rows that come after it within max_distance rows, in depth-first order.
template <class F>
__device__ void each_reader(const Rows &rows, int64_t row, int max_distance, const F &f) {
  const auto is_next = [&](int64_t at) { return at + 1 < rows.rows && rows.before[at + 1] == at; };
  const auto first_of = [&](int32_t segment) { return segment == kNone ? int64_t{kNone} : rows.cu[segment]; };
  int64_t at = row;
  int distance = 0;
  f(at, distance);
  for (bool down = true;;) {
    if (down && distance < max_distance) {
      const int64_t child = is_next(at) ? at + 1 : first_of(rows.first_branch[at]);
      if (child != kNone) {
        f(at = child, ++distance);
        continue;
      }
    }
    if (distance == 0) return;
    const int64_t parent = rows.before[at];
    const int64_t sibling = first_of(at == parent + 1 ? rows.first_branch[parent] : rows.next_branch[rows.segment[at]]);
    down = sibling != kNone;
    at = down ? sibling : parent;
    if (down)
      f(at, distance);
    else
      distance--;
  }
}

template <class T, bool kSilu>
__global__ __launch_bounds__(kThreads) void short_conv_bwd_kernel(Conv<T, kSilu> in, Rows rows, ConvGradients<T, kSilu> gradients,
                                                                  T *dbcx) {
  using C = Conv<T, kSilu>;
  constexpr int kWidth = Pack<T>::kWidth;
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    const auto store = [&](typename C::Third third, const Pack<T> &p) {
      T *to = dbcx + in.at(row, third);
      store_pack(to, p, begin, in.d, aligned(to));
    };
    if constexpr (!kSilu) {
      const Window window(in, rows, row);
      float sum[kWidth];
      convolve(in, begin, window.count, [&](int n) { return in.input(window.of(n), begin); }, sum);
      Pack<T> dc = load_pack(gradients.dy + row * in.d, begin, in.d, aligned(gradients.dy + row * in.d));
      C::scale(sum, window.unknown, &dc);
      store(C::kC, dc);
    }
    float du[kWidth] = {};
    each_reader(rows, row, in.width - 1, [&](int64_t reader, int distance) {
      float gradient[kWidth];
      gradients.load(reader, begin, gradient);
#pragma unroll
      for (int i = 0; i < kWidth; i++) du[i] += in.weight(begin + i, in.width - 1 - distance) * gradient[i];
    });
    if constexpr (kSilu) {
      Pack<T> result;
#pragma unroll
      for (int i = 0; i < kWidth; i++) narrow(du[i], &result.at[i]);
      store(C::kB, result);
    } else {
      Pack<T> db = in.load(row, C::kX, begin), dx = in.load(row, C::kB, begin);
      C::scale(du, false, &db);
      C::scale(du, false, &dx);
      store(C::kB, db);
      store(C::kX, dx);
    }
  });
}

// Divides the rows into ranges. The sum over a range is a partial sum of dw. The ranges depend only on the number of rows.
struct Parts {
  int64_t rows, parts;

  explicit Parts(int64_t rows) : rows(rows) {
    constexpr int64_t kMaxParts = 128, kMinRows = 32;
    const int64_t wanted = (rows + kMinRows - 1) / kMinRows;
    parts = wanted < kMaxParts ? wanted : kMaxParts;
  }
  __device__ int64_t first(int64_t part) const { return rows * part / parts; }
};

// Computes partial sums of dw in to_w [parts, d, width], and of dbias in to_bias [parts, d]. A thread computes one channel of one partial
// sum.
template <class T, bool kSilu>
__global__ __launch_bounds__(kThreads) void short_conv_dw_kernel(Conv<T, kSilu> in, Rows rows, ConvGradients<T, kSilu> gradients,
                                                                 Parts parts, float *to_w, float *to_bias) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; t < parts.parts * in.d; t += stride) {
    const int64_t part = t / in.d, j = t % in.d;
    float dw[kMaxTaps] = {}, dbias = 0;
    for (int64_t r = parts.first(part); r < parts.first(part + 1); r++) {
      const float grad = gradients.at(r, j);
      int64_t at = r;
#pragma unroll
      for (int n = 0; n < kMaxTaps; n++) {
        if (n >= in.width || at < 0) continue;
        dw[n] += grad * in.input_at(at, j);
        at = rows.before[at];
      }
      dbias += grad;
    }
#pragma unroll
    for (int n = 0; n < kMaxTaps; n++)
      if (n < in.width) to_w[t * in.width + in.width - 1 - n] = dw[n];
    to_bias[t] = dbias;
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void short_conv_store_kernel(Conv<T, false> in, InCache places, T *cache) {
  __shared__ int superseded;
  for (int64_t row = blockIdx.x; row < in.rows; row += gridDim.x) {
    const int64_t place = places.claim(row, &superseded);
    if (place < 0) continue;
    T *to = cache + place * in.d;
    for (int64_t begin = static_cast<int64_t>(threadIdx.x) * Pack<T>::kWidth; begin < in.d; begin += kThreads * Pack<T>::kWidth)
      store_pack(to, in.input(row, begin), begin, in.d, aligned(to));
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void short_conv_cached_kernel(Conv<T, false> in, InCache places, const T *cache, T *y) {
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    const int64_t sequence = places.sequence[row], pos = places.pos[row];
    bool unknown = places.pages.place(sequence, pos) < 0;
    const int count = static_cast<int>(pos < in.width ? pos + 1 : in.width);
    float sum[Pack<T>::kWidth];
    convolve(
        in, begin, count,
        [&](int n) {
          const int64_t place = n == 0 ? 0 : places.pages.place(sequence, pos - n);
          unknown |= place < 0;
          const T *from = cache + (place < 0 ? 0 : place) * in.d;
          return n == 0 || place < 0 ? in.input(row, begin) : load_pack(from, begin, in.d, aligned(from));
        },
        sum);
    T *to = y + row * in.d;
    store_pack(to, in.result(row, begin, sum, unknown), begin, in.d, aligned(to));
  });
}

// The slots of rows in the states [slots, width - 1, d]. A run is consecutive rows with the same slot.
struct Slots {
  const int32_t *slot, *pos;
  int64_t slots, rows;

  __device__ bool known(int64_t row) const { return slot[row] >= 0 && slot[row] < slots; }
  __device__ bool begins(int64_t row) const { return row == 0 || slot[row - 1] != slot[row]; }
  __device__ bool ends(int64_t row) const { return row + 1 == rows || slot[row + 1] != slot[row]; }
};

template <class T>
__global__ __launch_bounds__(kThreads) void short_conv_states_kernel(Conv<T, true> in, Slots slots, const T *states, T *y) {
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    const bool unknown = !slots.known(row);
    const int kept = in.width - 1, count = slots.pos[row] < in.width ? slots.pos[row] + 1 : in.width;
    int of_call = 1;  // the number of these rows that are in the call; the other ones are in the state
    while (of_call < in.width && !slots.begins(row - of_call + 1)) of_call++;
    float sum[Pack<T>::kWidth];
    convolve(
        in, begin, unknown ? 0 : count,
        [&](int n) {
          if (n < of_call) return in.input(row - n, begin);
          const T *from = states + (static_cast<int64_t>(slots.slot[row]) * kept + kept - 1 - (n - of_call)) * in.d;
          return load_pack(from, begin, in.d, aligned(from));
        },
        sum);
    T *to = y + row * in.d;
    store_pack(to, in.result(row, begin, sum, unknown), begin, in.d, aligned(to));
  });
}

// Advances the states. The thread of the last row of each run writes the state of its slot.
template <class T>
__global__ __launch_bounds__(kThreads) void short_conv_advance_kernel(Conv<T, true> in, Slots slots, T *states) {
  for_each_pack_of_rows<T>(in.rows, in.d, [&](int64_t row, int64_t begin) {
    if (!slots.ends(row) || !slots.known(row)) return;
    const int kept = in.width - 1;
    int fresh = 0;  // the number of rows of the call that the new state contains
    while (fresh < kept && (fresh == 0 || !slots.begins(row - fresh + 1))) fresh++;
    T *state = states + static_cast<int64_t>(slots.slot[row]) * kept * in.d;
    for (int i = 0; i < kept; i++) {
      const T *from = i + fresh < kept ? state + (i + fresh) * in.d : in.bcx + (row - (kept - 1 - i)) * in.d;
      T *to = state + i * in.d;
      store_pack(to, load_pack(from, begin, in.d, aligned(from)), begin, in.d, aligned(to));
    }
  });
}

// Lists the rows of the segments in scratch memory, and calls f with the lists.
template <class F>
int32_t with_rows(const Segments &segments, cudaStream_t stream, const F &f) {
  Scratch<int32_t> lists(stream);
  MGRPO_TRY(lists.allocate_ones(3 * segments.rows + segments.batch));  // each entry is kNone
  int32_t *before = lists.get(), *first_branch = before + segments.rows, *segment = first_branch + segments.rows,
          *next_branch = segment + segments.rows;
  const int64_t items = segments.rows > segments.batch ? segments.rows : segments.batch;
  MGRPO_TRY(launch(short_conv_order_kernel, {block_count((items + kThreads - 1) / kThreads), kThreads}, stream, segments, before,
                   first_branch, segment, next_branch));
  return f(Rows{before, first_branch, segment, next_branch, segments.cu, segments.rows});
}

template <class T, bool kSilu>
int32_t packed_bwd(const Conv<T, kSilu> &in, const Segments &segments, const void *dy, void *dbcx, float *dw, float *dbias,
                   cudaStream_t stream) {
  const T *grad = static_cast<const T *>(dy);
  const Shape of_rows{blocks_of<T>(in.rows, in.d), kThreads};
  return with_rows(segments, stream, [&](const Rows &rows) {
    Scratch<float> conv_gradients(stream);
    if constexpr (kSilu) {
      MGRPO_TRY(conv_gradients.allocate(in.rows * in.d));
      MGRPO_TRY(launch(short_conv_slopes_kernel<T>, of_rows, stream, in, rows, grad, conv_gradients.get()));
    }
    const ConvGradients<T, kSilu> gradients{in, grad, conv_gradients.get()};
    MGRPO_TRY(launch(short_conv_bwd_kernel<T, kSilu>, of_rows, stream, in, rows, gradients, static_cast<T *>(dbcx)));
    if (dw == nullptr && dbias == nullptr) return int32_t{MGRPO_OK};
    const Parts parts(in.rows);
    const int64_t n = parts.parts, taps = in.d * in.width;
    Scratch<float> sums(stream);
    MGRPO_TRY(sums.allocate(n * (taps + in.d)));
    float *of_bias = sums.get() + n * taps;
    MGRPO_TRY(launch(short_conv_dw_kernel<T, kSilu>, {block_count((n * in.d + kThreads - 1) / kThreads), kThreads}, stream, in, rows,
                     gradients, parts, sums.get(), of_bias));
    return sum_dw({{{sums.get(), dw, n, dw != nullptr ? taps : 0}, {of_bias, dbias, n, dbias != nullptr ? in.d : 0}}}, stream);
  });
}

template <class T, bool kSilu>
int32_t launch_packed(const Conv<T, kSilu> &in, const Rows &rows, void *y, cudaStream_t stream) {
  return launch(short_conv_packed_kernel<T, kSilu>, {blocks_of<T>(in.rows, in.d), kThreads}, stream, in, rows, static_cast<T *>(y));
}

// Calls f with the convolution, whose type depends on the dtype and on silu.
template <class F>
int32_t for_conv(const void *bcx, const mgrpo_short_conv &conv, int64_t rows, int32_t dtype, const F &f) {
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return conv.silu != 0 ? f(Conv<T, true>(bcx, conv, rows)) : f(Conv<T, false>(bcx, conv, rows));
  });
}

bool valid(const mgrpo_short_conv &conv, const int32_t *cu, int64_t batch, int64_t rows) {
  return valid_conv(conv, rows) && valid_sizes({batch}) && rows <= INT32_MAX && (rows == 0 || (batch > 0 && cu != nullptr));
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_short_conv_packed_cuda(const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows_or_null,
                                     int64_t batch, int32_t dtype, void *y, int64_t rows, void *stream) {
  if (!cuda::valid(conv, cu, batch, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({bcx, conv.w, y})) return MGRPO_INVALID_ARGUMENT;
  return for_conv(bcx, conv, rows, dtype, [&](const auto &in) {
    return with_rows({cu, follows_or_null, batch, rows}, stream_of(stream),
                     [&](const Rows &list) { return launch_packed(in, list, y, stream_of(stream)); });
  });
}

int32_t mgrpo_short_conv_packed_bwd_cuda(const void *dy, const void *bcx, mgrpo_short_conv conv, const int32_t *cu,
                                         const int32_t *follows_or_null, int64_t batch, int32_t dtype, void *dbcx, float *dw_or_null,
                                         float *dbias_or_null, int64_t rows, void *stream) {
  if (!cuda::valid(conv, cu, batch, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, bcx, conv.w, dbcx})) return MGRPO_INVALID_ARGUMENT;
  return for_conv(bcx, conv, rows, dtype, [&](const auto &in) {
    return packed_bwd(in, {cu, follows_or_null, batch, rows}, dy, dbcx, dw_or_null, dbias_or_null, stream_of(stream));
  });
}

int32_t mgrpo_short_conv_cached_cuda(const void *bcx, mgrpo_short_conv conv, int32_t dtype, void *cache, mgrpo_pages pages,
                                     const int32_t *sequence, const int32_t *pos, void *y, int64_t rows, void *stream) {
  if (!valid_conv(conv, rows) || conv.silu != 0 || !valid_conv_cache(conv, pages)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({bcx, conv.w, cache, pages.table, sequence, pos, y})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Conv<T, false> in(bcx, conv, rows);
    InCache places{Pages(pages), sequence, pos, rows, nullptr, 0};
    Scratch<InCache::Row> table(stream_of(stream));
    MGRPO_TRY(fill_table(&places, &table, stream_of(stream)));
    MGRPO_TRY(launch(short_conv_store_kernel<T>, {block_count(rows), kThreads}, stream_of(stream), in, places, static_cast<T *>(cache)));
    return launch(short_conv_cached_kernel<T>, {blocks_of<T>(rows, conv.d), kThreads}, stream_of(stream), in, places,
                  static_cast<const T *>(cache), static_cast<T *>(y));
  });
}

int32_t mgrpo_short_conv_states_cuda(const void *u, mgrpo_short_conv conv, int32_t dtype, void *states, int64_t slots, const int32_t *slot,
                                     const int32_t *pos, void *y, int64_t rows, void *stream) {
  if (!valid_conv(conv, rows) || conv.silu == 0 || !valid_sizes({slots, conv.d, conv.width, sizeof(float)})) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({u, conv.w, slot, pos, y}) || (conv.width > 1 && states == nullptr)) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const Conv<T, true> in(u, conv, rows);
    const Slots of{slot, pos, slots, rows};
    const Shape shape{blocks_of<T>(rows, conv.d), kThreads};
    MGRPO_TRY(launch(short_conv_states_kernel<T>, shape, stream_of(stream), in, of, static_cast<const T *>(states), static_cast<T *>(y)));
    if (conv.width == 1) return int32_t{MGRPO_OK};
    return launch(short_conv_advance_kernel<T>, shape, stream_of(stream), in, of, static_cast<T *>(states));
  });
}
