#include "delta_rule.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "layer_loops.h"
#include "mgrpo/delta_rule.h"
#include "parallel.h"
#include "slot_runs.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

static_assert(kDeltaDimLimit == kMaxDeltaDim, "a state that the checks accept must fit into a thread's columns");

using Floats = std::vector<float>;

// Above 20 softplus is the identity, as in PyTorch.
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// The rows of a call, with their normalised queries and keys and their gates.
struct Rows {
  mgrpo_delta_rule rule;
  const float *x, *ba;
  int64_t rows, width, keys;  // width: the columns of x; keys: the columns of its keys, and of its queries
  Floats qk, decay, beta;     // [rows, 2 keys], [rows, value_heads]
  Floats factor;              // [rows, 2 key_heads]: the results of delta_normalise

  Rows(const mgrpo_delta_rule &rule, const float *x, const float *ba, int64_t rows)
      : rule(rule), x(x), ba(ba), rows(rows), width(delta_width(rule)), keys(rule.key_heads * rule.key_dim) {
    const int64_t heads = rule.value_heads;
    qk.resize(static_cast<size_t>(rows * 2 * keys)), factor.resize(static_cast<size_t>(rows * 2 * rule.key_heads));
    decay.resize(static_cast<size_t>(rows * heads)), beta.resize(decay.size());
    parallel_ranges(rows, 1, static_cast<double>(rows) * (2 * keys + 32 * heads), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        for (int64_t h = 0; h < 2 * rule.key_heads; h++) {
          const int64_t at = h * rule.key_dim;
          factor[r * 2 * rule.key_heads + h] =
              layer_loops().delta_normalise(x + r * width + at, scale(h), qk.data() + r * 2 * keys + at, rule.key_dim);
        }
        for (int64_t h = 0; h < heads; h++) decay[r * heads + h] = std::exp(g(r, h)), beta[r * heads + h] = sigmoid(ba[r * 2 * heads + h]);
      }
    });
  }

  // Returns the length of a normalised head. The heads of queries come first, then the heads of keys.
  float scale(int64_t h) const { return h < rule.key_heads ? static_cast<float>(1 / std::sqrt(static_cast<double>(rule.key_dim))) : 1.0f; }
  float a(int64_t row, int64_t h) const { return ba[(row * 2 + 1) * rule.value_heads + h] + rule.dt_bias[h]; }
  float g(int64_t row, int64_t h) const { return -std::exp(rule.a_log[h]) * softplus(a(row, h)); }
  const float *q(int64_t row, int64_t h) const { return qk.data() + row * 2 * keys + key_head(h) * rule.key_dim; }
  const float *k(int64_t row, int64_t h) const { return q(row, h) + keys; }
  const float *v(int64_t row, int64_t h) const { return x + row * width + 2 * keys + h * rule.value_dim; }
  int64_t key_head(int64_t h) const { return h / (rule.value_heads / rule.key_heads); }
  int64_t state_size() const { return rule.key_dim * rule.value_dim; }

  // Computes rows [begin, end) of a head, for `columns` columns of its state from `column` on.
  void run(int64_t begin, int64_t end, int64_t h, int64_t column, int64_t columns, const float *before, float *after, float *y,
           float *r) const {
    const int64_t out = rule.value_heads * rule.value_dim, at = h * rule.value_dim + column;
    DeltaRows in;
    in.q = q(begin, h), in.k = k(begin, h), in.qk_stride = 2 * keys;
    in.v = v(begin, h) + column, in.v_stride = width;
    in.decay = decay.data() + begin * rule.value_heads + h, in.beta = beta.data() + begin * rule.value_heads + h;
    in.gate_stride = rule.value_heads;
    in.y = y + begin * out + at, in.r = r != nullptr ? r + begin * out + at : nullptr, in.y_stride = out;
    in.before = before != nullptr ? before + column : nullptr, in.after = after + column;
    in.rows = end - begin, in.key_dim = rule.key_dim, in.value_dim = rule.value_dim;
    in.columns = std::min(columns, rule.value_dim - column);
    layer_loops().delta_rows(in);
  }

  // Calls f(item, head, first column) for each strip of columns, on any thread.
  template <class F>
  void each_part(int64_t items, int64_t columns, const F &f) const {
    const int64_t strips = (rule.value_dim + columns - 1) / columns, parts = rule.value_heads * strips;
    parallel_for(items * parts, 4.0 * rows * rule.value_heads * state_size(),
                 [&](int64_t i) { f(i / parts, i % parts / strips, i % strips * columns); });
  }
};

