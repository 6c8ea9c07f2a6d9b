#include "mgrpo/short_conv.h"

#include <functional>

#include "layer_testing.h"
#include "mgrpo/pages.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kTolerance = 16 * kEpsilon;       // relative to the largest term: at most 8 products and their sum
constexpr double kSumTolerance = 1024 * kEpsilon;  // for sums over all rows

struct Problem {
  Ints lengths;
  int64_t d, width;
  Ints follows = {};  // by segment; if empty, every segment is a sequence
  bool bias = false, silu = false;

  int64_t width_of_product() const { return silu ? d : 3 * d; }
  Ints cu() const { return boundaries(lengths); }
  int64_t rows() const { return cu().back(); }
  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t before(int64_t row) const { return row_before(lengths, follows, row); }
};

const Problem kProblems[] = {
    {{1}, 1, 1},
    {{5}, 3, 3},
    {{1}, 5, 8, {}, true},
    {{0, 1, 0, 2, 17, 0}, 16, 3, {}, true},
    {{64, 65, 63}, 24, 4},
    {{33, 129}, 64, 2, {}, true},
    {{7, 9}, 37, 8},
    {{20, 7, 30, 1}, 16, 3, {-1, 19, 19, 19}, true},                        // one prefix, ragged ends
    {{20, 7}, 40, 3, {-1, 19}},                                             // one child of a whole segment
    {{20, 7, 30, 1}, 33, 3, {-1, 11, 0, 19}, true},                         // children of partial segments
    {{9, 0, 4, 0}, 16, 3, {-1, 8, 8, 12}},                                  // sequences that end where their prefix ends
    {{1, 1, 1, 1, 2, 1}, 12, 4, {-1, 0, 0, 1, 1, 2}, true},                 // a tree of single rows
    {{1, 1, 1, 1, 1}, 9, 3, {-1, 0, 1, 2, 3}},                              // one sequence in segments
    {{120, 130, 60, 3, 66}, 64, 3, {-1, 69, 69, -1, 312}, true},            // two trees
    {{5, 1, 64, 1, 90, 2, 63, 11}, 20, 5, {-1, 2, 5, 40, 70, 5, -1, 200}},  // prefixes of prefixes
    {{4, 3, 2, 1, 3, 2}, 8, 8, {-1, 1, 1, 1, 0, 2}, true},                  // several branches at rows with few rows after them
};

// Returns every problem, with gates and with silu.
std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (Problem p : kProblems)
    for (bool silu : {false, true}) {
      p.silu = silu;
      all.push_back(p);
    }
  return all;
}

struct Inputs {
  Floats bcx, w, bias, dy;
  explicit Inputs(const Problem &p, unsigned seed = 1)
      : bcx(normal(p.rows() * p.width_of_product(), seed)),
        w(normal(p.d * p.width, seed + 1)),
        bias(p.bias ? normal(p.d, seed + 2) : Floats{}),
        dy(normal(p.rows() * p.d, seed + 3)) {}
};

// Inputs of a call in a backend's memory.
struct Call {
  const Backend &b;
  const Problem &p;
  int32_t dtype;
  Array bcx, w, bias;
  Buffer<int32_t> cu, follows;

  Call(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype, bool aligned)
      : b(b),
        p(p),
        dtype(dtype),
        bcx(b, dtype, in.bcx, aligned),
        w(b, dtype, in.w, aligned),
        bias(b, dtype, in.bias, aligned),
        cu(b, p.cu()),
        follows(b, p.follows) {}
  mgrpo_short_conv conv() { return {p.d, p.width, w.get(), p.bias ? bias.get() : nullptr, p.silu}; }
  const int32_t *follows_or_null() { return p.follows.empty() ? nullptr : follows.get(); }
};

Floats forward(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  Call call(b, p, in, dtype, aligned);
  Array y(b, dtype, p.rows() * p.d, aligned);
  EXPECT_EQ(b.short_conv_packed(call.bcx.get(), call.conv(), call.cu.get(), call.follows_or_null(), p.batch(), dtype, y.get(), p.rows()),
            MGRPO_OK);
  return y.values();
}

struct Gradients {
  Floats dbcx, dw, dbias;
};

