// The gated delta rule backwards. A launch for each level, the last level first, takes the gradient of the state back through the rows:
//
//   v_t = (dS + q'_t do_t^T)^T k'_t,  e_t = beta_t v_t,  dS <- exp(g_t) (dS + q'_t do_t^T - k'_t e_t^T)
//
// where do are the gradients of results, v_t is the gradient of beta_t r_t, and e_t the gradient of the value. It keeps the
// v_t, and dS at the ends of pieces. Then every piece has all that it needs, and blocks take pieces of key heads in any
// order. w_s = beta_s r_s. D[t, s] is the decay from after row s up to row t, D0[t] the decay from the start of the piece,
// and D1[s] the decay to its end. S0 is the state before the piece, and dS the gradient of the state after it. Then:
//
//   M1[t, s] = (do_t.w_s) D[t, s] for s <= t,   M2[t, s] = (e_t.w_s) D[t, s] for s < t
//   dq'_t = D0[t] S0 do_t + sum over s of M1[t, s] k'_s
//   dk'_t = -D0[t] S0 e_t - sum over s of M2[t, s] k'_s + D1[t] dS w_t + sum over s of (M1[s, t] q'_s - M2[s, t] k'_s)
//
// dg_t is the sum of all terms of the loss that cross row t and so have the factor exp(g_t). A sum over rows of q'.dq' and k'.dk' would
// have other terms, too, which cancel; a strong decay multiplies what is left of them by a large g.
#include "delta_rule.cuh"
#include "norm.cuh"

namespace mgrpo::cuda {
namespace {

// The gradients of states after pieces, and of states before chains.
struct StateGradients {
  float *after, *before;  // [pieces, value_heads, key_dim, value_dim], [chains, ...]
};

// Adds up the gradients of a state from the chains that come after its piece, the last one first.
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

// One row of a column; returns v_t.
template <int kLanes>
__device__ float retreat(Column<kLanes> &column, const Chunk<kLanes> &chunk, int t) {
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

// to [rows, value_heads, value_dim] receives v_t.
template <class T, int kLanes>
__global__ __launch_bounds__(kDeltaThreads) void retreat_kernel(Rule<T> in, Chains chains, Tasks<kLanes> tasks, const T *dy,
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
        const float v = retreat(column, chunk, t);
        if (writes) to[row * in.values() + at + columns.first + column.number()] = v;
      });
    }
    column.store(in, columns, gradients.before + (static_cast<int64_t>(c) * in.value_heads + columns.head) * in.state());
  });
}

constexpr int kMost = MGRPO_PIECE_ROWS, kBackThreads = 256, kSide = 16, kOwn = kMost / kSide;  // threads and numbers of a side of a square
constexpr int kDepth = 32, kWide = kMost + 1, kStripe = kDepth + 1;                            // rows of shared memory in different banks
static_assert(kSide * kSide == kBackThreads && kMost == 2 * kWarp);

using Square = float[kMost][kWide];
using Stripe = float[kMost][kStripe];  // some columns of a piece's rows

// A thread's part of a product [kMost, kMost]: rows y() + kSide i and columns x() + kSide j.
struct Product {
  float at[kOwn][kOwn] = {};

  static __device__ int x() { return static_cast<int>(threadIdx.x) % kSide; }
  static __device__ int y() { return static_cast<int>(threadIdx.x) / kSide; }

  // f(row, column, value)
  template <class F>
  __device__ void each(const F &f) const {
#pragma unroll
    for (int i = 0; i < kOwn; i++)
#pragma unroll
      for (int j = 0; j < kOwn; j++) f(y() + kSide * i, x() + kSide * j, at[i][j]);
  }
  __device__ void add(const float (&left)[kOwn], const float (&right)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; i++)
#pragma unroll
      for (int j = 0; j < kOwn; j++) at[i][j] = fmaf(left[i], right[j], at[i][j]);
  }
  __device__ void subtract(const float (&left)[kOwn], const float (&right)[kOwn]) {
#pragma unroll
    for (int i = 0; i < kOwn; i++)
#pragma unroll
      for (int j = 0; j < kOwn; j++) at[i][j] = fmaf(-left[i], right[j], at[i][j]);
  }
};

// The thread's numbers of f(0) to f(kMost - 1), for its rows or its columns.
template <class F>
__device__ void take(float (&to)[kOwn], int first, const F &f) {
#pragma unroll
  for (int i = 0; i < kOwn; i++) to[i] = f(first + kSide * i);
}

