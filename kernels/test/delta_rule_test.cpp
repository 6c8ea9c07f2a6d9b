#include "mgrpo/delta_rule.h"

#include "layer_testing.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kTolerance = 128 * kEpsilon;           // relative to the largest value
constexpr double kBackwardTolerance = 1024 * kEpsilon;  // relative to the largest value
constexpr int64_t kTooLarge = int64_t{1} << 60;

using Doubles = std::vector<double>;

struct Problem {
  Ints lengths;
  int64_t key_heads, value_heads, key_dim, value_dim;
  Ints follows = {};  // by segment; if empty, every segment is a sequence

  Ints cu() const { return boundaries(lengths); }
  int64_t rows() const { return cu().back(); }
  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t width() const { return 2 * keys() + values(); }
  int64_t state() const { return key_dim * value_dim; }
  int64_t key_head(int64_t head) const { return head / (value_heads / key_heads); }
  int64_t before(int64_t row) const { return row_before(lengths, follows, row); }
};

const Problem kProblems[] = {
    {{1}, 1, 1, 1, 1},
    {{5}, 1, 1, 5, 7},
    {{0, 3, 0, 1, 17, 0}, 2, 6, 5, 7},
    {{64, 65, 63, 129}, 1, 2, 8, 16},
    {{9, 130}, 2, 2, 32, 24},
    {{20, 7, 30, 1}, 1, 3, 16, 8, {-1, 19, 19, 19}},                              // one prefix, ragged ends
    {{20, 7}, 2, 2, 7, 5, {-1, 19}},                                              // one child of a whole segment
    {{20, 7, 30, 1}, 2, 4, 33, 9, {-1, 11, 0, 19}},                               // children of partial segments
    {{9, 0, 4, 0}, 1, 3, 16, 12, {-1, 8, 8, 12}},                                 // sequences that end where their prefix ends
    {{1, 1, 1, 1, 2, 1}, 1, 1, 12, 6, {-1, 0, 0, 1, 1, 2}},                       // a tree of single rows
    {{1, 1, 1, 1, 1}, 1, 2, 9, 8, {-1, 0, 1, 2, 3}},                              // one sequence in segments
    {{120, 130, 60, 3, 66}, 1, 1, 12, 10, {-1, 69, 69, -1, 312}},                 // two trees
    {{5, 1, 64, 1, 90, 2, 63, 11}, 1, 2, 6, 20, {-1, 2, 5, 40, 70, 5, -1, 200}},  // prefixes of prefixes
    {{4, 3, 2, 1, 3, 2}, 1, 1, 8, 8, {-1, 1, 1, 1, 0, 2}},                        // several branches at the same row
    {{66}, 1, 1, 128, 128},
    {{3, 5}, 1, 3, 100, 130, {-1, 1}},
    {{6, 3}, 1, 2, 256, 40, {-1, 3}},
    {{2}, 1, 1, 256, 256},
};

std::string name(const Problem &p) {
  return std::to_string(p.rows()) + " rows, key_dim " + std::to_string(p.key_dim) + ", value_dim " + std::to_string(p.value_dim);
}

struct Inputs {
  Floats x, ba, a_log, dt_bias, dy;
  explicit Inputs(const Problem &p, unsigned seed = 1)
      : x(normal(p.rows() * p.width(), seed)),
        ba(normal(p.rows() * 2 * p.value_heads, seed + 1, 2)),
        a_log(normal(p.value_heads, seed + 2, 1.5f)),
        dt_bias(normal(p.value_heads, seed + 3)),
        dy(normal(p.rows() * p.values(), seed + 4)) {}
};

// Inputs of the definition, or their gradients.
struct Values {
  Doubles x, ba, a_log, dt_bias;
};

Values exact(const Inputs &in) { return {doubles(in.x), doubles(in.ba), doubles(in.a_log), doubles(in.dt_bias)}; }

double dot(const Doubles &a, const Doubles &b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
  return sum;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Computes x / sqrt(|x|^2 + 1e-6) scale and its derivative.
struct Unit {
  Doubles x;  // before the scale
  double inverse, scale;

  Unit(const double *from, int64_t n, double scale) : x(from, from + n), scale(scale) {
    inverse = 1 / std::sqrt(dot(x, x) + 1e-6);
    for (double &v : x) v *= inverse;
  }
  double operator[](int64_t i) const { return x[i] * scale; }
  void add_gradient(const Doubles &dx, double *to) const {
    const double along = dot(x, dx);
    for (size_t i = 0; i < x.size(); i++) to[i] += inverse * scale * (dx[i] - x[i] * along);
  }
};

// Computes the definition in mgrpo/delta_rule.h in float64 for one row of one value head.
struct Step {
  int64_t n, m;  // key_dim, value_dim
  Unit q, k;
  double beta, g;
  Doubles faded, r, state;  // exp(g) S, r, and S after the row

  Step(const Problem &p, const Values &in, int64_t row, int64_t head, const Step *before)
      : n(p.key_dim),
        m(p.value_dim),
        q(&in.x[row * p.width() + p.key_head(head) * n], n, 1 / std::sqrt(static_cast<double>(n))),
        k(&in.x[row * p.width() + p.keys() + p.key_head(head) * n], n, 1),
        beta(sigmoid(in.ba[row * 2 * p.value_heads + head])),
        g(-std::exp(in.a_log[head]) * softplus(in.ba[(row * 2 + 1) * p.value_heads + head] + in.dt_bias[head])),
        faded(before != nullptr ? before->state : Doubles(static_cast<size_t>(n * m))),
        r(&in.x[row * p.width() + 2 * p.keys() + head * m], &in.x[row * p.width() + 2 * p.keys() + head * m] + m) {
    for (double &s : faded) s *= std::exp(g);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < m; j++) r[j] -= faded[i * m + j] * k[i];
    state = faded;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < m; j++) state[i * m + j] += k[i] * r[j] * beta;
  }
  void output(double *y) const {
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < m; j++) y[j] += state[i * m + j] * q[i];
  }
};