Gradients backward(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype = MGRPO_FLOAT32, bool aligned = false,
                   float before = 0) {
  Call call(b, p, in, dtype, aligned);
  Array dy(b, dtype, in.dy, aligned), dbcx(b, dtype, p.rows() * p.width_of_product(), aligned);
  Buffer<float> dw(b, Floats(static_cast<size_t>(p.d * p.width), before)), dbias(b, Floats(static_cast<size_t>(p.d), before));
  EXPECT_EQ(b.short_conv_packed_bwd(dy.get(), call.bcx.get(), call.conv(), call.cu.get(), call.follows_or_null(), p.batch(), dtype,
                                    dbcx.get(), dw.get(), dbias.get(), p.rows()),
            MGRPO_OK);
  return {dbcx.values(), dw.values(), dbias.values()};
}

struct Oracle {
  std::vector<double> y, dbcx, dw, dbias;
};

// Computes the definition in float64. The backward pass scatters gradients, while the kernels gather them.
Oracle oracle(const Problem &p, const Inputs &in) {
  Oracle o;
  o.y.assign(in.dy.size(), 0), o.dbcx.assign(in.bcx.size(), 0);
  o.dw.assign(in.w.size(), 0), o.dbias.assign(static_cast<size_t>(p.d), 0);
  std::vector<int64_t> before;
  for (int64_t r = 0; r < p.rows(); r++) before.push_back(p.before(r));
  for (int64_t r = 0; r < p.rows(); r++)
    for (int64_t j = 0; j < p.d; j++) {
      const auto at = [&](int64_t row, int third) { return row * p.width_of_product() + (p.silu ? 0 : third * p.d) + j; };
      const auto tap = [&](int64_t n) { return j * p.width + p.width - 1 - n; };
      const auto gate = [&](int64_t row) { return p.silu ? 1.0 : in.bcx[at(row, 0)]; };
      double sum = p.bias ? in.bias[j] : 0;
      int64_t row = r;
      for (int64_t n = 0; n < p.width && row >= 0; n++, row = before[row]) sum += in.w[tap(n)] * gate(row) * in.bcx[at(row, 2)];
      const double sigmoid = 1 / (1 + std::exp(-sum)), dy = in.dy[r * p.d + j];
      o.y[r * p.d + j] = sum * (p.silu ? sigmoid : in.bcx[at(r, 1)]);
      const double grad = dy * (p.silu ? sigmoid * (1 + sum * (1 - sigmoid)) : in.bcx[at(r, 1)]);
      if (!p.silu) o.dbcx[at(r, 1)] += dy * sum;
      o.dbias[j] += grad;
      row = r;
      for (int64_t n = 0; n < p.width && row >= 0; n++, row = before[row]) {
        const double x = in.bcx[at(row, 2)];
        if (!p.silu) o.dbcx[at(row, 0)] += grad * in.w[tap(n)] * x;
        o.dbcx[at(row, 2)] += grad * in.w[tap(n)] * gate(row);
        o.dw[tap(n)] += grad * gate(row) * x;
      }
    }
  return o;
}

double largest(const std::vector<double> &values) {
  double most = 0;
  for (double v : values) most = std::max(most, std::fabs(v));
  return most;
}

class ShortConv : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(ShortConv);

TEST_P(ShortConv, ForwardMatchesFloat64) {
  for (const Problem &p : problems())
    for (bool aligned : {false, true}) {
      const Inputs in(p);
      const std::vector<double> want = oracle(p, in).y;
      EXPECT_TRUE(close_to(forward(backend(), p, in, MGRPO_FLOAT32, aligned), want, 0, kTolerance * largest(want)))
          << p.d << " " << p.width;
    }
}

TEST_P(ShortConv, BackwardMatchesFloat64AndAddsToTheGradientsOfWeights) {
  for (const Problem &p : problems())
    for (bool aligned : {false, true}) {
      const Inputs in(p);
      Oracle want = oracle(p, in);
      for (auto *sum : {&want.dw, &want.dbias})
        for (double &v : *sum) v += 2;
      const Gradients got = backward(backend(), p, in, MGRPO_FLOAT32, aligned, 2);
      EXPECT_TRUE(close_to(got.dbcx, want.dbcx, 0, kTolerance * largest(want.dbcx))) << p.d << " " << p.width;
      EXPECT_TRUE(close_to(got.dw, want.dw, 0, kSumTolerance * largest(want.dw))) << p.d << " " << p.width;
      EXPECT_TRUE(close_to(got.dbias, want.dbias, 0, kSumTolerance * largest(want.dbias))) << p.d << " " << p.width;
    }
}