// The backward pass of one value head. It computes the pieces one after another, the last piece first. A piece has n rows. dk and dv are
// the sizes of a key and a value. In a piece
//
//   A[t, s] = decay(s to t) q_t k_s, t >= s;  B[t, s] = decay(s to t) k_t k_s, t > s;  v' = beta r;  e = beta dv'
//
// and dv' = A^T do + (decay to the end) K dS - B^T e, where dS is the gradient of the state after the piece.
class HeadBackward {
 public:
  HeadBackward(const Rows &in, const mgrpo_pieces &pieces, const float *dy, const float *r, const float *states)
      : in_(in), pieces_(pieces), dy_(dy), r_(r), states_(states), dk_(in.rule.key_dim), dv_(in.rule.value_dim) {
    constexpr int64_t max_rows = MGRPO_PIECE_ROWS;
    for (Floats *m : {&ratio_, &a_, &b_, &m1_, &m2_}) m->resize(max_rows * max_rows);
    for (Floats *m : {&q_, &k_, &q_start_, &k_start_, &k_end_, &dq_, &dk_row_, &dk_col_}) m->resize(max_rows * dk_);
    for (Floats *m : {&dout_, &v_, &e_, &dout_start_, &e_start_, &v_end_, &dv_new_}) m->resize(max_rows * dv_);
    zeros_.resize(dk_ * dv_);
  }

  // Adds the gradients of the head's normalised queries and keys to dqk [T, 2 keys]. Writes dg, dbeta [T, value_heads] and the gradients of
  // the values in dx.
  void run(int64_t head, float *dqk, float *dg, float *dbeta, float *dx) {
    std::vector<Floats> state_gradients(static_cast<size_t>(pieces_.count));  // gradients of the states after pieces; empty: 0
    for (int64_t p = pieces_.count - 1; p >= 0; p--) {
      Floats dstate = std::move(state_gradients[p]);
      if (dstate.empty()) dstate = zeros_;
      piece(p, head, dstate.data(), dqk, dg, dbeta, dx);
      const int32_t before = pieces_.before[p];
      if (before < 0) continue;
      Floats &to = state_gradients[before];
      if (to.empty()) {
        to = std::move(dstate);
      } else {
        for (size_t i = 0; i < to.size(); i++) to[i] += dstate[i];
      }
    }
  }

 private:
  // Computes y = x w^T for x [rows, width] and w [columns, width].
  static void by_transpose(const Floats &x, const float *w, Floats &y, int64_t rows, int64_t width, int64_t columns) {
    layer_loops().linear(x.data(), width, w, width, nullptr, y.data(), columns, rows, width, columns);
  }
  // Computes y += sign a b for a [rows, inner] and b [inner, columns].
  static void add(float sign, const Floats &a, const float *b, float *y, int64_t rows, int64_t inner, int64_t columns) {
    layer_loops().delta_product({a.data(), inner, 1, b, columns, y, columns, rows, inner, columns, sign});
  }
  // Computes y += sign a^T b for a [inner, rows] and b [inner, columns].
  static void add_transposed(float sign, const Floats &a, const float *b, float *y, int64_t rows, int64_t inner, int64_t columns) {
    layer_loops().delta_product({a.data(), 1, rows, b, columns, y, columns, rows, inner, columns, sign});
  }

  // Computes a piece. dstate is the gradient of the state after the piece. It is replaced by the gradient of the state before the piece.
  void piece(int64_t p, int64_t head, float *dstate, float *dqk, float *dg, float *dbeta, float *dx) {
    first_ = pieces_.first[p], n_ = pieces_.first[p + 1] - first_, head_ = head;
    const int64_t before = pieces_.before[p];
    const float *s0 = before < 0 ? zeros_.data() : states_ + (in_.rule.value_heads * before + head) * in_.state_size();
    gather();
    by_transpose(q_, k_.data(), a_, n_, dk_, n_), by_transpose(k_, k_.data(), b_, n_, dk_, n_);
    decayed(a_, true), decayed(b_, false);
    solve(dstate);
    by_transpose(dout_, v_.data(), m1_, n_, dv_, n_), by_transpose(e_, v_.data(), m2_, n_, dv_, n_);
    key_and_query_gradients(s0, dstate);
    for (int64_t i = 0; i < dk_ * dv_; i++) dstate[i] *= from_start_[n_ - 1];
    add_transposed(1, q_start_, dout_.data(), dstate, dk_, n_, dv_), add_transposed(-1, k_start_, e_.data(), dstate, dk_, n_, dv_);
    write(dqk, dg, dbeta, dx);
  }

