// The backward pass of the gated delta rule.
//
// First, there is one launch of delta_rule_bwd_states_kernel for each level of chains, the last level first. It computes the gradient dS
// of the state from the last row back to the first:
//
//   v_t = (dS + q'_t do_t^T)^T k'_t,  e_t = beta_t v_t,  dS <- exp(g_t) (dS + q'_t do_t^T - k'_t e_t^T)
//
// do_t is the gradient of a result, v_t is the gradient of beta_t r_t, and e_t is the gradient of a value. The kernel stores all v_t, and
// dS at the ends of pieces.
//
// Then delta_rule_bwd_pieces_kernel computes the other gradients. Every piece has all its inputs, so blocks compute the pieces in any
// order, one piece for one key head at a time. Let w_s = beta_s r_s. D[t, s] is the decay from after row s up to row t. D0[t] is the decay
// from the start of the piece to row t, and D1[s] is the decay from row s to its end. S0 is the state before the piece, and dS is the
// gradient of the state after it. Then:
//
//   M1[t, s] = (do_t.w_s) D[t, s] for s <= t,   M2[t, s] = (e_t.w_s) D[t, s] for s < t
//   dq'_t = D0[t] S0 do_t + sum over s of M1[t, s] k'_s
//   dk'_t = -D0[t] S0 e_t - sum over s of M2[t, s] k'_s + D1[t] dS w_t + sum over s of (M1[s, t] q'_s - M2[s, t] k'_s)
//
// dg_t is the sum of all terms of the loss that contain the factor exp(g_t). They are the terms that lead from a row before t, or from S0,
// to row t or later, or to dS. A sum of q'.dq' and k'.dk' over the rows would be simpler. But it contains further terms that cancel only
// approximately, and a strong decay multiplies their rounding errors by a large g.
#include "delta_rule.cuh"
#include "norm.cuh"

namespace mgrpo::cuda {
namespace {

// The gradients of states after pieces, and of states before chains.
struct StateGradients {
  float *after, *before;  // [pieces, value_heads, key_dim, value_dim], [chains, ...]
};

// Adds up the gradients of the state after a piece, over the chains that follow the piece, the last chain first.
template <class T, int kLanes>
__device__ void gather(const Rule<T> &in, const Chains &chains, const Columns &columns, int32_t piece, const float *before,
                       Column<kLanes> &column) {
  column.clear();
  for (int64_t base = (chains.chains - 1) / kWarp * kWarp; base >= 0; base -= kWarp) {
    const int64_t c = base + lane();
    unsigned after = __ballot_sync(kAllLanes, c < chains.chains && chains.before[chains.chain[c]] == piece);
    for (; after != 0; after &= ~(1u << (31 - __clz(static_cast<int>(after)))))
      column.add(in, columns, before + ((base + 31 - __clz(static_cast<int>(after))) * in.value_heads + columns.head) * in.state());
  }
}

// Takes the gradient of a column of the state back by one row. Returns v_t.
template <int kLanes>
__device__ float backward_step(Column<kLanes> &column, const Chunk<kLanes> &chunk, int t) {
  const float grad = chunk.v[t][column.number()], decay = chunk.decay[t];
  const float v = fmaf(chunk.kq[t], grad, column.dot(chunk.k[t])), e = v * chunk.beta[t];
#pragma unroll
  for (int n = 0; n < kEach / 4; n++) {
    const float4 q = column.part(chunk.q[t], n), k = column.part(chunk.k[t], n);
    float4 &s = column.at[n];
    s.x = decay * fmaf(-k.x, e, fmaf(q.x, grad, s.x));
    s.y = decay * fmaf(-k.y, e, fmaf(q.y, grad, s.y));
    s.z = decay * fmaf(-k.z, e, fmaf(q.z, grad, s.z));
    s.w = decay * fmaf(-k.w, e, fmaf(q.w, grad, s.w));
  }
  return v;
}

// Computes v_t, which it writes to `to` [rows, value_heads, value_dim], and the gradients of the states.
template <class T, int kLanes>
__global__ __launch_bounds__(kDeltaThreads) void delta_rule_bwd_states_kernel(Rule<T> in, Chains chains, Tasks<kLanes> tasks, const T *dy,
                                                                              StateGradients gradients, float *to) {
  __shared__ Chunk<kLanes> chunk;
  tasks.each([&](int64_t item, const Columns &columns) {
    const int32_t c = chains.order[chains.from + item];
    const int64_t at = static_cast<int64_t>(columns.head) * in.value_dim;
    const bool writes = Column<kLanes>::lane() == 0 && Column<kLanes>::number() < columns.count;
    Column<kLanes> column;
    gather(in, chains, columns, chains.chain[c + 1] - 1, gradients.before, column);
    for (int32_t piece = chains.chain[c + 1] - 1; piece >= chains.chain[c]; piece--) {
      column.store(in, columns, gradients.after + (static_cast<int64_t>(piece) * in.value_heads + columns.head) * in.state());
      for_rows<true>(in, columns, dy + at, in.values(), chains.first[piece], chains.first[piece + 1], chunk, [&](int64_t row, int t) {
        const float v = backward_step(column, chunk, t);
        if (writes) to[row * in.values() + at + columns.first + column.number()] = v;
      });
    }
    column.store(in, columns, gradients.before + (static_cast<int64_t>(c) * in.value_heads + columns.head) * in.state());
  });
}

// A block computes a square of kPieceRows x kPieceRows numbers with kSide x kSide threads, so a thread has kPerThread x kPerThread numbers.
// The rows of arrays in shared memory have an odd stride, so that they begin in different banks.
constexpr int kPieceRows = MGRPO_PIECE_ROWS, kBackThreads = 256, kSide = 16, kPerThread = kPieceRows / kSide;
constexpr int kDepth = 32, kSquareStride = kPieceRows + 1, kStripeStride = kDepth + 1;
static_assert(kSide * kSide == kBackThreads && kPieceRows == 2 * kWarp);

using Square = float[kPieceRows][kSquareStride];
using Stripe = float[kPieceRows][kStripeStride];  // kDepth columns of a piece's rows

// A thread's part of a product [kPieceRows, kPieceRows]: rows y() + kSide i and columns x() + kSide j.
struct Product {
  float at[kPerThread][kPerThread] = {};