// Shared memory of a block that has a piece.
struct Room {
  union {
    struct {
      Stripe grad, e, w;     // of results; of values; beta r
      Stripe before, after;  // rows of S0 and of dS
    };
    struct {
      Stripe qs, ks;
    };
    struct {
      Square q, k;
    };
    Square crossing;  // the terms that go from a column's row to a row
  };
  Square m1, m2;
  double exponent[kMost];  // the sum of g up to a row
  float g[kMost], beta[kMost], from_start[kMost], to_end[kMost], of_q[kMost], of_k[kMost];
  float dbeta[kMost], dg[kMost], from_state[kMost], to_state[kMost];  // terms that go from S0 to a row, and from a row to dS
  float sums[kBackThreads];
};

template <class T>
struct Backward {
  Rule<T> in;
  const int32_t *first, *before;  // of pieces
  int64_t pieces;
  const T *dy;
  const float *r, *v, *states, *gradients;  // gradients of states after pieces
  T *dx, *dba;
  float *dqk;                    // [rows, 2 keys], of q' and k'
  float *of_a_log, *of_dt_bias;  // [rows, value_heads]
};

// The gradients of one piece for the value heads of a key head, one after another. All threads of the block call all functions.
template <class T>
class Piece {
 public:
  __device__ Piece(const Backward<T> &all, Room &room, int64_t piece, int key_head)
      : all_(all),
        in_(all.in),
        room_(room),
        piece_(piece),
        row_(all.first[piece]),
        n_(all.first[piece + 1] - all.first[piece]),
        key_head_(key_head) {}

  __device__ void run() {
    units();
    for (int h = 0; h < in_.group(); h++) {
      const int head = key_head_ * in_.group() + h;
      gates(head);
      rows_with_rows(head);
      cross();
      dbeta(head);
      const float through = states(head, h == 0);
      finish(head, through);
    }
    back_to_inputs();
  }

 private:
  static constexpr int kWarps = kBackThreads / kWarp;

  // The factors that make q' and k' of the piece's rows.
  __device__ void units() {
    for (int t = warp(); t < kMost; t += kWarps) {
      float q = 0, k = 0;
      for (int i = lane(); i < in_.key_dim && t < n_; i += kWarp) {
        const float of_q = widen(in_.x[in_.q(row_ + t, key_head_) + i]), of_k = widen(in_.x[in_.k(row_ + t, key_head_) + i]);
        q = fmaf(of_q, of_q, q);
        k = fmaf(of_k, of_k, k);
      }
      q = lanes_sum<kWarp>(q), k = lanes_sum<kWarp>(k);
      if (lane() != 0) continue;
      room_.of_q[t] = unit(q) * in_.q_scale();
      room_.of_k[t] = unit(k);
    }
  }

  __device__ void gates(int head) {
    __syncthreads();  // all are done with the last head
    const int t = threadIdx.x;
    if (t < kMost) {
      room_.g[t] = t < n_ ? in_.g(in_.a(row_ + t, head), head) : 0.0f;
      room_.beta[t] = t < n_ ? sigmoid(in_.b(row_ + t, head)) : 0.0f;
      room_.from_state[t] = room_.to_state[t] = 0;
    }
    __syncthreads();
    if (t == 0) {
      double sum = 0;
      for (int s = 0; s < kMost; s++) room_.exponent[s] = sum += room_.g[s];
    }
    __syncthreads();
    if (t >= kMost) return;
    room_.from_start[t] = expf(static_cast<float>(room_.exponent[t]));
    room_.to_end[t] = expf(static_cast<float>(room_.exponent[kMost - 1] - room_.exponent[t]));
  }

  // Loads columns [begin, begin + kDepth) of the heads' results, and writes the gradients of the values there if asked to.
  __device__ void load_values(int head, int begin, bool writes) {
    for (int item = threadIdx.x; item < kMost * kDepth; item += kBackThreads) {
      const int t = item / kDepth, j = item % kDepth, column = begin + j;
      const bool has = t < n_ && column < in_.value_dim;
      const int64_t at = (row_ + t) * in_.values() + static_cast<int64_t>(head) * in_.value_dim + column;
      const float e = has ? all_.v[at] * room_.beta[t] : 0.0f;
      room_.grad[t][j] = has ? widen(all_.dy[at]) : 0.0f;
      room_.e[t][j] = e;
      room_.w[t][j] = has ? all_.r[at] * room_.beta[t] : 0.0f;
      if (has && writes) narrow(e, all_.dx + in_.v(row_ + t, head) + column);
    }
  }
  // Loads columns [begin, begin + kCount) of q' and k'.
  template <int kCount, class To>
  __device__ void load_keys(int begin, To &q, To &k) {
    for (int item = threadIdx.x; item < kMost * kCount; item += kBackThreads) {
      const int t = item / kCount, i = item % kCount;
      const bool has = t < n_ && begin + i < in_.key_dim;
      q[t][i] = has ? widen(in_.x[in_.q(row_ + t, key_head_) + begin + i]) * room_.of_q[t] : 0.0f;
      k[t][i] = has ? widen(in_.x[in_.k(row_ + t, key_head_) + begin + i]) * room_.of_k[t] : 0.0f;
    }
  }