// A segment's sequence by itself: the last row and all rows before it.
struct Alone {
  std::vector<int64_t> rows;
  Problem p;
  Inputs in;

  Alone(const Problem &whole, const Inputs &all, int64_t last)
      : rows(rows_up_to(whole.lengths, whole.follows, last)),
        p{{static_cast<int32_t>(rows.size())}, whole.d, whole.width, {}, whole.bias, whole.silu},
        in(p) {
    in.w = all.w, in.bias = all.bias;
    for (size_t i = 0; i < rows.size(); i++) {
      std::copy_n(&all.bcx[rows[i] * p.width_of_product()], p.width_of_product(), &in.bcx[i * p.width_of_product()]);
      std::copy_n(&all.dy[rows[i] * p.d], p.d, &in.dy[i * p.d]);
    }
  }
};

TEST_P(ShortConv, SequenceDoesNotDependOnItsCompany) {
  for (const Problem &p : problems()) {
    const Inputs in(p);
    Floats all;
    with_threads(3, [&] { all = forward(backend(), p, in); });
    for (int64_t last = p.rows() - 1; last >= 0; last -= 7) {
      const Alone alone(p, in, last);
      const Floats own = forward(backend(), alone.p, alone.in, MGRPO_FLOAT32, true);
      for (size_t i = 0; i < alone.rows.size(); i++)
        EXPECT_TRUE(same_bits(part(own, i * p.d, p.d), part(all, alone.rows[i] * p.d, p.d))) << "row " << alone.rows[i];
    }
  }
}

TEST_P(ShortConv, GradientDoesNotDependOnCompanyNorOnSegments) {
  for (bool silu : {false, true}) {
    const Problem two{{33, 1, 40}, 36, 3, {}, true, silu};
    const Inputs in(two);
    const int64_t wide = two.width_of_product();
    Gradients all;
    with_threads(3, [&] { all = backward(backend(), two, in); });
    for (int64_t last : {32, 33, 73}) {
      const Alone alone(two, in, last);
      const Gradients own = backward(backend(), alone.p, alone.in);
      for (size_t i = 0; i < alone.rows.size(); i++)
        EXPECT_TRUE(same_bits(part(own.dbcx, i * wide, wide), part(all.dbcx, alone.rows[i] * wide, wide)));
    }
    const Problem cut{{10, 23, 1, 1, 39}, 36, 3, {-1, 9, -1, -1, 34}, true, silu};  // the same sequences
    const Gradients in_pieces = backward(backend(), cut, in);
    EXPECT_TRUE(same_bits(forward(backend(), cut, in), forward(backend(), two, in)));
    EXPECT_TRUE(same_bits(in_pieces.dbcx, all.dbcx) && same_bits(in_pieces.dw, all.dw) && same_bits(in_pieces.dbias, all.dbias));
  }
}

TEST_P(ShortConv, GradientsOfWeightsDoNotDependOnThreads) {
  for (bool silu : {false, true}) {
    const Problem p{{500, 300}, 130, 3, {}, true, silu};
    const Inputs in(p);
    Gradients one, three;
    with_threads(1, [&] { one = backward(backend(), p, in); });
    with_threads(3, [&] { three = backward(backend(), p, in); });
    EXPECT_TRUE(same_bits(one.dbcx, three.dbcx) && same_bits(one.dw, three.dw) && same_bits(one.dbias, three.dbias));
  }
}