  static __device__ int x() { return static_cast<int>(threadIdx.x) % kSide; }
  static __device__ int y() { return static_cast<int>(threadIdx.x) / kSide; }

  // Calls f(row, column, value) for each of the thread's numbers.
  template <class F>
  __device__ void each(const F &f) const {
#pragma unroll
    for (int i = 0; i < kPerThread; i++)
#pragma unroll
      for (int j = 0; j < kPerThread; j++) f(y() + kSide * i, x() + kSide * j, at[i][j]);
  }
  __device__ void add(const float (&left)[kPerThread], const float (&right)[kPerThread]) {
#pragma unroll
    for (int i = 0; i < kPerThread; i++)
#pragma unroll
      for (int j = 0; j < kPerThread; j++) at[i][j] = fmaf(left[i], right[j], at[i][j]);
  }
  __device__ void subtract(const float (&left)[kPerThread], const float (&right)[kPerThread]) {
#pragma unroll
    for (int i = 0; i < kPerThread; i++)
#pragma unroll
      for (int j = 0; j < kPerThread; j++) at[i][j] = fmaf(-left[i], right[j], at[i][j]);
  }
};

// Reads the thread's kPerThread values f(first), f(first + kSide)...
template <class F>
__device__ void take(float (&to)[kPerThread], int first, const F &f) {
#pragma unroll
  for (int i = 0; i < kPerThread; i++) to[i] = f(first + kSide * i);
}

// The shared memory of a block of delta_rule_bwd_pieces_kernel.
struct PieceMemory {
  union {
    struct {
      Stripe grad, e, w;     // the gradients of results, the gradients of values, beta r
      Stripe before, after;  // rows of S0 and of dS
    };
    struct {
      Stripe qs, ks;
    };
    struct {
      Square q, k;
    };
    Square cross_terms;  // the terms of dg that lead from row s (the column) to row t
  };
  Square m1, m2;
  double exponent[kPieceRows];  // the sums of g up to each row
  float g[kPieceRows], beta[kPieceRows], from_start[kPieceRows], to_end[kPieceRows], q_factor[kPieceRows], k_factor[kPieceRows];
  float dbeta[kPieceRows], dg[kPieceRows];
  float from_state[kPieceRows], to_state[kPieceRows];  // terms of dg that lead from S0 to a row, and from a row to dS
  float sums[kBackThreads];
};

template <class T>
struct Backward {
  Rule<T> in;
  const int32_t *first, *before;  // of mgrpo_pieces
  int64_t pieces;
  const T *dy;
  const float *r, *v, *states, *gradients;  // gradients of states after pieces
  T *dx, *dba;
  float *dqk;                          // the gradients of q' and k', [rows, 2 keys]
  float *a_log_terms, *dt_bias_terms;  // [rows, value_heads]
};

// The gradients of one piece, for one key head and its value heads in their order. All threads of the block call every function.
template <class T>
class PieceGradients {
 public:
  __device__ PieceGradients(const Backward<T> &all, PieceMemory &shared, int64_t piece, int key_head)
      : all_(all),
        in_(all.in),
        shared_(shared),
        piece_(piece),
        row_(all.first[piece]),
        n_(all.first[piece + 1] - all.first[piece]),
        key_head_(key_head) {}