  // Copies the piece's rows, and computes products of decays. ratio[t, s] is the decay from after row s up to row t. from_start_[t] is the
  // decay from the start of the piece up to row t.
  void gather() {
    const int64_t heads = in_.rule.value_heads;
    float from_start = 1;
    for (int64_t t = 0; t < n_; t++) {
      const int64_t row = first_ + t, at = (row * heads + head_) * dv_;
      const float decay = in_.decay[row * heads + head_], beta = in_.beta[row * heads + head_];
      std::memcpy(&q_[t * dk_], in_.q(row, head_), dk_ * sizeof(float));
      std::memcpy(&k_[t * dk_], in_.k(row, head_), dk_ * sizeof(float));
      std::memcpy(&dout_[t * dv_], dy_ + at, dv_ * sizeof(float));
      for (int64_t j = 0; j < dv_; j++) v_[t * dv_ + j] = beta * r_[at + j];
      for (int64_t s = 0; s < t; s++) ratio_[t * n_ + s] = ratio_[(t - 1) * n_ + s] * decay;
      ratio_[t * n_ + t] = 1;
      from_start_[t] = from_start *= decay;
    }
    const float *to_end = &ratio_[(n_ - 1) * n_];
    scaled(q_, from_start_, q_start_, dk_), scaled(k_, from_start_, k_start_, dk_), scaled(dout_, from_start_, dout_start_, dv_);
    scaled(k_, to_end, k_end_, dk_), scaled(v_, to_end, v_end_, dv_);
  }
  // Computes y = x with row t multiplied by by[t], for x [n, width].
  void scaled(const Floats &x, const float *by, Floats &y, int64_t width) const {
    for (int64_t t = 0; t < n_; t++)
      for (int64_t j = 0; j < width; j++) y[t * width + j] = by[t] * x[t * width + j];
  }

  // Multiplies the lower triangle of m [n, n] by the decays, and sets the other elements to 0.
  void decayed(Floats &m, bool diagonal) const {
    for (int64_t t = 0; t < n_; t++)
      for (int64_t s = 0; s < n_; s++) m[t * n_ + s] = s < t || (s == t && diagonal) ? m[t * n_ + s] * ratio_[t * n_ + s] : 0.0f;
  }

  // Solves dv' = A^T do + (decay to the end) K dS - B^T e with e = beta dv', from the last row to the first.
  void solve(const float *dstate) {
    std::fill_n(dv_new_.begin(), n_ * dv_, 0.0f);
    add_transposed(1, a_, dout_.data(), dv_new_.data(), n_, n_, dv_), add(1, k_end_, dstate, dv_new_.data(), n_, dk_, dv_);
    for (int64_t t = n_ - 1; t >= 0; t--) {
      float *own = &dv_new_[t * dv_], *e = &e_[t * dv_];
      if (t + 1 < n_)  // the column of B below the diagonal
        layer_loops().delta_product({&b_[(t + 1) * n_ + t], 0, n_, &e_[(t + 1) * dv_], dv_, own, dv_, 1, n_ - 1 - t, dv_, -1});
      const float beta = in_.beta[(first_ + t) * in_.rule.value_heads + head_];
      for (int64_t j = 0; j < dv_; j++) e[j] = beta * own[j];
    }
  }

  // Computes the gradients of queries and keys. It multiplies m1_ and m2_, the products do v'^T and e v'^T, by the decays.
  void key_and_query_gradients(const float *s0, const float *dstate) {
    scaled(e_, from_start_, e_start_, dv_);
    by_transpose(dout_start_, s0, dq_, n_, dv_, dk_),
        by_transpose(e_start_, s0, dk_row_, n_, dv_, dk_);  // dk_row_ is the negative gradient
    by_transpose(v_end_, dstate, dk_col_, n_, dv_, dk_);
    decay_gradients(s0, dstate);
    decayed(m1_, true), decayed(m2_, false);
    add(1, m1_, k_.data(), dq_.data(), n_, n_, dk_), add(1, m2_, k_.data(), dk_row_.data(), n_, n_, dk_);
    add_transposed(1, m1_, q_.data(), dk_col_.data(), n_, n_, dk_), add_transposed(-1, m2_, k_.data(), dk_col_.data(), n_, n_, dk_);
  }