// Gradients of a step's inputs; `state` is the gradient of the state before it.
struct StepBack {
  Doubles dq, dk, dv, state;
  double dbeta = 0, dg = 0;

  // dstate: gradient of the state after the step, not counting the step's own output.
  StepBack(const Step &s, const double *dy, const Doubles &dstate)
      : dq(static_cast<size_t>(s.n)), dk(static_cast<size_t>(s.n)), dv(static_cast<size_t>(s.m)), state(dstate) {
    for (int64_t i = 0; i < s.n; i++)
      for (int64_t j = 0; j < s.m; j++) {
        state[i * s.m + j] += s.q[i] * dy[j];
        dq[i] += s.state[i * s.m + j] * dy[j];
        dk[i] += state[i * s.m + j] * s.r[j] * s.beta;
        dbeta += state[i * s.m + j] * s.k[i] * s.r[j];
        dv[j] += state[i * s.m + j] * s.k[i] * s.beta;
      }
    for (int64_t i = 0; i < s.n; i++)
      for (int64_t j = 0; j < s.m; j++) {
        dk[i] -= s.faded[i * s.m + j] * dv[j];
        state[i * s.m + j] -= s.k[i] * dv[j];
        dg += state[i * s.m + j] * s.faded[i * s.m + j];
        state[i * s.m + j] *= std::exp(s.g);
      }
  }
};

class Oracle {
 public:
  Doubles y, r;

  Oracle(const Problem &p, const Values &in)
      : y(static_cast<size_t>(p.rows() * p.values())), p_(p), in_(in), steps_(static_cast<size_t>(p.value_heads)) {
    r.resize(y.size());
    for (int64_t row = 0; row < p.rows(); row++) before_.push_back(p.before(row));
    for (int64_t head = 0; head < p.value_heads; head++)
      for (int64_t row = 0; row < p.rows(); row++) {
        steps_[head].emplace_back(p, in, row, head, before_[row] < 0 ? nullptr : &steps_[head][before_[row]]);
        const int64_t at = (row * p.value_heads + head) * p.value_dim;
        steps_[head].back().output(&y[at]);
        std::copy_n(steps_[head].back().r.begin(), p.value_dim, &r[at]);
      }
  }
  const Doubles &state(int64_t row, int64_t head) const { return steps_[head][row].state; }

  Values gradients(const Floats &dy) const {
    Values d{Doubles(in_.x.size()), Doubles(in_.ba.size()), Doubles(in_.a_log.size()), Doubles(in_.dt_bias.size())};
    for (int64_t head = 0; head < p_.value_heads; head++) {
      std::vector<Doubles> states(static_cast<size_t>(p_.rows()), Doubles(static_cast<size_t>(p_.state())));
      for (int64_t row = p_.rows() - 1; row >= 0; row--) {
        const Doubles of_row = doubles(part(dy, (row * p_.value_heads + head) * p_.value_dim, p_.value_dim));
        const StepBack back(steps_[head][row], of_row.data(), states[row]);
        add(back, row, head, &d);
        if (before_[row] < 0) continue;
        for (int64_t i = 0; i < p_.state(); i++) states[before_[row]][i] += back.state[i];
      }
    }
    return d;
  }

 private:
  void add(const StepBack &back, int64_t row, int64_t head, Values *d) const {
    const Step &s = steps_[head][row];
    double *q = &d->x[row * p_.width() + p_.key_head(head) * p_.key_dim], *k = q + p_.keys();
    s.q.add_gradient(back.dq, q);
    s.k.add_gradient(back.dk, k);
    std::copy(back.dv.begin(), back.dv.end(), &d->x[row * p_.width() + 2 * p_.keys() + head * p_.value_dim]);
    const int64_t b = row * 2 * p_.value_heads + head, a = b + p_.value_heads;
    d->ba[b] = back.dbeta * s.beta * (1 - s.beta);
    d->ba[a] = -std::exp(in_.a_log[head]) * sigmoid(in_.ba[a] + in_.dt_bias[head]) * back.dg;
    d->a_log[head] += s.g * back.dg;
    d->dt_bias[head] += d->ba[a];
  }

  Problem p_;
  Values in_;
  std::vector<int64_t> before_;
  std::vector<std::vector<Step>> steps_;  // by head and row
};

double largest(const Doubles &values) {
  double most = 0;
  for (double v : values) most = std::max(most, std::fabs(v));
  return most;
}

::testing::AssertionResult near_largest(const Floats &got, const Doubles &want, double tolerance) {
  return close_to(got, want, 0, tolerance * largest(want));
}

// Division of the rows into pieces, in host memory.
struct Cut {
  Ints first, before, chain, order, level;