TEST_P(ShortConv, CachedRowsHaveTheBitsOfPackedOnes) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t width : {1, 3, 8})
      for (int64_t chunk : {1, 2, 5, 100}) {
        const Problem p{{37, 21, 4}, 20, width, {}, true};
        const Inputs in(p);
        const Floats want = forward(backend(), p, in, dtype);
        const Table table(3, 37, 4);
        Call call(backend(), p, in, dtype, false);
        Array cache(backend(), dtype, Floats(static_cast<size_t>(table.blocks * table.block * p.d), NAN));
        Buffer<int32_t> entries(backend(), table.entries);
        const Ints cu = p.cu();
        for (int64_t from = 0; from < 37; from += chunk) {  // each pass processes the next rows of all sequences
          Ints sequence, pos, row;
          Floats bcx;
          for (int32_t s = 2; s >= 0; s--)
            for (int64_t t = from; t < std::min<int64_t>(from + chunk, p.lengths[s]); t++) {
              sequence.push_back(s), pos.push_back(static_cast<int32_t>(t)), row.push_back(static_cast<int32_t>(cu[s] + t));
              bcx.insert(bcx.end(), &in.bcx[row.back() * 3 * p.d], &in.bcx[row.back() * 3 * p.d] + 3 * p.d);
            }
          const int64_t n = static_cast<int64_t>(row.size());
          Array x(backend(), dtype, bcx), y(backend(), dtype, n * p.d);
          Buffer<int32_t> of(backend(), sequence), at(backend(), pos);
          ASSERT_EQ(backend().short_conv_cached(x.get(), call.conv(), dtype, cache.get(), table.pages(entries.get(), 1, p.d), of.get(),
                                                at.get(), y.get(), n),
                    MGRPO_OK);
          for (int64_t r = 0; r < n; r++)
            EXPECT_TRUE(same_bits(part(y.values(), r * p.d, p.d), part(want, row[r] * p.d, p.d))) << width << " " << chunk << " " << row[r];
        }
      }
  }
}

TEST_P(ShortConv, LastRowOfAPlaceRemains) {
  for (int32_t rows : {3, 700}) {
    const Problem p{{rows}, 8, 3};
    const Inputs in(p);
    const Table table(2, 8, 4);
    Call call(backend(), p, in, MGRPO_FLOAT32, false);
    Array cache(backend(), MGRPO_FLOAT32, Floats(static_cast<size_t>(table.blocks * table.block * p.d), 0)),
        y(backend(), MGRPO_FLOAT32, rows * p.d);
    Buffer<int32_t> entries(backend(), table.entries), sequence(backend(), Ints(rows, 1)), pos(backend(), Ints(rows, 2));
    ASSERT_EQ(backend().short_conv_cached(call.bcx.get(), call.conv(), MGRPO_FLOAT32, cache.get(), table.pages(entries.get(), 1, p.d),
                                          sequence.get(), pos.get(), y.get(), rows),
              MGRPO_OK);
    const Floats kept = part(cache.values(), table.place(1, 2, 0, 1) * p.d, p.d);
    const float *const last = &in.bcx[(rows - 1) * 3 * p.d];
    for (int64_t j = 0; j < p.d; j++) EXPECT_EQ(kept[j], last[j] * last[2 * p.d + j]) << rows;
  }
}

// Advances the states of several sequences.
class States {
 public:
  States(const Backend &b, const Problem &p, const Inputs &in, int32_t dtype, const Ints &slots, int64_t count)
      : b_(b),
        p_(p),
        in_(in),
        dtype_(dtype),
        slots_(slots),
        count_(count),
        w_(b, dtype, in.w),
        bias_(b, dtype, in.bias),
        states_(b, dtype, Floats(static_cast<size_t>(count * (p.width - 1) * p.d), kOld)) {}

  // Applies rows [from[s], to) of every sequence s, the last sequence first, and compares the results with the same rows of `want`.
  void advance(const Ints &from, int64_t to, const Floats &want) {
    Ints slot, pos, row;
    Floats u;
    const Ints cu = p_.cu();
    for (int64_t s = p_.batch() - 1; s >= 0; s--)
      for (int32_t t = from[s]; t < std::min<int64_t>(to, p_.lengths[s]); t++) {
        slot.push_back(slots_[s]), pos.push_back(t), row.push_back(cu[s] + t);
        u.insert(u.end(), in_.bcx.begin() + row.back() * p_.d, in_.bcx.begin() + (row.back() + 1) * p_.d);
      }
    const int64_t n = static_cast<int64_t>(row.size());
    Array x(b_, dtype_, u), y(b_, dtype_, n * p_.d);
    Buffer<int32_t> of(b_, slot), at(b_, pos);
    const mgrpo_short_conv conv{p_.d, p_.width, w_.get(), p_.bias ? bias_.get() : nullptr, 1};
    ASSERT_EQ(b_.short_conv_states(x.get(), conv, dtype_, states_.get(), count_, of.get(), at.get(), y.get(), n), MGRPO_OK);
    for (int64_t r = 0; r < n; r++)
      EXPECT_TRUE(same_bits(part(y.values(), r * p_.d, p_.d), part(want, row[r] * p_.d, p_.d))) << p_.width << ", row " << row[r];
  }
  // Returns the row that is `ago` rows older than the newest one.
  Floats kept(int64_t slot, int64_t ago) const { return part(states_.values(), ((slot + 1) * (p_.width - 1) - 1 - ago) * p_.d, p_.d); }
  static constexpr float kOld = 33;  // left behind by an earlier sequence