  __device__ void run() {
    compute_factors();
    for (int h = 0; h < in_.group(); h++) {
      const int head = key_head_ * in_.group() + h;
      compute_gates(head);
      compute_m1_m2(head);
      compute_cross_terms();
      compute_dbeta(head);
      const float state_product = add_state_terms(head, h == 0);
      write_gate_gradients(head, state_product);
    }
    differentiate_normalisation();
  }

 private:
  static constexpr int kWarps = kBackThreads / kWarp;

  // Computes the factors that turn the queries and keys of the piece's rows into q' and k'.
  __device__ void compute_factors() {
    for (int t = warp(); t < kPieceRows; t += kWarps) {
      float q = 0, k = 0;
      for (int i = lane(); i < in_.key_dim && t < n_; i += kWarp) {
        const float query = widen(in_.x[in_.q(row_ + t, key_head_) + i]), key = widen(in_.x[in_.k(row_ + t, key_head_) + i]);
        q = fmaf(query, query, q);
        k = fmaf(key, key, k);
      }
      q = lanes_sum<kWarp>(q), k = lanes_sum<kWarp>(k);
      if (lane() != 0) continue;
      shared_.q_factor[t] = unit(q) * in_.q_scale();
      shared_.k_factor[t] = unit(k);
    }
  }

  __device__ void compute_gates(int head) {
    __syncthreads();  // waits until all threads have finished the previous head
    const int t = threadIdx.x;
    if (t < kPieceRows) {
      shared_.g[t] = t < n_ ? in_.g(in_.a(row_ + t, head), head) : 0.0f;
      shared_.beta[t] = t < n_ ? sigmoid(in_.b(row_ + t, head)) : 0.0f;
      shared_.from_state[t] = shared_.to_state[t] = 0;
    }
    __syncthreads();
    if (t == 0) {
      double sum = 0;
      for (int s = 0; s < kPieceRows; s++) shared_.exponent[s] = sum += shared_.g[s];
    }
    __syncthreads();
    if (t >= kPieceRows) return;
    shared_.from_start[t] = expf(static_cast<float>(shared_.exponent[t]));
    shared_.to_end[t] = expf(static_cast<float>(shared_.exponent[kPieceRows - 1] - shared_.exponent[t]));
  }