  static Cut of(const Problem &p) {
    const Ints cu = p.cu();
    Ints room(static_cast<size_t>(mgrpo_pieces_size(p.rows(), p.batch())) + 1, -7);
    mgrpo_pieces pieces;
    EXPECT_EQ(mgrpo_pieces_of(cu.data(), p.follows.empty() ? nullptr : p.follows.data(), p.batch(), room.data(), &pieces), MGRPO_OK);
    EXPECT_EQ(room.back(), -7) << "written after the room for pieces";
    return {Ints(pieces.first, pieces.first + pieces.count + 1), Ints(pieces.before, pieces.before + pieces.count),
            Ints(pieces.chain, pieces.chain + pieces.chains + 1), Ints(pieces.order, pieces.order + pieces.chains),
            Ints(pieces.level, pieces.level + pieces.levels + 1)};
  }
  // Makes every row a piece and a chain.
  static Cut single_rows(const Problem &p) {
    Cut cut;
    Ints depth;
    for (int32_t r = 0; r <= p.rows(); r++) cut.first.push_back(r), cut.chain.push_back(r);
    for (int64_t r = 0; r < p.rows(); r++) {
      cut.before.push_back(static_cast<int32_t>(p.before(r)));
      depth.push_back(cut.before.back() < 0 ? 0 : depth[cut.before.back()] + 1);
    }
    for (int32_t d = 0; cut.order.size() < depth.size(); d++) {
      cut.level.push_back(static_cast<int32_t>(cut.order.size()));
      for (int32_t r = 0; r < p.rows(); r++)
        if (depth[r] == d) cut.order.push_back(r);
    }
    cut.level.push_back(static_cast<int32_t>(cut.order.size()));
    return cut;
  }
  int64_t count() const { return static_cast<int64_t>(before.size()); }
  int64_t chains() const { return static_cast<int64_t>(order.size()); }
  int64_t levels() const { return static_cast<int64_t>(level.size()) - 1; }
};

// Inputs of a call in a backend's memory.
struct Call {
  const Backend &b;
  const Problem &p;
  int32_t dtype;
  Cut cut;
  Array x, ba;
  Buffer<float> a_log, dt_bias;
  Buffer<int32_t> first, before, chain, order;

  Call(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype, bool aligned, const Cut &cut)
      : b(b),
        p(p),
        dtype(dtype),
        cut(cut),
        x(b, dtype, in.x, aligned),
        ba(b, dtype, in.ba, aligned),
        a_log(b, in.a_log),
        dt_bias(b, in.dt_bias),
        first(b, cut.first),
        before(b, cut.before),
        chain(b, cut.chain),
        order(b, cut.order) {}
  mgrpo_delta_rule rule() { return {p.key_heads, p.value_heads, p.key_dim, p.value_dim, a_log.get(), dt_bias.get()}; }
  mgrpo_pieces pieces() {
    return {cut.count(), cut.chains(), cut.levels(), first.get(), before.get(), chain.get(), order.get(), cut.level.data()};
  }
};

// Options of a call.
struct How {
  int32_t dtype = MGRPO_FLOAT32;
  bool aligned = false, single_rows = false;

  Cut cut(const Problem &p) const { return single_rows ? Cut::single_rows(p) : Cut::of(p); }
};

struct Forward {
  Floats y, r, states;
};

Forward forward(const Backend &b, const Problem &p, const Inputs &in, How how = {}) {
  Call call(b, p, in, how.dtype, how.aligned, how.cut(p));
  Array y(b, how.dtype, p.rows() * p.values(), how.aligned);
  Buffer<float> r(b, static_cast<size_t>(p.rows() * p.values())),
      states(b, static_cast<size_t>(call.cut.count() * p.value_heads * p.state()));
  EXPECT_EQ(
      b.delta_rule_packed(call.x.get(), call.ba.get(), call.rule(), call.pieces(), how.dtype, y.get(), r.get(), states.get(), p.rows()),
      MGRPO_OK);
  return {y.values(), r.values(), states.values()};
}

struct Gradients {
  Floats dx, dba, da_log, ddt_bias;
};

Gradients backward(const Backend &b, const Problem &p, const Inputs &in, How how = {}, float before = 0) {
  const Forward saved = forward(b, p, in, how);
  Call call(b, p, in, how.dtype, how.aligned, how.cut(p));
  Buffer<float> r(b, saved.r), states(b, saved.states);
  Array dy(b, how.dtype, in.dy, how.aligned), dx(b, how.dtype, p.rows() * p.width(), how.aligned),
      dba(b, how.dtype, p.rows() * 2 * p.value_heads, how.aligned);
  const Floats given(static_cast<size_t>(p.value_heads), before);
  Buffer<float> da_log(b, given), ddt_bias(b, given);
  EXPECT_EQ(b.delta_rule_packed_bwd(dy.get(), call.x.get(), call.ba.get(), r.get(), states.get(), call.rule(), call.pieces(), how.dtype,
                                    dx.get(), dba.get(), da_log.get(), ddt_bias.get(), p.rows()),
            MGRPO_OK);
  return {dx.values(), dba.values(), da_log.values(), ddt_bias.values()};
}

class DeltaRule : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(DeltaRule);

