#include "layer_testing.h"
#include "mgrpo/attention.h"

using namespace layer_testing;

namespace {

// Relative to the largest possible output. Scores and sums contain about sqrt(T) roundings.
constexpr double kForwardTolerance = 64 * kEpsilon;
constexpr double kBackwardTolerance = 512 * kEpsilon;

struct Problem {
  Ints lengths;
  int64_t heads, kv_heads, hd;
  float scale;
  Ints follows = {};  // by segment; if empty, every segment is a sequence
  int64_t window = 0;
  Floats sinks = {};  // by head; if empty, there are no sinks

  Ints cu() const { return boundaries(lengths); }
  int64_t rows() const { return cu().back(); }
  int64_t q_size() const { return rows() * heads * hd; }
  int64_t kv_size() const { return rows() * kv_heads * hd; }
  const int32_t *follows_or_null() const { return follows.empty() ? nullptr : follows.data(); }

  const float *sinks_or_null() const { return sinks.empty() ? nullptr : sinks.data(); }

  // Returns the rows that the last row of segment s sees, in the order of their positions.
  Ints seen(size_t s) const {
    Ints rows;
    if (!follows.empty() && follows[s] >= 0) {
      size_t p = 0;
      while (cu()[p + 1] <= follows[s]) p++;
      for (int32_t r : seen(p))
        if (r < cu()[p] || r <= follows[s]) rows.push_back(r);
    }
    for (int32_t r = cu()[s]; r < cu()[s + 1]; r++) rows.push_back(r);
    return rows;
  }
};

const Problem kProblems[] = {
    {{1}, 1, 1, 1, 1},
    {{5}, 2, 1, 3, 0.5f},
    {{0, 1, 0, 2, 17, 0}, 4, 2, 16, 0.25f},
    {{64, 65, 63}, 6, 2, 24, 0.2f},
    {{130}, 4, 4, 32, 0.18f},
    {{33, 129}, 9, 3, 64, 0.125f},
    {{70}, 2, 1, 128, 0.09f},
    {{40}, 1, 1, 256, 0.0625f},
    {{33, 7}, 2, 1, 512, 0.044f},
    {{12}, 20, 1, 16, 0.25f},                                                        // a group larger than a tile
    {{35, 3}, 3, 3, 20, 4.0f},                                                       // sharp softmax
    {{1100}, 2, 2, 8, 0.35f},                                                        // longer than a task of the backward pass
    {{20, 7, 30, 1}, 4, 2, 16, 0.25f, {-1, 19, 19, 19}},                             // one prefix, ragged ends
    {{20, 7}, 4, 2, 16, 0.25f, {-1, 19}},                                            // one child of a whole segment
    {{20, 7, 30, 1}, 4, 2, 16, 0.25f, {-1, 11, 0, 19}},                              // children of partial segments
    {{0, 7, 5}, 4, 2, 16, 0.25f, {-1, -1, -1}},                                      // nothing shared
    {{9, 0, 4, 0}, 4, 2, 16, 0.25f, {-1, 8, 8, 12}},                                 // sequences that end where their prefix ends
    {{120, 130, 60, 3, 66}, 9, 3, 64, 0.125f, {-1, 69, 69, -1, 312}},                // two trees, more than one block of keys
    {{5, 1, 64, 1, 90, 2, 63, 11}, 6, 2, 24, 0.2f, {-1, 2, 5, 40, 70, 5, -1, 200}},  // prefixes of prefixes
    {{1130, 40, 530, 1, 700}, 2, 1, 8, 0.35f, {-1, 599, 599, 1699, 1000}},           // several tasks and waves
    {{64, 65, 63}, 6, 2, 24, 0.2f, {}, 1},                                           // each token sees only itself
    {{64, 65, 63, 7}, 6, 2, 24, 0.2f, {}, 11},
    {{130, 200}, 4, 4, 32, 0.18f, {}, 64},
    {{33, 129}, 9, 3, 64, 0.125f, {}, 1000},                // longer than any sequence
    {{20, 7, 30, 1}, 4, 2, 16, 0.25f, {-1, 11, 0, 19}, 9},  // windows that begin in a prefix
    {{120, 130, 60, 3, 66}, 9, 3, 64, 0.125f, {-1, 69, 69, -1, 312}, 70},
    {{1130, 40, 530, 1, 700}, 2, 1, 8, 0.35f, {-1, 599, 599, 1699, 1000}, 300},
    {{1}, 2, 1, 8, 1, {}, 0, {0.3f, -INFINITY}},
    {{64, 65, 63}, 6, 2, 24, 0.2f, {}, 0, {0, 1, -2, 30, -30, 3}},
    {{20, 7, 30, 1}, 4, 2, 16, 0.25f, {-1, 11, 0, 19}, 9, {1, 2, -1, 0.5f}},
    {{12}, 20, 1, 16, 0.25f, {}, 0, Floats(20, 1.5f)},
    {{35, 3}, 3, 3, 20, 4.0f, {}, 0, {200, -200, 40}},
};

struct Inputs {
  Floats q, k, v, dout;
  explicit Inputs(const Problem &p)
      : q(normal(p.q_size(), 1)), k(normal(p.kv_size(), 2)), v(normal(p.kv_size(), 3)), dout(normal(p.q_size(), 4)) {}
};

struct Oracle {
  std::vector<double> out, lse, dq, dk, dv;
};

// Textbook attention and its gradient, row by row in float64.
Oracle oracle(const Problem &p, const Inputs &in) {
  Oracle o;
  o.out.assign(in.q.size(), 0), o.lse.assign(static_cast<size_t>(p.rows() * p.heads), 0);
  o.dq.assign(in.q.size(), 0), o.dk.assign(in.k.size(), 0), o.dv.assign(in.k.size(), 0);
  const Ints cu = p.cu();
  for (size_t s = 0; s < p.lengths.size(); s++) {
    const Ints seen = p.seen(s);
    for (int64_t t = cu[s]; t < cu[s + 1]; t++)
      for (int64_t h = 0; h < p.heads; h++) {
        const int64_t qi = (t * p.heads + h) * p.hd, kv_head = h / (p.heads / p.kv_heads);
        const int64_t end = static_cast<int64_t>(seen.size()) - (cu[s + 1] - t) + 1;
        const int64_t begin = p.window > 0 ? std::max<int64_t>(0, end - p.window) : 0, keys = end - begin;
        const auto ki = [&](int64_t j) { return (seen[static_cast<size_t>(begin + j)] * p.kv_heads + kv_head) * p.hd; };
        std::vector<double> prob;
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < keys; j++) {
          double score = 0;
          for (int64_t c = 0; c < p.hd; c++) score += static_cast<double>(in.q[qi + c]) * in.k[ki(j) + c];
          prob.push_back(score * p.scale);
          top = std::max(top, prob.back());
        }
        const double sink = p.sinks.empty() ? -INFINITY : p.sinks[h];
        top = std::max(top, sink);
        for (double &x : prob) sum += x = std::exp(x - top);
        sum += std::exp(sink - top);
        o.lse[t * p.heads + h] = top + std::log(sum);
        double delta = 0;
        for (int64_t j = 0; j < keys; j++)
          for (int64_t c = 0; c < p.hd; c++) o.out[qi + c] += prob[j] / sum * in.v[ki(j) + c];
        for (int64_t c = 0; c < p.hd; c++) delta += o.out[qi + c] * in.dout[qi + c];
        for (int64_t j = 0; j < keys; j++) {
          const double pj = prob[j] / sum;
          double dp = 0;
          for (int64_t c = 0; c < p.hd; c++) dp += static_cast<double>(in.dout[qi + c]) * in.v[ki(j) + c];
          const double ds = pj * (dp - delta) * p.scale;
          for (int64_t c = 0; c < p.hd; c++) {
            o.dv[ki(j) + c] += pj * in.dout[qi + c];
            o.dk[ki(j) + c] += ds * in.q[qi + c];
            o.dq[qi + c] += ds * in.k[ki(j) + c];
          }
        }
      }
  }
  return o;
}