  // Computes the gradients of the logarithms of decays. The gradient of a row is a sum over pairs (s, t). s is an earlier row or the state
  // before the piece. t is the row itself, a later row, or the state after the piece. From one row to the next, some terms leave the sum
  // and others enter it. The sum is in float64, so that subtracting a large term leaves no rounding error in the small ones.
  void decay_gradients(const float *s0, const float *dstate) {
    const auto from_row = [&](int64_t t, int64_t s) {
      const int64_t at = t * n_ + s;
      return static_cast<double>(a_[at]) * m1_[at] - static_cast<double>(b_[at]) * m2_[at];
    };
    const auto from_state = [&](int64_t t) { return dot(&q_[t * dk_], &dq_[t * dk_], dk_) - dot(&k_[t * dk_], &dk_row_[t * dk_], dk_); };
    double sum = from_start_[n_ - 1] * dot(s0, dstate, dk_ * dv_);
    for (int64_t t = 0; t < n_; t++) sum += from_state(t);
    for (int64_t t = 0; t < n_; t++) {
      ddecay_[t] = sum;
      sum += dot(&k_[t * dk_], &dk_col_[t * dk_], dk_) - from_state(t);  // the first product leads to the state after the piece
      for (int64_t s = 0; s < t; s++) sum -= from_row(t, s);
      for (int64_t later = t + 1; later < n_; later++) sum += from_row(later, t);
    }
  }

  void write(float *dqk, float *dg, float *dbeta, float *dx) const {
    const int64_t heads = in_.rule.value_heads;
    for (int64_t t = 0; t < n_; t++) {
      const int64_t row = first_ + t;
      float *dq = dqk + row * 2 * in_.keys + in_.key_head(head_) * dk_, *dk = dq + in_.keys;
      const int64_t at = t * dk_;
      for (int64_t i = 0; i < dk_; i++) dq[i] += dq_[at + i], dk[i] += dk_col_[at + i] - dk_row_[at + i];
      dg[row * heads + head_] = static_cast<float>(ddecay_[t]);
      dbeta[row * heads + head_] = static_cast<float>(dot(&dv_new_[t * dv_], r_ + (row * heads + head_) * dv_, dv_));
      std::memcpy(dx + row * in_.width + 2 * in_.keys + head_ * dv_, &e_[t * dv_], dv_ * sizeof(float));
    }
  }

  static double dot(const float *a, const float *b, int64_t n) {
    constexpr int lanes = 8;
    double sums[lanes] = {};
    for (int64_t i = 0; i < n; i += lanes)
      for (int64_t j = i; j < std::min(i + lanes, n); j++) sums[j - i] += static_cast<double>(a[j]) * b[j];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  const Rows &in_;
  const mgrpo_pieces &pieces_;
  const float *dy_, *r_, *states_;
  int64_t dk_, dv_, first_ = 0, n_ = 0, head_ = 0;
  float from_start_[MGRPO_PIECE_ROWS];
  double ddecay_[MGRPO_PIECE_ROWS];  // gradients of the logarithms of decays
  Floats ratio_, a_, b_, m1_, m2_;   // [n, n]
  Floats q_, k_, q_start_, k_start_, k_end_, dq_, dk_row_,
      dk_col_;  // [n, dk]; _start and _end: times the decay from the start or to the end
  // [n, dv], where v_ is beta r; zeros_ is a state of zeros.
  Floats dout_, v_, e_, dout_start_, e_start_, v_end_, dv_new_, zeros_;
};

// Computes the gradients of the queries and keys in x, and of ba, from the gradients of normalised queries and keys, of g and of beta.
void back_to_inputs(const Rows &in, const Floats &dqk, Floats &dg, const Floats &dbeta, float *dx, float *dba) {
  const auto &rule = in.rule;
  const int64_t heads = rule.value_heads;
  parallel_ranges(in.rows, 1, static_cast<double>(in.rows) * (2 * in.keys + 32 * heads), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      for (int64_t h = 0; h < 2 * rule.key_heads; h++)
        layer_loops().delta_normalise_bwd(dqk.data() + r * 2 * in.keys + h * rule.key_dim, in.x + r * in.width + h * rule.key_dim,
                                          in.factor[r * 2 * rule.key_heads + h], in.scale(h), dx + r * in.width + h * rule.key_dim,
                                          rule.key_dim);
      for (int64_t h = 0; h < heads; h++) {
        const float beta = in.beta[r * heads + h];
        dba[r * 2 * heads + h] = dbeta[r * heads + h] * beta * (1 - beta);
        dba[(r * 2 + 1) * heads + h] = dg[r * heads + h] * -std::exp(rule.a_log[h]) * sigmoid(in.a(r, h));
      }
    }
  });
}

void add_parameters(const Rows &in, const Floats &dg, const float *dba, float *da_log, float *ddt_bias) {
  const int64_t heads = in.rule.value_heads;
  for (int64_t h = 0; h < heads; h++) {
    double of_a = 0, of_dt = 0;
    for (int64_t r = 0; r < in.rows; r++) {
      of_a += static_cast<double>(in.g(r, h)) * dg[r * heads + h];
      of_dt += dba[(r * 2 + 1) * heads + h];
    }
    if (da_log != nullptr) da_log[h] += static_cast<float>(of_a);
    if (ddt_bias != nullptr) ddt_bias[h] += static_cast<float>(of_dt);
  }
}