TEST(DeltaRuleOracle, GradientsAreCentralDifferences) {
  const Problem p{{5, 4, 3}, 1, 2, 3, 2, {-1, 2, 4}};
  const Inputs in(p);
  const Values given = exact(in), got = Oracle(p, given).gradients(in.dy);
  const auto loss = [&](const Values &v) { return dot(Oracle(p, v).y, doubles(in.dy)); };
  for (Doubles Values::*of : {&Values::x, &Values::ba, &Values::a_log, &Values::dt_bias})
    for (size_t i = 0; i < (given.*of).size(); i++) {
      const double h = 1e-6;
      Values up = given, down = given;
      (up.*of)[i] += h, (down.*of)[i] -= h;
      EXPECT_NEAR((got.*of)[i], (loss(up) - loss(down)) / (2 * h), 1e-7 * (1 + std::fabs((got.*of)[i]))) << i;
    }
}

TEST(DeltaRulePieces, CutSegmentsAsDefined) {
  for (const Problem &p : kProblems) {
    const Cut cut = Cut::of(p);
    const Ints cu = p.cu();
    ASSERT_EQ(cut.first.front(), 0) << name(p);
    ASSERT_EQ(cut.first.back(), p.rows()) << name(p);
    for (int64_t piece = 0; piece < cut.count(); piece++) {
      const int32_t begin = cut.first[piece], end = cut.first[piece + 1];
      ASSERT_TRUE(begin < end && end - begin <= MGRPO_PIECE_ROWS) << piece;
      for (int32_t c : cu) EXPECT_TRUE(c <= begin || c >= end) << "piece " << piece << " has rows of two segments";
      const int64_t row = p.before(begin);
      if (row < 0) {
        EXPECT_EQ(cut.before[piece], -1);
        continue;
      }
      ASSERT_TRUE(cut.before[piece] >= 0 && cut.before[piece] < piece) << piece;
      EXPECT_EQ(cut.first[cut.before[piece] + 1] - 1, row) << piece;
    }
  }
}

TEST(DeltaRulePieces, ChainsFollowTheirLevels) {
  for (const Problem &p : kProblems) {
    const Cut cut = Cut::of(p);
    ASSERT_TRUE(cut.chain.front() == 0 && cut.chain.back() == cut.count()) << name(p);
    ASSERT_TRUE(cut.level.front() == 0 && cut.level.back() == cut.chains()) << name(p);
    Ints chain_of(static_cast<size_t>(cut.count())), level_of(static_cast<size_t>(cut.chains()), -1);
    for (int64_t c = 0; c < cut.chains(); c++) {
      ASSERT_LT(cut.chain[c], cut.chain[c + 1]);
      for (int32_t piece = cut.chain[c]; piece < cut.chain[c + 1]; piece++) chain_of[piece] = static_cast<int32_t>(c);
    }
    for (int64_t level = 0; level < cut.levels(); level++)
      for (int32_t at = cut.level[level]; at < cut.level[level + 1]; at++) {
        EXPECT_EQ(level_of[cut.order[at]], -1) << "a chain has two levels";
        level_of[cut.order[at]] = static_cast<int32_t>(level);
      }
    for (int64_t piece = 0; piece < cut.count(); piece++) {
      const int32_t before = cut.before[piece], chain = chain_of[piece];
      if (piece > cut.chain[chain]) {
        EXPECT_EQ(before, piece - 1) << name(p);
        continue;
      }
      if (before < 0) continue;
      EXPECT_EQ(before, cut.chain[chain_of[before] + 1] - 1) << "a chain begins after a piece within another one";
      EXPECT_LT(level_of[chain_of[before]], level_of[chain]);
    }
  }
}

TEST(DeltaRulePieces, SequenceThatNoneLeavesIsOneChain) {
  const Cut cut = Cut::of({{200, 300}, 1, 1, 1, 1});
  EXPECT_EQ(cut.count(), 9);
  EXPECT_EQ(cut.chains(), 2);
  EXPECT_EQ(cut.levels(), 1);
}