  // Loads columns [begin, begin + kDepth) of the gradients and of w. If `writes` is true, it also writes the gradients of the values.
  __device__ void load_values(int head, int begin, bool writes) {
    for (int item = threadIdx.x; item < kPieceRows * kDepth; item += kBackThreads) {
      const int t = item / kDepth, j = item % kDepth, column = begin + j;
      const bool has = t < n_ && column < in_.value_dim;
      const int64_t at = (row_ + t) * in_.values() + static_cast<int64_t>(head) * in_.value_dim + column;
      const float e = has ? all_.v[at] * shared_.beta[t] : 0.0f;
      shared_.grad[t][j] = has ? widen(all_.dy[at]) : 0.0f;
      shared_.e[t][j] = e;
      shared_.w[t][j] = has ? all_.r[at] * shared_.beta[t] : 0.0f;
      if (has && writes) narrow(e, all_.dx + in_.v(row_ + t, head) + column);
    }
  }
  // Loads columns [begin, begin + kCount) of q' and k'.
  template <int kCount, class To>
  __device__ void load_keys(int begin, To &q, To &k) {
    for (int item = threadIdx.x; item < kPieceRows * kCount; item += kBackThreads) {
      const int t = item / kCount, i = item % kCount;
      const bool has = t < n_ && begin + i < in_.key_dim;
      q[t][i] = has ? widen(in_.x[in_.q(row_ + t, key_head_) + begin + i]) * shared_.q_factor[t] : 0.0f;
      k[t][i] = has ? widen(in_.x[in_.k(row_ + t, key_head_) + begin + i]) * shared_.k_factor[t] : 0.0f;
    }
  }

  // Computes M1 and M2. Each thread has the same elements of them as of q'.k' and of cross_terms.
  __device__ void compute_m1_m2(int head) {
    Product grad_w, e_w;
    float grad[kPerThread], e[kPerThread], w[kPerThread];
    for (int begin = 0; begin < in_.value_dim; begin += kDepth) {
      __syncthreads();
      load_values(head, begin, true);
      __syncthreads();
      for (int j = 0; j < kDepth; j++) {
        take(grad, Product::y(), [&](int t) { return shared_.grad[t][j]; });
        take(e, Product::y(), [&](int t) { return shared_.e[t][j]; });
        take(w, Product::x(), [&](int s) { return shared_.w[s][j]; });
        grad_w.add(grad, w);
        e_w.add(e, w);
      }
    }
    const auto decay = [&](int t, int s) { return expf(static_cast<float>(shared_.exponent[t] - shared_.exponent[s])); };
    grad_w.each([&](int t, int s, float value) { shared_.m1[t][s] = s <= t ? value * decay(t, s) : 0.0f; });
    e_w.each([&](int t, int s, float value) { shared_.m2[t][s] = s < t ? value * decay(t, s) : 0.0f; });
  }

  // Adds up the terms of dg that lead from one row of the piece to another.
  __device__ void compute_cross_terms() {
    Product qk, kk;
    float q[kPerThread], k[kPerThread], right[kPerThread];
    for (int begin = 0; begin < in_.key_dim; begin += kDepth) {
      __syncthreads();
      load_keys<kDepth>(begin, shared_.qs, shared_.ks);
      __syncthreads();
      for (int i = 0; i < kDepth; i++) {
        take(q, Product::y(), [&](int t) { return shared_.qs[t][i]; });
        take(k, Product::y(), [&](int t) { return shared_.ks[t][i]; });
        take(right, Product::x(), [&](int s) { return shared_.ks[s][i]; });
        qk.add(q, right);
        kk.add(k, right);
      }
    }
    __syncthreads();  // waits until all threads have read the stripes
    qk.each([&](int t, int s, float value) { shared_.cross_terms[t][s] = s < t ? shared_.m1[t][s] * value : 0.0f; });
    kk.each([&](int t, int s, float value) {
      if (s < t) shared_.cross_terms[t][s] = fmaf(-shared_.m2[t][s], value, shared_.cross_terms[t][s]);
    });
    sum_cross_terms();
  }
  // Computes the part of dg_t from cross_terms: the sum of the terms that lead from rows before t to row t or later.
  __device__ void sum_cross_terms() {
    __syncthreads();
    const int t = threadIdx.x;
    if (t < kPieceRows) {
      float sum = 0;
      for (int s = 0; s < kPieceRows; s++) {  // replaces cross_terms[t, s] by the sum of the terms from rows before s to row t
        const float term = shared_.cross_terms[t][s];
        shared_.cross_terms[t][s] = sum;
        sum += term;
      }
    }
    __syncthreads();
    if (t >= kPieceRows) return;
    float sum = 0;
    for (int u = kPieceRows - 1; u >= t; u--) sum += shared_.cross_terms[u][t];
    shared_.dg[t] = sum;
  }