struct Outputs {
  Guarded out, lse, dq, dk, dv;
  explicit Outputs(const Problem &p) : out(p.q_size()), lse(p.rows() * p.heads), dq(p.q_size()), dk(p.kv_size()), dv(p.kv_size()) {}
};

void run(const Problem &p, const Inputs &in, Outputs &o) {
  const Ints cu = p.cu();
  const int64_t batch = static_cast<int64_t>(p.lengths.size());
  ASSERT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), cu.data(), p.follows_or_null(), batch, p.sinks_or_null(),
                                       o.out.begin(), o.lse.begin(), p.heads, p.kv_heads, p.hd, p.scale, p.window),
            MGRPO_OK);
  ASSERT_EQ(mgrpo_attention_packed_bwd_cpu(in.dout.data(), in.q.data(), in.k.data(), in.v.data(), o.out.begin(), o.lse.begin(), cu.data(),
                                           p.follows_or_null(), batch, o.dq.begin(), o.dk.begin(), o.dv.begin(), p.heads, p.kv_heads, p.hd,
                                           p.scale, p.window),
            MGRPO_OK);
}

double largest(const std::vector<double> &values) {
  double m = 0;
  for (double v : values) m = std::max(m, std::fabs(v));
  return m;
}

TEST(AttentionPacked, ForwardAndBackwardMatchFloat64) {
  for (const Problem &p : kProblems) {
    SCOPED_TRACE(testing::Message() << p.rows() << " rows, " << p.heads << "/" << p.kv_heads << " heads of " << p.hd);
    const Inputs in(p);
    Outputs got(p);
    run(p, in, got);
    const Oracle want = oracle(p, in);
    EXPECT_TRUE(close_to(got.out.values(), want.out, 0, kForwardTolerance * largest(want.out)));
    EXPECT_TRUE(close_to(got.lse.values(), want.lse, 0, kForwardTolerance * (1 + largest(want.lse))));
    EXPECT_TRUE(close_to(got.dq.values(), want.dq, 0, kBackwardTolerance * (1 + largest(want.dq))));
    EXPECT_TRUE(close_to(got.dk.values(), want.dk, 0, kBackwardTolerance * (1 + largest(want.dk))));
    EXPECT_TRUE(close_to(got.dv.values(), want.dv, 0, kBackwardTolerance * (1 + largest(want.dv))));
  }
}