  // M1 and M2. A thread has the same places of them, of q'.k' and of `crossing`.
  __device__ void rows_with_rows(int head) {
    Product of_grad, of_e;
    float grad[kOwn], e[kOwn], w[kOwn];
    for (int begin = 0; begin < in_.value_dim; begin += kDepth) {
      __syncthreads();
      load_values(head, begin, true);
      __syncthreads();
      for (int j = 0; j < kDepth; j++) {
        take(grad, Product::y(), [&](int t) { return room_.grad[t][j]; });
        take(e, Product::y(), [&](int t) { return room_.e[t][j]; });
        take(w, Product::x(), [&](int s) { return room_.w[s][j]; });
        of_grad.add(grad, w);
        of_e.add(e, w);
      }
    }
    const auto decay = [&](int t, int s) { return expf(static_cast<float>(room_.exponent[t] - room_.exponent[s])); };
    of_grad.each([&](int t, int s, float value) { room_.m1[t][s] = s <= t ? value * decay(t, s) : 0.0f; });
    of_e.each([&](int t, int s, float value) { room_.m2[t][s] = s < t ? value * decay(t, s) : 0.0f; });
  }

  // The terms of dg that go from a row of the piece to another one.
  __device__ void cross() {
    Product qk, kk;
    float q[kOwn], k[kOwn], right[kOwn];
    for (int begin = 0; begin < in_.key_dim; begin += kDepth) {
      __syncthreads();
      load_keys<kDepth>(begin, room_.qs, room_.ks);
      __syncthreads();
      for (int i = 0; i < kDepth; i++) {
        take(q, Product::y(), [&](int t) { return room_.qs[t][i]; });
        take(k, Product::y(), [&](int t) { return room_.ks[t][i]; });
        take(right, Product::x(), [&](int s) { return room_.ks[s][i]; });
        qk.add(q, right);
        kk.add(k, right);
      }
    }
    __syncthreads();  // all have read the stripes
    qk.each([&](int t, int s, float value) { room_.crossing[t][s] = s < t ? room_.m1[t][s] * value : 0.0f; });
    kk.each([&](int t, int s, float value) {
      if (s < t) room_.crossing[t][s] = fmaf(-room_.m2[t][s], value, room_.crossing[t][s]);
    });
    add_crossing();
  }
  // dg of the terms in `crossing`: from rows before t to rows from t on.
  __device__ void add_crossing() {
    __syncthreads();
    const int t = threadIdx.x;
    if (t < kMost) {
      float sum = 0;
      for (int s = 0; s < kMost; s++) {  // crossing[t, s] becomes the sum of what goes from rows before s to row t
        const float term = room_.crossing[t][s];
        room_.crossing[t][s] = sum;
        sum += term;
      }
    }
    __syncthreads();
    if (t >= kMost) return;
    float sum = 0;
    for (int u = kMost - 1; u >= t; u--) sum += room_.crossing[u][t];
    room_.dg[t] = sum;
  }

  __device__ void dbeta(int head) {
    for (int t = warp(); t < n_; t += kWarps) {
      const int64_t at = (row_ + t) * in_.values() + static_cast<int64_t>(head) * in_.value_dim;
      float sum = 0;
      for (int j = lane(); j < in_.value_dim; j += kWarp) sum = fmaf(all_.v[at + j], all_.r[at + j], sum);
      sum = lanes_sum<kWarp>(sum);
      if (lane() == 0) room_.dbeta[t] = sum;
    }
  }