  __device__ void compute_dbeta(int head) {
    for (int t = warp(); t < n_; t += kWarps) {
      const int64_t at = (row_ + t) * in_.values() + static_cast<int64_t>(head) * in_.value_dim;
      float sum = 0;
      for (int j = lane(); j < in_.value_dim; j += kWarp) sum = fmaf(all_.v[at + j], all_.r[at + j], sum);
      sum = lanes_sum<kWarp>(sum);
      if (lane() == 0) shared_.dbeta[t] = sum;
    }
  }

  // Adds the gradients of q' and k' to dqk. If `first` is true, it overwrites dqk instead. Returns the inner product <S0, dS>.
  __device__ float add_state_terms(int head, bool first) {
    float state_product = 0;
    for (int begin = 0; begin < in_.key_dim; begin += kPieceRows) {
      Product dq, dk, column;  // S0 do, -S0 e, dS w
      for (int from = 0; from < in_.value_dim; from += kDepth) {
        __syncthreads();
        load_values(head, from, false);
        state_product += load_states(head, begin, from);
        __syncthreads();
        float grad[kPerThread], e[kPerThread], w[kPerThread], before[kPerThread], after[kPerThread];
        for (int j = 0; j < kDepth; j++) {
          take(grad, Product::y(), [&](int t) { return shared_.grad[t][j]; });
          take(e, Product::y(), [&](int t) { return shared_.e[t][j]; });
          take(w, Product::y(), [&](int t) { return shared_.w[t][j]; });
          take(before, Product::x(), [&](int i) { return shared_.before[i][j]; });
          take(after, Product::x(), [&](int i) { return shared_.after[i][j]; });
          dq.add(grad, before);
          dk.subtract(e, before);
          column.add(w, after);
        }
      }
      __syncthreads();
      load_keys<kPieceRows>(begin, shared_.q, shared_.k);
      __syncthreads();
      decay_states(dq, dk, column);
      add_rows(dq, dk);
      add(dq, begin, 0, first);
      add(dk, begin, in_.keys(), first);
    }
    return block_sum<kBackThreads>(state_product, shared_.sums);
  }
  // Loads rows [begin, begin + kPieceRows) and columns [from, from + kDepth) of S0 and dS. Returns the thread's part of <S0, dS>.
  __device__ float load_states(int head, int begin, int from) {
    const int32_t previous = all_.before[piece_];
    const float *before = all_.states + (static_cast<int64_t>(previous) * in_.value_heads + head) * in_.state();
    const float *after = all_.gradients + (piece_ * in_.value_heads + head) * in_.state();
    float state_product = 0;
    for (int item = threadIdx.x; item < kPieceRows * kDepth; item += kBackThreads) {
      const int i = item / kDepth, j = item % kDepth;
      const bool has = begin + i < in_.key_dim && from + j < in_.value_dim;
      const int64_t at = static_cast<int64_t>(begin + i) * in_.value_dim + from + j;
      shared_.before[i][j] = has && previous >= 0 ? before[at] : 0.0f;
      shared_.after[i][j] = has ? after[at] : 0.0f;
      state_product = fmaf(shared_.before[i][j], shared_.after[i][j], state_product);
    }
    return state_product;
  }
  // Multiplies dq, dk and `column` by their decays, adds up the terms of dg that lead from S0 or to dS, and adds `column` to dk.
  __device__ void decay_states(Product &dq, Product &dk, const Product &column) {
#pragma unroll
    for (int i = 0; i < kPerThread; i++) {
      const int t = Product::y() + kSide * i;
      float from_state = 0, to_state = 0;
#pragma unroll
      for (int j = 0; j < kPerThread; j++) {
        const float q = shared_.q[t][Product::x() + kSide * j], k = shared_.k[t][Product::x() + kSide * j];
        const float later = column.at[i][j] * shared_.to_end[t];
        dq.at[i][j] *= shared_.from_start[t];
        dk.at[i][j] *= shared_.from_start[t];
        from_state = fmaf(q, dq.at[i][j], fmaf(k, dk.at[i][j], from_state));
        to_state = fmaf(k, later, to_state);
        dk.at[i][j] += later;
      }
      from_state = lanes_sum<kSide>(from_state), to_state = lanes_sum<kSide>(to_state);
      if (Product::x() != 0) continue;
      shared_.from_state[t] += from_state;
      shared_.to_state[t] += to_state;
    }
  }
  // Adds to dq and dk the terms of the other rows of the piece.
  __device__ void add_rows(Product &dq, Product &dk) {
    float m1[kPerThread], m2[kPerThread], q[kPerThread], k[kPerThread];
    for (int s = 0; s < kPieceRows; s++) {
      take(m1, Product::y(), [&](int t) { return shared_.m1[t][s]; });
      take(m2, Product::y(), [&](int t) { return shared_.m2[t][s]; });
      take(k, Product::x(), [&](int i) { return shared_.k[s][i]; });
      dq.add(m1, k);
      dk.subtract(m2, k);
    }
    for (int s = 0; s < kPieceRows; s++) {
      take(m1, Product::y(), [&](int t) { return shared_.m1[s][t]; });
      take(m2, Product::y(), [&](int t) { return shared_.m2[s][t]; });
      take(q, Product::x(), [&](int i) { return shared_.q[s][i]; });
      take(k, Product::x(), [&](int i) { return shared_.k[s][i]; });
      dk.add(m1, q);
      dk.subtract(m2, k);
    }
  }
  __device__ int64_t place(int t, int64_t part) const {
    return (row_ + t) * 2 * in_.keys() + part + static_cast<int64_t>(key_head_) * in_.key_dim;
  }
  __device__ void add(const Product &d, int begin, int64_t part, bool first) {
    d.each([&](int t, int i, float value) {
      if (t >= n_ || begin + i >= in_.key_dim) return;
      float &to = all_.dqk[place(t, part) + begin + i];
      to = first ? value : to + value;
    });
  }