TEST(AttentionPacked, ThreadsDoNotChangeBits) {
  const Problem problems[] = {{{200, 3, 90, 150}, 6, 2, 24, 0.2f},
                              {{90, 3, 200, 550, 150}, 6, 2, 24, 0.2f, {-1, 89, 50, 292, 89}},
                              {{90, 3, 200, 550, 150}, 6, 2, 24, 0.2f, {-1, 89, 50, 292, 89}, 77, {0, 1, 2, 3, -1, -2}}};
  for (const Problem &p : problems) {
    const Inputs in(p);
    Outputs one(p);
    with_threads(1, [&] { run(p, in, one); });
    for (int threads : {2, 3, 7}) {
      Outputs many(p);
      with_threads(threads, [&] { run(p, in, many); });
      EXPECT_TRUE(same_bits(one.out.begin(), many.out.begin(), p.q_size())) << threads;
      EXPECT_TRUE(same_bits(one.lse.begin(), many.lse.begin(), p.rows() * p.heads)) << threads;
      EXPECT_TRUE(same_bits(one.dq.begin(), many.dq.begin(), p.q_size())) << threads;
      EXPECT_TRUE(same_bits(one.dk.begin(), many.dk.begin(), p.kv_size())) << threads;
      EXPECT_TRUE(same_bits(one.dv.begin(), many.dv.begin(), p.kv_size())) << threads;
    }
  }
}

// Checks that the bits of a sequence do not depend on the place of its rows.
void shared_prefix(int64_t window, const Floats &sinks) {
  const Problem shared{{120, 100, 31}, 6, 2, 24, 0.2f, {-1, 76, 76}, window, sinks};
  const Inputs in(shared);
  Outputs tree(shared);
  run(shared, in, tree);
  for (size_t child : {1, 2}) {
    const Ints rows = shared.seen(child);
    const Problem whole{{static_cast<int32_t>(rows.size())}, 6, 2, 24, 0.2f, {}, window, sinks};
    Inputs flat(whole);
    const int64_t q_row = 6 * 24, kv_row = 2 * 24, prefix = 77;
    for (size_t t = 0; t < rows.size(); t++) {
      std::copy_n(in.q.begin() + rows[t] * q_row, q_row, flat.q.begin() + t * q_row);
      std::copy_n(in.dout.begin() + rows[t] * q_row, q_row, flat.dout.begin() + t * q_row);
      std::copy_n(in.k.begin() + rows[t] * kv_row, kv_row, flat.k.begin() + t * kv_row);
      std::copy_n(in.v.begin() + rows[t] * kv_row, kv_row, flat.v.begin() + t * kv_row);
    }
    Outputs alone(whole);
    run(whole, flat, alone);
    const int64_t at = shared.cu()[child], n = shared.lengths[child];
    EXPECT_TRUE(same_bits(alone.out.begin(), tree.out.begin(), prefix * q_row));
    EXPECT_TRUE(same_bits(alone.out.begin() + prefix * q_row, tree.out.begin() + at * q_row, n * q_row));
    EXPECT_TRUE(same_bits(alone.lse.begin() + prefix * 6, tree.lse.begin() + at * 6, n * 6));
    EXPECT_TRUE(same_bits(alone.dq.begin() + prefix * q_row, tree.dq.begin() + at * q_row, n * q_row));
  }
}

