// The parts that the forward and the backward pass of the gated delta rule have in common.
//
// Both passes compute the rows of a sequence one after another. The columns of a state are independent of each other, apart from the
// queries, keys and gates of a row. A block computes some columns of one value head. A thread keeps kEach elements of one column in
// registers, and kLanes neighbouring threads share a column. Meanwhile the queries, keys and gates of the next kChunk rows are prepared in
// shared memory.
#pragma once
#include <type_traits>

#include "delta_rule.h"
#include "sigmoid.cuh"

namespace mgrpo::cuda {

constexpr int kDeltaThreads = 128, kDeltaWarps = kDeltaThreads / kWarp;
constexpr int kEach = 32;                        // elements of a column that a thread has
constexpr int kChunk = 8;                        // rows that are prepared together
constexpr int kPrepared = kChunk / kDeltaWarps;  // rows of a chunk that one warp prepares
constexpr float kUnitEps = 1e-6f;

template <class T>
struct Rule {
  const T *x, *ba;
  const float *a_log, *dt_bias;
  int key_heads, value_heads, key_dim, value_dim;

  Rule(const mgrpo_delta_rule &rule, const void *x, const void *ba)
      : x(static_cast<const T *>(x)),
        ba(static_cast<const T *>(ba)),
        a_log(rule.a_log),
        dt_bias(rule.dt_bias),
        key_heads(static_cast<int>(rule.key_heads)),
        value_heads(static_cast<int>(rule.value_heads)),
        key_dim(static_cast<int>(rule.key_dim)),
        value_dim(static_cast<int>(rule.value_dim)) {}

  __host__ __device__ int64_t keys() const { return static_cast<int64_t>(key_heads) * key_dim; }
  __host__ __device__ int64_t values() const { return static_cast<int64_t>(value_heads) * value_dim; }
  __host__ __device__ int64_t width() const { return 2 * keys() + values(); }
  __host__ __device__ int64_t state() const { return static_cast<int64_t>(key_dim) * value_dim; }
  __host__ __device__ int group() const { return value_heads / key_heads; }
  // Return the index in x of the queries of a key head, of its keys, and of the values of a value head.
  __device__ int64_t q(int64_t row, int key_head) const { return row * width() + static_cast<int64_t>(key_head) * key_dim; }
  __device__ int64_t k(int64_t row, int key_head) const { return q(row, key_head) + keys(); }
  __device__ int64_t v(int64_t row, int head) const { return row * width() + 2 * keys() + static_cast<int64_t>(head) * value_dim; }
  __device__ float b(int64_t row, int head) const { return widen(ba[row * 2 * value_heads + head]); }
  __device__ float a(int64_t row, int head) const { return widen(ba[(row * 2 + 1) * value_heads + head]) + dt_bias[head]; }
  // Returns g. The argument a includes dt_bias. Above 20 softplus is the identity, as in PyTorch.
  __device__ float g(float a, int head) const { return -expf(a_log[head]) * (a > 20 ? a : log1pf(expf(a))); }
  __device__ float q_scale() const { return rsqrtf(static_cast<float>(key_dim)); }
};

// Returns 1 / |x| for the sum of the squares of x.
__device__ inline float unit(float squares) { return 1 / sqrtf(squares + kUnitEps); }

template <int kLanes>
struct Chunk {
  static constexpr int kDim = kLanes * kEach, kColumns = kDeltaThreads / kLanes;
  alignas(16) float q[kChunk][kDim];  // q' and k', padded with zeros
  alignas(16) float k[kChunk][kDim];
  float v[kChunk][kColumns];  // the values of the block's columns, or in the backward pass the gradients of results
  float decay[kChunk], beta[kChunk], kq[kChunk];
};

// Columns [first, first + count) of a value head.
struct Columns {
  int head, first, count;
};

// The numbers of the next rows that a thread has loaded to registers.
template <class T, int kLanes>
class Ahead {
 public:
  // Loads rows [row, row + count). The values of `columns` come from v [rows, stride].
  __device__ void load(const Rule<T> &in, const Columns &columns, const T *v, int64_t stride, int64_t row, int count) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, key_head = columns.head / in.group();
#pragma unroll
    for (int own = 0; own < kPrepared; own++) {
      const int64_t t = row + warp * kPrepared + own;
      const bool known = warp * kPrepared + own < count;
#pragma unroll
      for (int e = 0; e < kLanes; e++) {
        const int i = e * kWarp + lane;
        const bool has = known && i < in.key_dim;
        q_[own][e] = has ? widen(in.x[in.q(t, key_head) + i]) : 0.0f;
        k_[own][e] = has ? widen(in.x[in.k(t, key_head) + i]) : 0.0f;
      }
    }
#pragma unroll
    for (int n = 0; n < kValues; n++) {
      const int t = value_row(n), j = value_column(n);
      v_[n] = t < count && j < columns.count ? widen(v[(row + t) * stride + columns.first + j]) : 0.0f;
    }
    const bool gates = lane < kPrepared && warp * kPrepared + lane < count;
    a_ = gates ? in.a(row + warp * kPrepared + lane, columns.head) : 0.0f;
    b_ = gates ? in.b(row + warp * kPrepared + lane, columns.head) : 0.0f;
  }