  // Adds the gradients of q' and k' to dqk, or writes them if these are the first. Returns <S0, dS>.
  __device__ float states(int head, bool first) {
    float through = 0;
    for (int begin = 0; begin < in_.key_dim; begin += kMost) {
      Product dq, dk, column;  // S0 do, -S0 e, dS w
      for (int from = 0; from < in_.value_dim; from += kDepth) {
        __syncthreads();
        load_values(head, from, false);
        through += load_states(head, begin, from);
        __syncthreads();
        float grad[kOwn], e[kOwn], w[kOwn], before[kOwn], after[kOwn];
        for (int j = 0; j < kDepth; j++) {
          take(grad, Product::y(), [&](int t) { return room_.grad[t][j]; });
          take(e, Product::y(), [&](int t) { return room_.e[t][j]; });
          take(w, Product::y(), [&](int t) { return room_.w[t][j]; });
          take(before, Product::x(), [&](int i) { return room_.before[i][j]; });
          take(after, Product::x(), [&](int i) { return room_.after[i][j]; });
          dq.add(grad, before);
          dk.subtract(e, before);
          column.add(w, after);
        }
      }
      __syncthreads();
      load_keys<kMost>(begin, room_.q, room_.k);
      __syncthreads();
      decay_states(dq, dk, column);
      add_rows(dq, dk);
      add(dq, begin, 0, first);
      add(dk, begin, in_.keys(), first);
    }
    return block_sum<kBackThreads>(through, room_.sums);
  }
  // Loads rows [begin, begin + kMost) and columns [from, from + kDepth) of S0 and dS; returns the sum of the thread's products of both.
  __device__ float load_states(int head, int begin, int from) {
    const int32_t previous = all_.before[piece_];
    const float *before = all_.states + (static_cast<int64_t>(previous) * in_.value_heads + head) * in_.state();
    const float *after = all_.gradients + (piece_ * in_.value_heads + head) * in_.state();
    float through = 0;
    for (int item = threadIdx.x; item < kMost * kDepth; item += kBackThreads) {
      const int i = item / kDepth, j = item % kDepth;
      const bool has = begin + i < in_.key_dim && from + j < in_.value_dim;
      const int64_t at = static_cast<int64_t>(begin + i) * in_.value_dim + from + j;
      room_.before[i][j] = has && previous >= 0 ? before[at] : 0.0f;
      room_.after[i][j] = has ? after[at] : 0.0f;
      through = fmaf(room_.before[i][j], room_.after[i][j], through);
    }
    return through;
  }
  // Applies the decays, adds up what goes from S0 and to dS, and leaves dk the sum of its part and `column`.
  __device__ void decay_states(Product &dq, Product &dk, const Product &column) {
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      const int t = Product::y() + kSide * i;
      float from_state = 0, to_state = 0;
#pragma unroll
      for (int j = 0; j < kOwn; j++) {
        const float q = room_.q[t][Product::x() + kSide * j], k = room_.k[t][Product::x() + kSide * j];
        const float later = column.at[i][j] * room_.to_end[t];
        dq.at[i][j] *= room_.from_start[t];
        dk.at[i][j] *= room_.from_start[t];
        from_state = fmaf(q, dq.at[i][j], fmaf(k, dk.at[i][j], from_state));
        to_state = fmaf(k, later, to_state);
        dk.at[i][j] += later;
      }
      from_state = lanes_sum<kSide>(from_state), to_state = lanes_sum<kSide>(to_state);
      if (Product::x() != 0) continue;
      room_.from_state[t] += from_state;
      room_.to_state[t] += to_state;
    }
  }
  // Adds what comes from other rows of the piece.
  __device__ void add_rows(Product &dq, Product &dk) {
    float m1[kOwn], m2[kOwn], q[kOwn], k[kOwn];
    for (int s = 0; s < kMost; s++) {
      take(m1, Product::y(), [&](int t) { return room_.m1[t][s]; });
      take(m2, Product::y(), [&](int t) { return room_.m2[t][s]; });
      take(k, Product::x(), [&](int i) { return room_.k[s][i]; });
      dq.add(m1, k);
      dk.subtract(m2, k);
    }
    for (int s = 0; s < kMost; s++) {
      take(m1, Product::y(), [&](int t) { return room_.m1[s][t]; });
      take(m2, Product::y(), [&](int t) { return room_.m2[s][t]; });
      take(q, Product::x(), [&](int i) { return room_.q[s][i]; });
      take(k, Product::x(), [&](int i) { return room_.k[s][i]; });
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

  // The gradients of the head's b and a; through: <S0, dS>.
  __device__ void finish(int head, float through) {
    const int t = threadIdx.x;
    if (t >= n_) return;
    float dg = fmaf(room_.from_start[kMost - 1], through, room_.dg[t]);
    for (int s = 0; s < t; s++) dg += room_.to_state[s];
    for (int u = kMost - 1; u >= t; u--) dg += room_.from_state[u];
    const int64_t row = row_ + t;
    const float beta = room_.beta[t], a = in_.a(row, head), da = -expf(in_.a_log[head]) * sigmoid(a) * dg;
    narrow(room_.dbeta[t] * beta * (1 - beta), all_.dba + row * 2 * in_.value_heads + head);
    narrow(da, all_.dba + (row * 2 + 1) * in_.value_heads + head);
    all_.of_a_log[row * in_.value_heads + head] = room_.g[t] * dg;
    all_.of_dt_bias[row * in_.value_heads + head] = da;
  }

  // The gradients of queries and keys, from those of q' and k'.
  __device__ void back_to_inputs() {
    __syncthreads();  // dqk is complete
    for (int item = warp(); item < 2 * n_; item += kWarps) {
      const int t = item / 2;
      const bool is_key = item % 2 != 0;
      const int64_t at = is_key ? in_.k(row_ + t, key_head_) : in_.q(row_ + t, key_head_);
      const float *grad = all_.dqk + place(t, is_key ? in_.keys() : 0);
      const float by = is_key ? room_.of_k[t] : room_.of_q[t], inverse = is_key ? by : by / in_.q_scale();
      float along = 0;
      for (int i = lane(); i < in_.key_dim; i += kWarp) along = fmaf(widen(in_.x[at + i]) * inverse, grad[i], along);
      along = lanes_sum<kWarp>(along);
      for (int i = lane(); i < in_.key_dim; i += kWarp)
        narrow(by * fmaf(-along, widen(in_.x[at + i]) * inverse, grad[i]), all_.dx + at + i);
    }
  }

  const Backward<T> &all_;
  const Rule<T> &in_;
  Room &room_;
  int64_t piece_, row_;
  int n_, key_head_;
};

template <class T>
__global__ __launch_bounds__(kBackThreads, 2) void pieces_kernel(const __grid_constant__ Backward<T> all) {
  Room &room = *static_cast<Room *>(dynamic_shared());
  for (int64_t task = blockIdx.x; task < all.pieces * all.in.key_heads; task += gridDim.x) {
    Piece<T>(all, room, task / all.in.key_heads, static_cast<int>(task % all.in.key_heads)).run();
    __syncthreads();  // the next task may overwrite the room
  }
}

// Scratch of the backward pass; the sizes are in mgrpo/delta_rule.h.
template <class T>
int32_t packed_bwd(const Rule<T> &in, const mgrpo_pieces &pieces, const void *dy, const float *r, const float *states, void *dx, void *dba,
                   float *da_log, float *ddt_bias, int64_t rows, cudaStream_t stream) {
  const int64_t state = in.value_heads * in.state(), gates = rows * in.value_heads;
  Scratch<float> of_states(stream), of_rows(stream);
  MGRPO_TRY(of_states.allocate((pieces.count + pieces.chains) * state));
  MGRPO_TRY(of_rows.allocate(rows * (in.values() + 2 * in.keys()) + 2 * gates));
  const StateGradients gradients{of_states.get(), of_states.get() + pieces.count * state};
  float *v = of_rows.get(), *dqk = v + rows * in.values(), *of_a_log = dqk + rows * 2 * in.keys(), *of_dt_bias = of_a_log + gates;
  const T *grad = static_cast<const T *>(dy);
  MGRPO_TRY(for_lanes(in.key_dim, [&](auto lanes) -> int32_t {
    for (int64_t level = pieces.levels - 1; level >= 0; level--) {
      const Chains chains(pieces, level);
      const Tasks<lanes> tasks{chains.count, in.value_heads, in.value_dim};
      MGRPO_TRY(launch(retreat_kernel<T, lanes>, tasks.shape(), stream, in, chains, tasks, grad, gradients, v));
    }
    return MGRPO_OK;
  }));
  const Backward<T> all{in,     pieces.first,    pieces.before,        pieces.count,          grad, r,        v,
                        states, gradients.after, static_cast<T *>(dx), static_cast<T *>(dba), dqk,  of_a_log, of_dt_bias};
  MGRPO_TRY(launch(pieces_kernel<T>, {block_count(pieces.count * in.key_heads), kBackThreads, sizeof(Room)}, stream, all));
  const auto sum = [&](const float *parts, float *to) { return DwParts{parts, to, rows, to != nullptr ? in.value_heads : 0}; };
  if (da_log == nullptr && ddt_bias == nullptr) return MGRPO_OK;
  return sum_dw({{sum(of_a_log, da_log), sum(of_dt_bias, ddt_bias)}}, stream);
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