TEST(AttentionPacked, SharedPrefixHasTheBitsOfTheWholeSequence) {
  for (int64_t window : {0, 40})
    for (const Floats &sinks : {Floats{}, Floats{0, 1, -1, 2, 5, -5}}) shared_prefix(window, sinks);
}

TEST(AttentionPacked, SequenceDoesNotDependOnItsNeighbours) {
  const Problem packed{{7, 100, 31}, 4, 2, 16, 0.25f}, alone{{100}, 4, 2, 16, 0.25f};
  const Inputs in(packed);
  Outputs all(packed), one(alone);
  run(packed, in, all);
  Inputs second(alone);
  const int64_t q_at = 7 * 4 * 16, kv_at = 7 * 2 * 16;
  std::copy_n(in.q.begin() + q_at, alone.q_size(), second.q.begin());
  std::copy_n(in.dout.begin() + q_at, alone.q_size(), second.dout.begin());
  std::copy_n(in.k.begin() + kv_at, alone.kv_size(), second.k.begin());
  std::copy_n(in.v.begin() + kv_at, alone.kv_size(), second.v.begin());
  run(alone, second, one);
  EXPECT_TRUE(same_bits(one.out.begin(), all.out.begin() + q_at, alone.q_size()));
  EXPECT_TRUE(same_bits(one.dq.begin(), all.dq.begin() + q_at, alone.q_size()));
  EXPECT_TRUE(same_bits(one.dk.begin(), all.dk.begin() + kv_at, alone.kv_size()));
  EXPECT_TRUE(same_bits(one.dv.begin(), all.dv.begin() + kv_at, alone.kv_size()));
}

TEST(AttentionPacked, RowDoesNotDependOnWhatFollows) {
  const Problem whole{{150}, 6, 2, 24, 0.2f}, prefix{{77}, 6, 2, 24, 0.2f};
  const Inputs in(whole);
  Outputs all(whole), part(prefix);
  run(whole, in, all);
  run(prefix, in, part);
  EXPECT_TRUE(same_bits(part.out.begin(), all.out.begin(), prefix.q_size()));
  EXPECT_TRUE(same_bits(part.lse.begin(), all.lse.begin(), prefix.rows() * prefix.heads));
}

TEST(AttentionPacked, EmptyAndInvalid) {
  const Problem p{{2}, 2, 1, 4, 1};
  const Inputs in(p);
  Outputs o(p);
  const auto forward = [&](Ints cu, int64_t batch, int64_t heads, int64_t kv_heads, int64_t hd) {
    return mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), cu.data(), nullptr, batch, nullptr, o.out.begin(),
                                      o.lse.begin(), heads, kv_heads, hd, 1, 0);
  };
  EXPECT_EQ(forward({0}, 0, 2, 1, 4), MGRPO_OK);
  EXPECT_EQ(forward({0, 0, 0}, 2, 2, 1, 4), MGRPO_OK);
  EXPECT_EQ(forward({0, 2}, 1, 3, 2, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 0, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 1, 513), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, -1, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({1, 2}, 1, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2, 1}, 2, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), nullptr, nullptr, 1, nullptr, o.out.begin(), o.lse.begin(), 2,
                                       1, 4, 1, 0),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), Ints{0, 2}.data(), nullptr, 1, nullptr, o.out.begin(),
                                       o.lse.begin(), 2, 1, 4, 1, -1),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_attention_packed_bwd_cpu(in.dout.data(), in.q.data(), in.k.data(), in.v.data(), o.out.begin(), o.lse.begin(),
                                           Ints{0, 2}.data(), nullptr, 1, o.dq.begin(), nullptr, o.dv.begin(), 2, 1, 4, 1, 0),
            MGRPO_INVALID_ARGUMENT);
  for (Ints follows : {Ints{0, 0}, Ints{-1, 1}, Ints{-1, -2}, Ints{1, -1}})
    EXPECT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), Ints{0, 1, 2}.data(), follows.data(), 2, nullptr,
                                         o.out.begin(), o.lse.begin(), 2, 1, 4, 1, 0),
              MGRPO_INVALID_ARGUMENT);
  for (float v : o.out.values()) EXPECT_TRUE(std::isnan(v)) << "written despite the error";
}

}  // namespace