TEST(DeltaRulePieces, EmptyAndInvalid) {
  EXPECT_GE(mgrpo_pieces_size(0, 0), 0);
  for (const auto &[rows, batch] : {std::pair{int64_t{-1}, int64_t{1}}, {1, -1}, {kTooLarge, 1}, {1, kTooLarge}})
    EXPECT_EQ(mgrpo_pieces_size(rows, batch), -1);
  const Cut none = Cut::of({{0, 0}, 1, 1, 1, 1});
  EXPECT_TRUE(none.count() == 0 && none.chains() == 0 && none.levels() == 0);
  Ints room(1000);
  mgrpo_pieces pieces;
  const auto status = [&](const Ints &cu, const Ints &follows) {
    return mgrpo_pieces_of(cu.data(), follows.empty() ? nullptr : follows.data(), static_cast<int64_t>(cu.size()) - 1, room.data(),
                           &pieces);
  };
  EXPECT_EQ(status({0, 2, 5}, {-1, 1}), MGRPO_OK);
  EXPECT_EQ(status({1, 2, 5}, {}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({0, 2, 1}, {}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({0, 2, 5}, {-1, 2}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({0, 2, 5}, {0, 1}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(status({0, 2, 5}, {-1, -2}), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_pieces_of(nullptr, nullptr, 1, room.data(), &pieces), MGRPO_INVALID_ARGUMENT);
}

TEST_P(DeltaRule, ForwardMatchesFloat64) {
  for (const Problem &p : kProblems)
    for (bool aligned : {false, true}) {
      const Inputs in(p);
      const Oracle want(p, exact(in));
      const Forward got = forward(backend(), p, in, {MGRPO_FLOAT32, aligned});
      EXPECT_TRUE(near_largest(got.y, want.y, kTolerance)) << name(p);
      EXPECT_TRUE(near_largest(got.r, want.r, kTolerance)) << name(p);
      const Cut cut = Cut::of(p);
      for (int64_t piece = 0; piece < cut.count(); piece++)
        for (int64_t head = 0; head < p.value_heads; head++)
          EXPECT_TRUE(near_largest(part(got.states, (piece * p.value_heads + head) * p.state(), p.state()),
                                   want.state(cut.first[piece + 1] - 1, head), kTolerance))
              << name(p) << ", piece " << piece << ", head " << head;
    }
}

void expect_gradients(const Gradients &got, const Values &want, const Problem &p) {
  EXPECT_TRUE(near_largest(got.dx, want.x, kBackwardTolerance)) << name(p);
  EXPECT_TRUE(near_largest(got.dba, want.ba, kBackwardTolerance)) << name(p);
  EXPECT_TRUE(near_largest(got.da_log, want.a_log, kBackwardTolerance)) << name(p);
  EXPECT_TRUE(near_largest(got.ddt_bias, want.dt_bias, kBackwardTolerance)) << name(p);
}

TEST_P(DeltaRule, BackwardMatchesFloat64AndAddsToTheGradientsOfWeights) {
  for (const Problem &p : kProblems)
    for (bool aligned : {false, true}) {
      const Inputs in(p);
      Values want = Oracle(p, exact(in)).gradients(in.dy);
      for (Doubles *sum : {&want.a_log, &want.dt_bias})
        for (double &v : *sum) v += 2;
      expect_gradients(backward(backend(), p, in, {MGRPO_FLOAT32, aligned}, 2), want, p);
    }
}

TEST_P(DeltaRule, GradientsOfWeightsAreOptional) {
  const Problem p{{70, 3}, 1, 2, 8, 8};
  const Inputs in(p);
  const Forward saved = forward(backend(), p, in);
  Call call(backend(), p, in, MGRPO_FLOAT32, false, Cut::of(p));
  Array dy(backend(), MGRPO_FLOAT32, in.dy), dx(backend(), MGRPO_FLOAT32, p.rows() * p.width()),
      dba(backend(), MGRPO_FLOAT32, p.rows() * 2 * p.value_heads);
  Buffer<float> r(backend(), saved.r), states(backend(), saved.states);
  ASSERT_EQ(backend().delta_rule_packed_bwd(dy.get(), call.x.get(), call.ba.get(), r.get(), states.get(), call.rule(), call.pieces(),
                                            MGRPO_FLOAT32, dx.get(), dba.get(), nullptr, nullptr, p.rows()),
            MGRPO_OK);
  const Gradients want = backward(backend(), p, in);
  EXPECT_TRUE(same_bits(dx.values(), want.dx) && same_bits(dba.values(), want.dba));
}

// A segment's sequence by itself: the last row and all rows before it.
struct Alone {
  std::vector<int64_t> rows;
  Problem p;
  Inputs in;

  Alone(const Problem &whole, const Inputs &all, int64_t last)
      : rows(rows_up_to(whole.lengths, whole.follows, last)),
        p{{static_cast<int32_t>(rows.size())}, whole.key_heads, whole.value_heads, whole.key_dim, whole.value_dim},
        in(p) {
    in.a_log = all.a_log, in.dt_bias = all.dt_bias;
    for (size_t i = 0; i < rows.size(); i++) {
      std::copy_n(&all.x[rows[i] * p.width()], p.width(), &in.x[i * p.width()]);
      std::copy_n(&all.ba[rows[i] * 2 * p.value_heads], 2 * p.value_heads, &in.ba[i * 2 * p.value_heads]);
      std::copy_n(&all.dy[rows[i] * p.values()], p.values(), &in.dy[i * p.values()]);
    }
  }
};

TEST_P(DeltaRule, SequenceDoesNotDependOnItsCompany) {
  for (const Problem &p : kProblems) {
    const Inputs in(p);
    Forward all;
    with_threads(3, [&] { all = forward(backend(), p, in); });
    for (int64_t last = p.rows() - 1; last >= 0; last -= 29) {
      const Alone alone(p, in, last);
      const Forward own = forward(backend(), alone.p, alone.in, {MGRPO_FLOAT32, true});
      for (size_t i = 0; i < alone.rows.size(); i++) {
        EXPECT_TRUE(same_bits(part(own.y, i * p.values(), p.values()), part(all.y, alone.rows[i] * p.values(), p.values())))
            << name(p) << ", row " << alone.rows[i];
        EXPECT_TRUE(same_bits(part(own.r, i * p.values(), p.values()), part(all.r, alone.rows[i] * p.values(), p.values())))
            << name(p) << ", row " << alone.rows[i];
      }
    }
  }
}

TEST_P(DeltaRule, ForwardDoesNotDependOnSegmentsNorOnPieces) {
  const Problem whole{{83, 1, 40}, 1, 3, 20, 12}, cut{{10, 73, 1, 1, 39}, 1, 3, 20, 12, {-1, 9, -1, -1, 84}};  // the same sequences
  const Inputs in(whole);
  const Forward want = forward(backend(), whole, in);
  for (const Forward &got : {forward(backend(), cut, in), forward(backend(), whole, in, {MGRPO_FLOAT32, false, true})})
    EXPECT_TRUE(same_bits(got.y, want.y) && same_bits(got.r, want.r));
  expect_gradients(backward(backend(), cut, in), Oracle(whole, exact(in)).gradients(in.dy), cut);
  expect_gradients(backward(backend(), whole, in, {MGRPO_FLOAT32, false, true}), Oracle(whole, exact(in)).gradients(in.dy), whole);
}

TEST_P(DeltaRule, GradientDoesNotDependOnCompany) {
  const Problem p{{70, 1, 40}, 2, 4, 20, 12};
  const Inputs in(p);
  Gradients all;
  with_threads(3, [&] { all = backward(backend(), p, in); });
  for (int64_t last : {69, 70, 110}) {
    const Alone alone(p, in, last);
    const Gradients own = backward(backend(), alone.p, alone.in);
    for (size_t i = 0; i < alone.rows.size(); i++) {
      EXPECT_TRUE(same_bits(part(own.dx, i * p.width(), p.width()), part(all.dx, alone.rows[i] * p.width(), p.width())));
      EXPECT_TRUE(same_bits(part(own.dba, i * 2 * p.value_heads, 2 * p.value_heads),
                            part(all.dba, alone.rows[i] * 2 * p.value_heads, 2 * p.value_heads)));
    }
  }
}

TEST_P(DeltaRule, BitsDoNotDependOnThreads) {
  const Problem p{{150, 130, 60, 3, 66}, 2, 4, 12, 10, {-1, 69, 69, -1, 342}};
  const Inputs in(p);
  Forward one, three;
  Gradients one_back, three_back;
  with_threads(1, [&] { one = forward(backend(), p, in), one_back = backward(backend(), p, in); });
  with_threads(3, [&] { three = forward(backend(), p, in), three_back = backward(backend(), p, in); });
  EXPECT_TRUE(same_bits(one.y, three.y) && same_bits(one.r, three.r) && same_bits(one.states, three.states));
  EXPECT_TRUE(same_bits(one_back.dx, three_back.dx) && same_bits(one_back.dba, three_back.dba));
  EXPECT_TRUE(same_bits(one_back.da_log, three_back.da_log) && same_bits(one_back.ddt_bias, three_back.ddt_bias));
}

// States of several sequences, each with its own slot, that receive rows in calls.
class States {
 public:
  States(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype, const Ints &slots, int64_t count)
      : b_(b),
        p_(p),
        in_(in),
        dtype_(dtype),
        slots_(slots),
        count_(count),
        a_log_(b, in.a_log),
        dt_bias_(b, in.dt_bias),
        states_(b, Floats(static_cast<size_t>(count * p.value_heads * p.state()), kOld)) {}

  // Applies rows [from[s], to) of every sequence s, the last sequence first. Returns y by row of the problem.
  std::vector<std::pair<int64_t, Floats>> advance(const Ints &from, int64_t to) {
    Ints slot, pos, row;
    Floats x, ba;
    const Ints cu = p_.cu();
    const auto copy = [](const Floats &all, int64_t row, int64_t n, Floats *out) {
      out->insert(out->end(), all.begin() + row * n, all.begin() + (row + 1) * n);
    };
    for (int64_t s = p_.batch() - 1; s >= 0; s--)
      for (int32_t t = from[s]; t < std::min<int64_t>(to, p_.lengths[s]); t++) {
        slot.push_back(slots_[s]), pos.push_back(t), row.push_back(cu[s] + t);
        copy(in_.x, row.back(), p_.width(), &x);
        copy(in_.ba, row.back(), 2 * p_.value_heads, &ba);
      }
    const int64_t n = static_cast<int64_t>(row.size());
    Array rows(b_, dtype_, x), gates(b_, dtype_, ba), y(b_, dtype_, n * p_.values());
    Buffer<int32_t> of(b_, slot), at(b_, pos);
    const mgrpo_delta_rule rule{p_.key_heads, p_.value_heads, p_.key_dim, p_.value_dim, a_log_.get(), dt_bias_.get()};
    EXPECT_EQ(b_.delta_rule_states(rows.get(), gates.get(), rule, dtype_, states_.get(), count_, of.get(), at.get(), y.get(), n), MGRPO_OK);
    std::vector<std::pair<int64_t, Floats>> all;
    for (int64_t r = 0; r < n; r++) all.push_back({row[r], part(y.values(), r * p_.values(), p_.values())});
    return all;
  }
  Floats of_slot(int64_t slot) const { return part(states_.values(), slot * p_.value_heads * p_.state(), p_.value_heads * p_.state()); }
  static constexpr float kOld = 33;  // left behind by an earlier sequence

 private:
  const Backend &b_;
  const Problem &p_;
  const Inputs &in_;
  int32_t dtype_;
  Ints slots_;
  int64_t count_;
  Buffer<float> a_log_, dt_bias_, states_;
};

TEST_P(DeltaRule, RowsWithStatesHaveTheBitsOfPackedOnes) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (const auto &[key_dim, value_dim] : {std::pair{20, 12}, {5, 7}, {128, 130}})
      for (int64_t chunk : {1, 2, 5, 100}) {
        const int32_t shorter = key_dim == 128 ? 4 : 1;
        const Problem p{{75 / shorter, 21 / shorter, 4}, 1, 2, key_dim, value_dim};
        const Inputs in(p);
        const Forward want = forward(backend(), p, in, {dtype});
        const Ints slots{4, 0, 2};
        States states(backend(), p, in, dtype, slots, 6);
        for (int32_t from = 0; from < p.lengths[0]; from += chunk)  // each call processes the next rows of all sequences
          for (const auto &[row, y] : states.advance({from, from, from}, from + chunk))
            EXPECT_TRUE(same_bits(y, part(want.y, row * p.values(), p.values()))) << key_dim << ", in " << chunk << ", row " << row;
        const Cut cut = Cut::of(p);
        for (int64_t s = 0; s < p.batch(); s++) {
          int64_t last = 0;  // the sequence's last piece
          while (cut.first[last + 1] < p.cu()[s + 1]) last++;
          EXPECT_TRUE(same_bits(states.of_slot(slots[s]), part(want.states, last * 2 * p.state(), 2 * p.state()))) << "sequence " << s;
        }
        for (int64_t slot : {1, 3, 5})
          for (float v : states.of_slot(slot)) ASSERT_EQ(v, States::kOld) << "slot " << slot << " was changed";
      }
  }
}

TEST_P(DeltaRule, RowAtPositionZeroBeginsASequence) {
  const Problem p{{9}, 1, 1, 8, 8};
  const Inputs in(p);
  const Forward want = forward(backend(), p, in);
  States states(backend(), p, in, MGRPO_FLOAT32, {1}, 2);
  states.advance({0}, 5);
  for (int again = 0; again < 2; again++)
    for (const auto &[row, y] : states.advance({0}, 9)) EXPECT_TRUE(same_bits(y, part(want.y, row * 8, 8))) << row;
}

TEST_P(DeltaRule, SequenceThatIsLeftOutKeepsItsState) {
  const Problem p{{6, 6}, 1, 2, 8, 8};
  const Inputs in(p);
  const Forward want = forward(backend(), p, in);
  States states(backend(), p, in, MGRPO_FLOAT32, {0, 1}, 2);
  states.advance({0, 0}, 3);
  const Floats before = states.of_slot(0);
  states.advance({6, 3}, 6);
  EXPECT_TRUE(same_bits(states.of_slot(0), before));
  for (const auto &[row, y] : states.advance({3, 6}, 6)) EXPECT_TRUE(same_bits(y, part(want.y, row * 16, 16))) << row;
}

TEST_P(DeltaRule, SlotsOutsideOfTheStates) {
  const Problem p{{3}, 1, 1, 8, 8};
  const Inputs in(p);
  const Forward want = forward(backend(), p, in);
  for (int32_t outside : {-1, 2}) {
    Call call(backend(), p, in, MGRPO_FLOAT32, false, Cut::of(p));
    Array y(backend(), MGRPO_FLOAT32, 3 * 8);
    Buffer<float> states(backend(), Floats(2 * 64, 5.0f));
    Buffer<int32_t> slot(backend(), Ints{0, outside, outside}), pos(backend(), Ints{0, 0, 0});
    const int32_t status = backend().delta_rule_states(call.x.get(), call.ba.get(), call.rule(), MGRPO_FLOAT32, states.get(), 2, slot.get(),
                                                       pos.get(), y.get(), 3);
    EXPECT_TRUE(same_bits(part(states.values(), 64, 64), Floats(64, 5.0f)));
    if (backend().refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(y.unwritten());
      continue;
    }
    EXPECT_EQ(status, MGRPO_OK);
    EXPECT_TRUE(same_bits(part(y.values(), 0, 8), part(want.y, 0, 8)));
    for (int64_t i = 8; i < 24; i++) EXPECT_TRUE(std::isnan(y.values()[i])) << i;
  }
}

TEST_P(DeltaRule, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (const Problem &p : kProblems)
    for (bool aligned : {false, true}) {
      Inputs in(p);
      for (Floats *x : {&in.x, &in.ba, &in.dy}) *x = rounded_to_bf16(*x);
      const Oracle want(p, exact(in));
      const How how{MGRPO_BFLOAT16, aligned};
      const Forward got = forward(backend(), p, in, how);
      EXPECT_TRUE(close_to(got.y, want.y, kBf16Epsilon, kTolerance * largest(want.y))) << name(p);
      EXPECT_TRUE(near_largest(got.r, want.r, kTolerance)) << name(p);
      const Values wanted = want.gradients(in.dy);
      const Gradients gradients = backward(backend(), p, in, how);
      EXPECT_TRUE(close_to(gradients.dx, wanted.x, kBf16Epsilon, kBackwardTolerance * largest(wanted.x))) << name(p);
      EXPECT_TRUE(close_to(gradients.dba, wanted.ba, kBf16Epsilon, kBackwardTolerance * largest(wanted.ba))) << name(p);
      EXPECT_TRUE(near_largest(gradients.da_log, wanted.a_log, kBackwardTolerance)) << name(p);
      EXPECT_TRUE(near_largest(gradients.ddt_bias, wanted.dt_bias, kBackwardTolerance)) << name(p);
    }
}

TEST_P(DeltaRule, ExtremesOfDecayAndOfBeta) {
  const Problem p{{70, 40}, 1, 2, 16, 8};
  for (float a : {-100.0f, 3.0f, 50.0f, 1000.0f})
    for (float b : {-200.0f, 0.5f, 200.0f}) {
      Inputs in(p);
      in.dt_bias = {0, 0}, in.a_log = {0, 2.5f};
      for (int64_t r = 0; r < p.rows(); r++)
        for (int64_t h = 0; h < 2; h++) {
          in.ba[r * 4 + h] = r % 3 == 0 ? b : in.ba[r * 4 + h];
          in.ba[r * 4 + 2 + h] = r % 5 < 2 ? a : r % 5 < 4 ? -3.0f : in.ba[r * 4 + 2 + h];
        }
      const Oracle want(p, exact(in));
      EXPECT_TRUE(near_largest(forward(backend(), p, in).y, want.y, kTolerance)) << a << " " << b;
      expect_gradients(backward(backend(), p, in), want.gradients(in.dy), p);
    }
}

TEST_P(DeltaRule, QueriesAndKeysOfZero) {
  const Problem p{{70}, 1, 2, 16, 8};
  Inputs in(p);
  for (int64_t r = 0; r < p.rows(); r += 2) std::fill_n(&in.x[r * p.width() + (r % 4 == 0 ? 0 : 16)], 16, 0.0f);
  std::fill_n(&in.x[69 * p.width()], 32, 0.0f);
  const Oracle want(p, exact(in));
  EXPECT_TRUE(near_largest(forward(backend(), p, in).y, want.y, kTolerance));
  expect_gradients(backward(backend(), p, in), want.gradients(in.dy), p);
}

TEST_P(DeltaRule, NonFiniteNumbersStayInTheirSequence) {
  const Problem p{{6, 5, 4}, 1, 2, 4, 4, {-1, 2, -1}};
  for (float bad : {NAN, INFINITY}) {
    Inputs in(p);
    in.x[4 * p.width() + 4] = bad;  // a key of row 4; rows 6 to 10 branch off after row 2
    const Forward y = forward(backend(), p, in);
    for (int64_t r = 0; r < p.rows(); r++) EXPECT_EQ(std::isnan(y.y[r * p.values()]), r == 4 || r == 5) << r;
    const Gradients d = backward(backend(), p, in);
    const auto finite = [&](int64_t r) {
      for (float v : part(d.dx, r * p.width(), p.width()))
        if (!std::isfinite(v)) return false;
      return true;
    };
    for (int64_t r = 11; r < 15; r++) EXPECT_TRUE(finite(r)) << r;
    for (int64_t r = 6; r < 11; r++) EXPECT_TRUE(finite(r)) << r;
    EXPECT_FALSE(finite(4));
  }
}

TEST_P(DeltaRule, EmptyAndInvalid) {
  const Backend &b = backend();
  const Problem p{{2}, 1, 2, 4, 4};
  const Inputs in(p);
  Call call(b, p, in, MGRPO_FLOAT32, false, Cut::of(p));
  Array array(b, MGRPO_FLOAT32, 64);
  Buffer<int32_t> zeros(b, Ints{0, 0});
  void *v = array.get();
  float *f = static_cast<float *>(v);
  const mgrpo_delta_rule good = call.rule();
  const mgrpo_pieces two = call.pieces();
  mgrpo_pieces none = Call(b, p, in, MGRPO_FLOAT32, false, Cut{{0}, {}, {0}, {}, {0}}).pieces();
  none.first = zeros.get(), none.level = call.cut.first.data();
  EXPECT_EQ(b.delta_rule_packed(nullptr, nullptr, good, none, MGRPO_FLOAT32, nullptr, nullptr, nullptr, 0), MGRPO_OK);
  EXPECT_EQ(b.delta_rule_packed_bwd(nullptr, nullptr, nullptr, nullptr, nullptr, good, none, MGRPO_FLOAT32, nullptr, nullptr, nullptr,
                                    nullptr, 0),
            MGRPO_OK);
  EXPECT_EQ(b.delta_rule_states(nullptr, nullptr, good, MGRPO_FLOAT32, nullptr, 0, nullptr, nullptr, nullptr, 0), MGRPO_OK);
  const float *w = good.a_log;
  for (const mgrpo_delta_rule &rule : {mgrpo_delta_rule{0, 2, 4, 4, w, w},
                                       {1, 0, 4, 4, w, w},
                                       {2, 3, 4, 4, w, w},
                                       {2, 1, 4, 4, w, w},
                                       {-1, 2, 4, 4, w, w},
                                       {1, 2, 0, 4, w, w},
                                       {1, 2, 4, 0, w, w},
                                       {1, 2, 257, 4, w, w},
                                       {1, 2, 4, 257, w, w},
                                       {1, kTooLarge, 4, 4, w, w},
                                       {1, 2, 4, 4, nullptr, w},
                                       {1, 2, 4, 4, w, nullptr}}) {
    EXPECT_EQ(b.delta_rule_packed(v, v, rule, two, MGRPO_FLOAT32, v, f, f, 2), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.delta_rule_packed_bwd(v, v, v, f, f, rule, two, MGRPO_FLOAT32, v, v, nullptr, nullptr, 2), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.delta_rule_states(v, v, rule, MGRPO_FLOAT32, f, 1, zeros.get(), zeros.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  }
  EXPECT_EQ(b.delta_rule_packed(nullptr, v, good, two, MGRPO_FLOAT32, v, f, f, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.delta_rule_packed(v, v, good, two, MGRPO_FLOAT32, v, f, nullptr, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.delta_rule_packed_bwd(v, v, v, f, nullptr, good, two, MGRPO_FLOAT32, v, v, nullptr, nullptr, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.delta_rule_states(v, v, good, MGRPO_FLOAT32, nullptr, 1, zeros.get(), zeros.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.delta_rule_states(v, v, good, MGRPO_FLOAT32, f, -1, zeros.get(), zeros.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.delta_rule_states(v, v, good, MGRPO_FLOAT32, f, 1, zeros.get(), zeros.get(), v, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(array.unwritten());
}

}  // namespace
