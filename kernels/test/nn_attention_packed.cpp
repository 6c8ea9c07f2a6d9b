#include "mgrpo/nn.h"
#include "nn_testing.h"

using namespace nn_testing;

namespace {

// Of the largest possible output: scores and sums carry about sqrt(T) roundings.
constexpr double kForwardTolerance = 64 * kEpsilon;
constexpr double kBackwardTolerance = 512 * kEpsilon;

struct Problem {
  Ints lengths;
  int64_t heads, kv_heads, hd;
  float scale;

  Ints cu() const {
    Ints c{0};
    for (int32_t n : lengths) c.push_back(c.back() + n);
    return c;
  }
  int64_t rows() const { return cu().back(); }
  int64_t q_size() const { return rows() * heads * hd; }
  int64_t kv_size() const { return rows() * kv_heads * hd; }
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
    {{12}, 20, 1, 16, 0.25f},  // a group larger than a tile
    {{35, 3}, 3, 3, 20, 4.0f},  // sharp softmax
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
  for (size_t s = 0; s < p.lengths.size(); s++)
    for (int64_t t = cu[s]; t < cu[s + 1]; t++)
      for (int64_t h = 0; h < p.heads; h++) {
        const int64_t qi = (t * p.heads + h) * p.hd, kv_head = h / (p.heads / p.kv_heads);
        const auto ki = [&](int64_t j) { return (j * p.kv_heads + kv_head) * p.hd; };
        std::vector<double> prob;
        double top = -INFINITY, sum = 0;
        for (int64_t j = cu[s]; j <= t; j++) {
          double score = 0;
          for (int64_t c = 0; c < p.hd; c++) score += static_cast<double>(in.q[qi + c]) * in.k[ki(j) + c];
          prob.push_back(score * p.scale);
          top = std::max(top, prob.back());
        }
        for (double &x : prob) sum += x = std::exp(x - top);
        o.lse[t * p.heads + h] = top + std::log(sum);
        double delta = 0;
        for (int64_t j = cu[s]; j <= t; j++)
          for (int64_t c = 0; c < p.hd; c++) o.out[qi + c] += prob[j - cu[s]] / sum * in.v[ki(j) + c];
        for (int64_t c = 0; c < p.hd; c++) delta += o.out[qi + c] * in.dout[qi + c];
        for (int64_t j = cu[s]; j <= t; j++) {
          const double pj = prob[j - cu[s]] / sum;
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
  return o;
}

struct Outputs {
  Guarded out, lse, dq, dk, dv;
  explicit Outputs(const Problem &p)
      : out(p.q_size()), lse(p.rows() * p.heads), dq(p.q_size()), dk(p.kv_size()), dv(p.kv_size()) {}
};

void run(const Problem &p, const Inputs &in, Outputs &o) {
  const Ints cu = p.cu();
  const int64_t batch = static_cast<int64_t>(p.lengths.size());
  ASSERT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), cu.data(), batch, o.out.begin(),
                                       o.lse.begin(), p.heads, p.kv_heads, p.hd, p.scale),
            MGRPO_OK);
  ASSERT_EQ(mgrpo_attention_packed_bwd_cpu(in.dout.data(), in.q.data(), in.k.data(), in.v.data(), o.out.begin(),
                                           o.lse.begin(), cu.data(), batch, o.dq.begin(), o.dk.begin(), o.dv.begin(),
                                           p.heads, p.kv_heads, p.hd, p.scale),
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
  const Problem p{{200, 3, 90, 150}, 6, 2, 24, 0.2f};
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
    return mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), cu.data(), batch, o.out.begin(),
                                      o.lse.begin(), heads, kv_heads, hd, 1);
  };
  EXPECT_EQ(forward({0}, 0, 2, 1, 4), MGRPO_OK);
  EXPECT_EQ(forward({0, 0, 0}, 2, 2, 1, 4), MGRPO_OK);
  EXPECT_EQ(forward({0, 2}, 1, 3, 2, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 0, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 1, 0), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, 1, 2, 1, 257), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2}, -1, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({1, 2}, 1, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(forward({0, 2, 1}, 2, 2, 1, 4), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_attention_packed_cpu(in.q.data(), in.k.data(), in.v.data(), nullptr, 1, o.out.begin(),
                                       o.lse.begin(), 2, 1, 4, 1),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_attention_packed_bwd_cpu(in.dout.data(), in.q.data(), in.k.data(), in.v.data(), o.out.begin(),
                                           o.lse.begin(), Ints{0, 2}.data(), 1, o.dq.begin(), nullptr, o.dv.begin(),
                                           2, 1, 4, 1),
            MGRPO_INVALID_ARGUMENT);
  for (float v : o.out.values()) EXPECT_TRUE(std::isnan(v)) << "written in spite of the error";
}

}  // namespace