bool valid_pieces(const mgrpo_pieces &p) {
  if (p.count < 0 || any_null({p.first}) || p.first[0] != 0 || (p.count > 0 && p.before == nullptr)) return false;
  for (int64_t i = 0; i < p.count; i++) {
    const int64_t n = p.first[i + 1] - p.first[i];
    if (n < 1 || n > MGRPO_PIECE_ROWS || p.before[i] < -1 || p.before[i] >= i) return false;
  }
  return true;
}

}  // namespace

int32_t mgrpo_delta_rule_packed_cpu(const float *x, const float *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, float *y, float *r,
                                    float *states) try {
  if (!valid_pieces(pieces) || !valid_rule(rule, pieces.first[pieces.count], pieces.count)) return MGRPO_INVALID_ARGUMENT;
  const int64_t rows = pieces.first[pieces.count];
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, ba, rule.a_log, rule.dt_bias, y, r, states})) return MGRPO_INVALID_ARGUMENT;
  const Rows in(rule, x, ba, rows);
  in.each_part(1, kDeltaColumns, [&](int64_t, int64_t head, int64_t column) {
    const auto state = [&](int64_t p) { return states + (p * rule.value_heads + head) * in.state_size(); };
    for (int64_t p = 0; p < pieces.count; p++)
      in.run(pieces.first[p], pieces.first[p + 1], head, column, kDeltaColumns, pieces.before[p] < 0 ? nullptr : state(pieces.before[p]),
             state(p), y, r);
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_delta_rule_packed_bwd_cpu(const float *dy, const float *x, const float *ba, const float *r, const float *states,
                                        mgrpo_delta_rule rule, mgrpo_pieces pieces, float *dx, float *dba, float *da_log_or_null,
                                        float *ddt_bias_or_null) try {
  if (!valid_pieces(pieces) || !valid_rule(rule, pieces.first[pieces.count], pieces.count)) return MGRPO_INVALID_ARGUMENT;
  const int64_t rows = pieces.first[pieces.count];
  if (rows == 0) return MGRPO_OK;
  if (any_null({dy, x, ba, r, states, rule.a_log, rule.dt_bias, dx, dba})) return MGRPO_INVALID_ARGUMENT;
  const Rows in(rule, x, ba, rows);
  Floats dqk(in.qk.size()), dg(in.decay.size()), dbeta(dg.size());
  const int64_t group = rule.value_heads / rule.key_heads;
  std::atomic<bool> failed{false};
  parallel_for(rule.key_heads, 24.0 * rows * rule.value_heads * in.state_size(), [&](int64_t key_head) {
    note_bad_alloc(&failed, [&] {
      HeadBackward back(in, pieces, dy, r, states);
      for (int64_t h = key_head * group; h < (key_head + 1) * group; h++) back.run(h, dqk.data(), dg.data(), dbeta.data(), dx);
    });
  });
  if (failed) return MGRPO_OUT_OF_MEMORY;
  back_to_inputs(in, dqk, dg, dbeta, dx, dba);
  add_parameters(in, dg, dba, da_log_or_null, ddt_bias_or_null);
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_delta_rule_states_cpu(const float *x, const float *ba, mgrpo_delta_rule rule, float *states, int64_t slots,
                                    const int32_t *slot, const int32_t *pos, float *y, int64_t rows) try {
  if (!valid_rule(rule, rows, slots)) return MGRPO_INVALID_ARGUMENT;
  if (rows == 0) return MGRPO_OK;
  if (any_null({x, ba, rule.a_log, rule.dt_bias, states, slot, pos, y}) || !all_in_range(slot, rows, 0, slots) ||
      !all_in_range(pos, rows, 0, INT32_MAX))
    return MGRPO_INVALID_ARGUMENT;
  const Rows in(rule, x, ba, rows);
  const std::vector<int64_t> runs = runs_of(slot, rows);
  const int64_t count = static_cast<int64_t>(runs.size()) - 1, columns = count == rows ? kDeltaRowColumns : kDeltaColumns;
  in.each_part(count, columns, [&](int64_t i, int64_t head, int64_t column) {
    const int64_t begin = runs[i];
    float *state = states + (slot[begin] * rule.value_heads + head) * in.state_size();
    in.run(begin, runs[i + 1], head, column, columns, pos[begin] == 0 ? nullptr : state, state, y, nullptr);
  });
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}