  // Writes the gradients of the head's b and a, and the terms of the gradients of a_log and dt_bias. state_product is <S0, dS>.
  __device__ void write_gate_gradients(int head, float state_product) {
    const int t = threadIdx.x;
    if (t >= n_) return;
    float dg = fmaf(shared_.from_start[kPieceRows - 1], state_product, shared_.dg[t]);
    for (int s = 0; s < t; s++) dg += shared_.to_state[s];
    for (int u = kPieceRows - 1; u >= t; u--) dg += shared_.from_state[u];
    const int64_t row = row_ + t;
    const float beta = shared_.beta[t], a = in_.a(row, head), da = -expf(in_.a_log[head]) * sigmoid(a) * dg;
    narrow(shared_.dbeta[t] * beta * (1 - beta), all_.dba + row * 2 * in_.value_heads + head);
    narrow(da, all_.dba + (row * 2 + 1) * in_.value_heads + head);
    all_.a_log_terms[row * in_.value_heads + head] = shared_.g[t] * dg;
    all_.dt_bias_terms[row * in_.value_heads + head] = da;
  }

  // Computes the gradients of queries and keys from the gradients of q' and k'.
  __device__ void differentiate_normalisation() {
    __syncthreads();  // waits until dqk is complete
    for (int item = warp(); item < 2 * n_; item += kWarps) {
      const int t = item / 2;
      const bool is_key = item % 2 != 0;
      const int64_t at = is_key ? in_.k(row_ + t, key_head_) : in_.q(row_ + t, key_head_);
      const float *grad = all_.dqk + place(t, is_key ? in_.keys() : 0);
      const float by = is_key ? shared_.k_factor[t] : shared_.q_factor[t], inverse = is_key ? by : by / in_.q_scale();
      float along = 0;
      for (int i = lane(); i < in_.key_dim; i += kWarp) along = fmaf(widen(in_.x[at + i]) * inverse, grad[i], along);
      along = lanes_sum<kWarp>(along);
      for (int i = lane(); i < in_.key_dim; i += kWarp)
        narrow(by * fmaf(-along, widen(in_.x[at + i]) * inverse, grad[i]), all_.dx + at + i);
    }
  }