  __device__ void prepare(const Rule<T> &in, int head, Chunk<kLanes> &to) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int own = 0; own < kPrepared; own++) {
      const int t = warp * kPrepared + own;
      float qq = 0, kk = 0, kq = 0;
#pragma unroll
      for (int e = 0; e < kLanes; e++) {
        qq = fmaf(q_[own][e], q_[own][e], qq);
        kk = fmaf(k_[own][e], k_[own][e], kk);
        kq = fmaf(k_[own][e], q_[own][e], kq);
      }
      const float of_q = unit(lanes_sum<kWarp>(qq)) * in.q_scale(), of_k = unit(lanes_sum<kWarp>(kk));
      kq = lanes_sum<kWarp>(kq);
#pragma unroll
      for (int e = 0; e < kLanes; e++) {
        to.q[t][e * kWarp + lane] = q_[own][e] * of_q;
        to.k[t][e * kWarp + lane] = k_[own][e] * of_k;
      }
      if (lane == 0) to.kq[t] = kq * of_k * of_q;
    }
#pragma unroll
    for (int n = 0; n < kValues; n++) to.v[value_row(n)][value_column(n)] = v_[n];
    if (lane < kPrepared) {
      to.decay[warp * kPrepared + lane] = expf(in.g(a_, head));
      to.beta[warp * kPrepared + lane] = sigmoid(b_);
    }
  }

 private:
  static constexpr int kColumns = Chunk<kLanes>::kColumns, kValues = kChunk * kColumns / kDeltaThreads;
  static __device__ int value_row(int n) { return (static_cast<int>(threadIdx.x) + n * kDeltaThreads) / kColumns; }
  static __device__ int value_column(int n) { return (static_cast<int>(threadIdx.x) + n * kDeltaThreads) % kColumns; }

  float q_[kPrepared][kLanes], k_[kPrepared][kLanes], v_[kValues], a_, b_;
};

// A thread's part of a column of the state. All threads of the block call the functions.
template <int kLanes>
class Column {
 public:
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int number() { return static_cast<int>(threadIdx.x) / kLanes; }

  float4 at[kEach / 4];  // at[n] has elements 4 (n kLanes + lane) to 4 (n kLanes + lane) + 3

  __device__ void clear() {
#pragma unroll
    for (float4 &v : at) v = {0, 0, 0, 0};
  }
  // Adds a state [key_dim, value_dim].
  template <class T>
  __device__ void add(const Rule<T> &in, const Columns &columns, const float *state) {
    each(in, columns, [&](float &v, int64_t place) { v += state[place]; });
  }
  template <class T>
  __device__ void load(const Rule<T> &in, const Columns &columns, const float *state) {
    clear();
    each(in, columns, [&](float &v, int64_t place) { v = state[place]; });
  }
  template <class T>
  __device__ void store(const Rule<T> &in, const Columns &columns, float *state) {
    each(in, columns, [&](float &v, int64_t place) { state[place] = v; });
  }
  static __device__ float4 part(const float *row, int n) { return *reinterpret_cast<const float4 *>(row + 4 * (n * kLanes + lane())); }