 private:
  const Backend &b_;
  const Problem &p_;
  const Inputs &in_;
  int32_t dtype_;
  Ints slots_;
  int64_t count_;
  Array w_, bias_, states_;
};

TEST_P(ShortConv, RowsWithStatesHaveTheBitsOfPackedOnes) {
  for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
    if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
    for (int64_t width : {1, 3, 8})
      for (int64_t chunk : {1, 2, 5, 100}) {
        const Problem p{{37, 21, 4}, 20, width, {}, true, true};
        Inputs in(p);
        if (dtype == MGRPO_BFLOAT16) in.bcx = rounded_to_bf16(in.bcx);
        const Floats want = forward(backend(), p, in, dtype);
        const Ints slots{4, 0, 2};
        States states(backend(), p, in, dtype, slots, 6);
        for (int32_t from = 0; from < 37; from += chunk) states.advance({from, from, from}, from + chunk, want);
        for (int64_t s = 0; s < p.batch(); s++)
          for (int64_t ago = 0; ago < std::min<int64_t>(width - 1, p.lengths[s]); ago++)
            EXPECT_TRUE(same_bits(states.kept(slots[s], ago), part(in.bcx, (p.cu()[s + 1] - 1 - ago) * p.d, p.d))) << s << " " << ago;
        for (int64_t slot : {1, 3, 5})
          for (int64_t ago = 0; ago < width - 1; ago++)
            EXPECT_TRUE(same_bits(states.kept(slot, ago), Floats(static_cast<size_t>(p.d), States::kOld))) << slot;
      }
  }
}

TEST_P(ShortConv, RowAtPositionZeroBeginsASequence) {
  const Problem p{{9, 9}, 8, 4, {}, false, true};
  const Inputs in(p);
  const Floats want = forward(backend(), p, in);
  States states(backend(), p, in, MGRPO_FLOAT32, {1, 0}, 2);
  states.advance({0, 0}, 5, want);
  states.advance({0, 9}, 2, want);  // fewer rows than the width, after the old state
  states.advance({2, 5}, 9, want);
}

TEST_P(ShortConv, SlotsOutsideOfTheStates) {
  const Problem p{{3}, 8, 3, {}, false, true};
  const Inputs in(p);
  const Floats want = forward(backend(), p, in);
  for (int32_t outside : {-1, 2}) {
    Call call(backend(), p, in, MGRPO_FLOAT32, false);
    Array y(backend(), MGRPO_FLOAT32, 3 * p.d), states(backend(), MGRPO_FLOAT32, Floats(static_cast<size_t>(2 * 2 * p.d), 5));
    Buffer<int32_t> slot(backend(), Ints{0, outside, outside}), pos(backend(), Ints{0, 0, 1});
    const int32_t status =
        backend().short_conv_states(call.bcx.get(), call.conv(), MGRPO_FLOAT32, states.get(), 2, slot.get(), pos.get(), y.get(), 3);
    EXPECT_TRUE(same_bits(part(states.values(), 2 * p.d, 2 * p.d), Floats(static_cast<size_t>(2 * p.d), 5)));
    if (backend().refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(y.unwritten());
      continue;
    }
    EXPECT_EQ(status, MGRPO_OK);
    EXPECT_TRUE(same_bits(part(y.values(), 0, p.d), part(want, 0, p.d)));
    for (int64_t i = p.d; i < 3 * p.d; i++) EXPECT_TRUE(std::isnan(y.values()[i])) << i;
  }
}