  const Backward<T> &all_;
  const Rule<T> &in_;
  PieceMemory &shared_;
  int64_t piece_, row_;
  int n_, key_head_;
};

template <class T>
__global__ __launch_bounds__(kBackThreads, 2) void delta_rule_bwd_pieces_kernel(const __grid_constant__ Backward<T> all) {
  PieceMemory &shared = *static_cast<PieceMemory *>(dynamic_shared());
  for (int64_t task = blockIdx.x; task < all.pieces * all.in.key_heads; task += gridDim.x) {
    PieceGradients<T>(all, shared, task / all.in.key_heads, static_cast<int>(task % all.in.key_heads)).run();
    __syncthreads();  // the next task may overwrite the shared memory
  }
}

// Launches the backward pass. mgrpo/delta_rule.h has the size of its scratch memory.
template <class T>
int32_t packed_bwd(const Rule<T> &in, const mgrpo_pieces &pieces, const void *dy, const float *r, const float *states, void *dx, void *dba,
                   float *da_log, float *ddt_bias, int64_t rows, cudaStream_t stream) {
  const int64_t state = in.value_heads * in.state(), gates = rows * in.value_heads;
  Scratch<float> of_states(stream), of_rows(stream);
  MGRPO_TRY(of_states.allocate((pieces.count + pieces.chains) * state));
  MGRPO_TRY(of_rows.allocate(rows * (in.values() + 2 * in.keys()) + 2 * gates));
  const StateGradients gradients{of_states.get(), of_states.get() + pieces.count * state};
  float *v = of_rows.get(), *dqk = v + rows * in.values(), *a_log_terms = dqk + rows * 2 * in.keys(), *dt_bias_terms = a_log_terms + gates;
  const T *grad = static_cast<const T *>(dy);
  MGRPO_TRY(for_lanes(in.key_dim, [&](auto lanes) -> int32_t {
    for (int64_t level = pieces.levels - 1; level >= 0; level--) {
      const Chains chains(pieces, level);
      const Tasks<lanes> tasks{chains.count, in.value_heads, in.value_dim};
      MGRPO_TRY(launch(delta_rule_bwd_states_kernel<T, lanes>, tasks.shape(), stream, in, chains, tasks, grad, gradients, v));
    }
    return MGRPO_OK;
  }));
  const Backward<T> all{in,     pieces.first,    pieces.before,        pieces.count,          grad, r,           v,
                        states, gradients.after, static_cast<T *>(dx), static_cast<T *>(dba), dqk,  a_log_terms, dt_bias_terms};
  MGRPO_TRY(
      launch(delta_rule_bwd_pieces_kernel<T>, {block_count(pieces.count * in.key_heads), kBackThreads, sizeof(PieceMemory)}, stream, all));
  const auto sum = [&](const float *parts, float *to) { return DwParts{parts, to, rows, to != nullptr ? in.value_heads : 0}; };
  if (da_log == nullptr && ddt_bias == nullptr) return MGRPO_OK;
  return sum_dw({{sum(a_log_terms, da_log), sum(dt_bias_terms, ddt_bias)}}, stream);
}

}  // namespace
}  // namespace mgrpo::cuda

using namespace mgrpo;
using namespace mgrpo::cuda;

int32_t mgrpo_delta_rule_packed_bwd_cuda(const void *dy, const void *x, const void *ba, const float *r, const float *states,
                                         mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *dx, void *dba,
                                         float *da_log_or_null, float *ddt_bias_or_null, int64_t rows, void *stream) {
  if (!valid_delta_call(rule, pieces, rows)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, ba, r, states, dx, dba})) return MGRPO_INVALID_ARGUMENT;
  return for_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    return packed_bwd(Rule<T>(rule, x, ba), pieces, dy, r, states, dx, dba, da_log_or_null, ddt_bias_or_null, rows, stream_of(stream));
  });
}