  // Returns the dot product of the column and a vector in shared memory to every lane that shares the column.
  __device__ float dot(const float *vector) const {
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < kEach / 4; n++) {
      const float4 v = part(vector, n);
      sum.x = fmaf(at[n].x, v.x, sum.x);
      sum.y = fmaf(at[n].y, v.y, sum.y);
      sum.z = fmaf(at[n].z, v.z, sum.z);
      sum.w = fmaf(at[n].w, v.w, sum.w);
    }
    return lanes_sum<kLanes>((sum.x + sum.y) + (sum.z + sum.w));
  }

 private:
  template <class T, class F>
  __device__ void each(const Rule<T> &in, const Columns &columns, const F &f) {
    if (number() >= columns.count) return;
#pragma unroll
    for (int n = 0; n < kEach / 4; n++) {
      const int i = 4 * (n * kLanes + lane());
      const int64_t place = static_cast<int64_t>(i) * in.value_dim + columns.first + number();
      if (i < in.key_dim) f(at[n].x, place);
      if (i + 1 < in.key_dim) f(at[n].y, place + in.value_dim);
      if (i + 2 < in.key_dim) f(at[n].z, place + 2 * in.value_dim);
      if (i + 3 < in.key_dim) f(at[n].w, place + 3 * in.value_dim);
    }
  }
};

// Calls f(row, index in the chunk) for rows [begin, end), in reverse order if kReverse. v [rows, stride] has the values of all columns of
// the head.
template <bool kReverse, class T, int kLanes, class F>
__device__ void for_rows(const Rule<T> &in, const Columns &columns, const T *v, int64_t stride, int64_t begin, int64_t end,
                         Chunk<kLanes> &chunk, const F &f) {
  const int chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  const auto first = [&](int n) { return begin + (kReverse ? chunks - 1 - n : n) * kChunk; };
  const auto count = [&](int n) { return static_cast<int>(end - first(n) < kChunk ? end - first(n) : kChunk); };
  Ahead<T, kLanes> ahead;
  ahead.load(in, columns, v, stride, first(0), count(0));
  for (int n = 0; n < chunks; n++) {
    __syncthreads();  // waits until all threads have read the previous chunk
    ahead.prepare(in, columns.head, chunk);
    __syncthreads();
    if (n + 1 < chunks) ahead.load(in, columns, v, stride, first(n + 1), count(n + 1));
    for (int i = 0; i < count(n); i++) {
      const int t = kReverse ? count(n) - 1 - i : i;
      f(first(n) + t, t);
    }
  }
}

// Divides the columns of the value heads of several items into tasks of one block each. An item is a chain or a run of rows.
template <int kLanes>
struct Tasks {
  int64_t items;
  int heads, value_dim;

  __host__ __device__ int groups() const { return (value_dim + Chunk<kLanes>::kColumns - 1) / Chunk<kLanes>::kColumns; }
  __host__ __device__ int64_t count() const { return items * heads * groups(); }
  Shape shape() const { return {block_count(count()), kDeltaThreads}; }

  // Calls f(item, columns) for each of the block's tasks.
  template <class F>
  __device__ void each(const F &f) const {
    for (int64_t task = blockIdx.x; task < count(); task += gridDim.x) {
      const int first = static_cast<int>(task % groups()) * Chunk<kLanes>::kColumns;
      const int left = value_dim - first;
      f(task / groups() / heads,
        Columns{static_cast<int>(task / groups() % heads), first, left < Chunk<kLanes>::kColumns ? left : Chunk<kLanes>::kColumns});
    }
  }
};

// Calls f with the number of threads that share a column, as an integral constant.
template <class F>
int32_t for_lanes(int64_t key_dim, const F &f) {
  if (key_dim <= kEach) return f(std::integral_constant<int, 1>{});
  if (key_dim <= 2 * kEach) return f(std::integral_constant<int, 2>{});
  if (key_dim <= 4 * kEach) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, 8>{});
}

// The pieces of mgrpo_pieces and the chains of one level.
struct Chains {
  const int32_t *first, *before, *chain, *order;
  int64_t chains, from,
      count;  // `chains` counts the chains of all levels; this level has the chains order[from] to order[from + count - 1]

  Chains(const mgrpo_pieces &p, int64_t level)
      : first(p.first),
        before(p.before),
        chain(p.chain),
        order(p.order),
        chains(p.chains),
        from(p.level[level]),
        count(p.level[level + 1] - p.level[level]) {}
};

inline bool valid_delta_call(const mgrpo_delta_rule &rule, const mgrpo_pieces &pieces, int64_t rows) {
  return valid_rule(rule, rows, pieces.count) && pieces.count >= 0 && pieces.chains >= 0 && pieces.levels >= 0 && rows <= INT32_MAX &&
         (rows == 0 || !any_null({rule.a_log, rule.dt_bias, pieces.first, pieces.before, pieces.chain, pieces.order, pieces.level}));
}

}  // namespace mgrpo::cuda