TEST_P(ShortConv, SiluOfLargeSums) {
  const Problem p{{4}, 2, 1, {}, false, true};
  Inputs in(p);
  in.w = {1, 1}, in.bcx = {1e30f, -1e30f, 200, -200, 3e38f, -3e38f, 1, NAN};
  const Floats y = forward(backend(), p, in), d = backward(backend(), p, in).dbcx;
  for (int i : {0, 2, 4}) EXPECT_TRUE(y[i] == in.bcx[i] && d[i] == in.dy[i]) << i;
  for (int i : {1, 3, 5}) EXPECT_TRUE(std::fabs(y[i]) < 1e-30f && std::fabs(d[i]) < 1e-30f) << i;
  EXPECT_TRUE(std::isnan(y[7]) && std::isnan(d[7]) && std::isfinite(y[6]) && std::isfinite(d[6]));
}

TEST_P(ShortConv, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (const Problem &p : problems())
    for (bool aligned : {false, true}) {
      Inputs in(p);
      for (Floats *x : {&in.bcx, &in.w, &in.bias, &in.dy}) *x = rounded_to_bf16(*x);
      const Oracle want = oracle(p, in);
      // u is rounded too.
      EXPECT_TRUE(close_to(forward(backend(), p, in, MGRPO_BFLOAT16, aligned), want.y, kBf16Epsilon, kBf16Epsilon * largest(want.y)));
      const Gradients got = backward(backend(), p, in, MGRPO_BFLOAT16, aligned);
      EXPECT_TRUE(close_to(got.dbcx, want.dbcx, kBf16Epsilon, kBf16Epsilon * largest(want.dbcx)));
      EXPECT_TRUE(close_to(got.dw, want.dw, 0, kBf16Epsilon * largest(want.dw)));
      EXPECT_TRUE(close_to(got.dbias, want.dbias, 0, kSumTolerance * largest(want.dbias)));
    }
}

TEST_P(ShortConv, NonFiniteNumbersStayWithTheirReaders) {
  for (bool silu : {false, true}) {
    const Problem p{{6, 5}, 4, 3, {}, false, silu};
    Inputs in(p);
    const int64_t wide = p.width_of_product();
    for (int64_t j = 0; j < p.d; j++) in.bcx[2 * wide + j] = NAN;  // a gate or an input of row 2; rows 2 to 4 read it
    const Floats y = forward(backend(), p, in);
    for (int64_t r = 0; r < p.rows(); r++) EXPECT_EQ(std::isnan(y[r * p.d]), r >= 2 && r <= 4) << r;
    const Floats d = backward(backend(), p, in).dbcx;
    for (int64_t r = 0; r < p.rows(); r++)  // with silu, the slopes of rows 2 to 4 affect the gradients of rows 0 to 4
      EXPECT_EQ(std::isnan(d[r * wide + (silu ? 0 : p.d)]), r <= 4 && (silu || r >= 2)) << r;
  }
}

TEST_P(ShortConv, PlacesOutsideOfTheCache) {
  const Problem p{{2}, 8, 3};
  const Inputs in(p);
  Table table(1, 8, 4);
  table.entries[0] = static_cast<int32_t>(table.blocks);  // positions 0 to 3 have no place
  Call call(backend(), p, in, MGRPO_FLOAT32, false);
  Array cache(backend(), MGRPO_FLOAT32, Floats(static_cast<size_t>(table.blocks * table.block * p.d), 0)),
      y(backend(), MGRPO_FLOAT32, 2 * p.d);
  Buffer<int32_t> entries(backend(), table.entries), sequence(backend(), Ints{0, 0}), pos(backend(), Ints{4, 6});
  const int32_t status = backend().short_conv_cached(call.bcx.get(), call.conv(), MGRPO_FLOAT32, cache.get(),
                                                     table.pages(entries.get(), 1, p.d), sequence.get(), pos.get(), y.get(), 2);
  if (backend().refuses_places) {
    EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
    EXPECT_TRUE(y.unwritten());
    return;
  }
  EXPECT_EQ(status, MGRPO_OK);
  EXPECT_TRUE(std::isnan(y.values()[0]));
  EXPECT_FALSE(std::isnan(y.values()[p.d]));
}

TEST_P(ShortConv, SegmentsThatFollowNoRow) {
  for (int32_t parent : {-2, 3}) {
    const Problem p{{3, 4}, 8, 3, {-1, parent}};
    const Inputs in(p);
    Call call(backend(), p, in, MGRPO_FLOAT32, false);
    Array y(backend(), MGRPO_FLOAT32, 7 * p.d);
    const int32_t status =
        backend().short_conv_packed(call.bcx.get(), call.conv(), call.cu.get(), call.follows.get(), 2, MGRPO_FLOAT32, y.get(), 7);
    if (backend().refuses_places) {
      EXPECT_EQ(status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(y.unwritten());
      continue;
    }
    EXPECT_EQ(status, MGRPO_OK);
    for (int64_t r = 0; r < 7; r++) EXPECT_EQ(std::isnan(y.values()[r * p.d]), r == 3 || r == 4) << r;
  }
}

TEST_P(ShortConv, EmptyAndInvalid) {
  const Backend &b = backend();
  Array array(b, MGRPO_FLOAT32, 64);
  Buffer<int32_t> cu(b, Ints{0, 2}), none(b, Ints{0});
  void *v = array.get();
  const mgrpo_short_conv good{4, 3, v, nullptr, 0};
  EXPECT_EQ(b.short_conv_packed(nullptr, good, none.get(), nullptr, 0, MGRPO_FLOAT32, nullptr, 0), MGRPO_OK);
  EXPECT_EQ(b.short_conv_packed_bwd(nullptr, nullptr, good, none.get(), nullptr, 0, MGRPO_FLOAT32, nullptr, nullptr, nullptr, 0), MGRPO_OK);
  for (const mgrpo_short_conv &conv : {mgrpo_short_conv{0, 3, v, nullptr, 0},
                                       {4, 0, v, nullptr, 0},
                                       {4, 9, v, nullptr, 0},
                                       {4, 3, nullptr, nullptr, 0},
                                       {int64_t{1} << 60, 3, v, nullptr, 0}}) {
    EXPECT_EQ(b.short_conv_packed(v, conv, cu.get(), nullptr, 1, MGRPO_FLOAT32, v, 2), MGRPO_INVALID_ARGUMENT);
    EXPECT_EQ(b.short_conv_packed_bwd(v, v, conv, cu.get(), nullptr, 1, MGRPO_FLOAT32, v, nullptr, nullptr, 2), MGRPO_INVALID_ARGUMENT);
  }
  EXPECT_EQ(b.short_conv_packed(nullptr, good, cu.get(), nullptr, 1, MGRPO_FLOAT32, v, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.short_conv_packed(v, good, nullptr, nullptr, 1, MGRPO_FLOAT32, v, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.short_conv_packed(v, good, cu.get(), nullptr, -1, MGRPO_FLOAT32, v, 2), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.short_conv_packed_bwd(nullptr, v, good, cu.get(), nullptr, 1, MGRPO_FLOAT32, v, nullptr, nullptr, 2), MGRPO_INVALID_ARGUMENT);
  for (const mgrpo_pages &pages :
       {mgrpo_pages{cu.get(), 1, 1, 4, 2, 4, 4}, mgrpo_pages{cu.get(), 1, 1, 4, 1, 4, 5}, mgrpo_pages{cu.get(), 1, 1, 4, 1, 3, 4}})
    EXPECT_EQ(b.short_conv_cached(v, good, MGRPO_FLOAT32, v, pages, cu.get(), cu.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  const mgrpo_short_conv silu{4, 3, v, nullptr, 1};
  const auto states = [&](const mgrpo_short_conv &conv, void *to, int64_t slots, const int32_t *slot, void *y, int64_t rows) {
    return b.short_conv_states(v, conv, MGRPO_FLOAT32, to, slots, slot, cu.get(), y, rows);
  };
  EXPECT_EQ(states(silu, nullptr, 0, nullptr, nullptr, 0), MGRPO_OK);
  EXPECT_EQ(states(good, v, 1, cu.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(states(silu, nullptr, 1, cu.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(states(silu, v, -1, cu.get(), v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(states(silu, v, 1, nullptr, v, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(states(silu, v, 1, cu.get(), nullptr, 1), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(states(silu, v, 1, cu.get(), v, -1), MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(array.unwritten());
}

}  // namespace
