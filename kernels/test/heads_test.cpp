#include "mgrpo/heads.h"

#include "layer_testing.h"
#include "mgrpo/rms_norm.h"

using namespace conformance;
using namespace layer_testing;

namespace {

constexpr double kEps = 1e-5;
constexpr double kTolerance = 64 * kEpsilon;  // relative to the terms of the sum
constexpr double kBackwardTolerance = 256 * kEpsilon;
constexpr int64_t kMaxPos = 50;

class Heads : public OnEveryBackend {};
MGRPO_EVERY_BACKEND(Heads);

enum Norms { kNone, kEach, kWhole };
const Norms kNorms[] = {kNone, kEach, kWhole};

struct Shape {
  int64_t heads, kv_heads, hd, rotary;
  int64_t width() const { return (heads + 2 * kv_heads) * hd; }
};
// Norms over whole rows use one warp or one block, sometimes different ones for queries and keys of the same row.
const Shape kShapes[] = {{1, 1, 2, 2},   {3, 1, 6, 6},   {4, 2, 16, 16}, {2, 2, 24, 24}, {9, 3, 64, 64}, {2, 1, 128, 128},
                         {3, 3, 16, 12}, {2, 1, 96, 32}, {1, 1, 5, 4},   {2, 1, 7, 2},   {4, 2, 8, 0},   {2, 1, 600, 600}};

// A product, its division into heads, and the positions of its rows.
struct Product {
  Shape of;
  Norms norms;
  int64_t rows;
  Floats qkv, q_norm, k_norm, cos, sin;
  Ints pos;
  float offset = 0;

  Product(Shape of, Norms norms, int64_t rows, unsigned seed = 1)
      : of(of),
        norms(norms),
        rows(rows),
        qkv(normal(rows * of.width(), seed)),
        q_norm(normal(group(of.heads), seed + 1)),
        k_norm(normal(group(of.kv_heads), seed + 2)) {
    for (int64_t r = 0; r < rows; r++) pos.push_back(static_cast<int32_t>((r * 7 + 49) % kMaxPos));
    for (int64_t p = 0; p < kMaxPos; p++)
      for (int64_t i = 0; i < of.rotary / 2; i++) {
        const double angle = p * std::pow(10000.0, -2.0 * i / of.rotary);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
  }
  int64_t group(int64_t heads) const { return norms == kWhole ? heads * of.hd : of.hd; }
  int64_t groups(int64_t heads) const { return norms == kWhole ? 1 : heads; }
  int64_t queries() const { return of.heads * of.hd; }
  int64_t keys() const { return of.kv_heads * of.hd; }
  Product rounded() const {
    Product p = *this;
    for (Floats *x : {&p.qkv, &p.q_norm, &p.k_norm}) *x = rounded_to_bf16(*x);
    return p;
  }
  Product row(int64_t r, int64_t n = 1) const {
    Product p = *this;
    p.rows = n, p.qkv = part(qkv, r * of.width(), n * of.width()), p.pos = Ints(&pos[r], &pos[r] + n);
    return p;
  }
};

struct Split {
  Floats q, k, v, inv_q, inv_k;
};

bool operator==(const Split &a, const Split &b) {
  return same_bits(a.q, b.q) && same_bits(a.k, b.k) && same_bits(a.v, b.v) && same_bits(a.inv_q, b.inv_q) && same_bits(a.inv_k, b.inv_k);
}

// A product in a backend's memory.
struct There {
  const Backend &b;
  const Product &p;
  int32_t dtype;
  bool aligned;
  Array qkv, q_norm, k_norm;
  Buffer<float> cos, sin;
  Buffer<int32_t> pos;

  There(const Backend &b, const Product &p, int32_t dtype = MGRPO_FLOAT32, bool aligned = false)
      : b(b),
        p(p),
        dtype(dtype),
        aligned(aligned),
        qkv(b, dtype, p.qkv, aligned),
        q_norm(b, dtype, p.q_norm, aligned),
        k_norm(b, dtype, p.k_norm, aligned),
        cos(b, p.cos, aligned),
        sin(b, p.sin, aligned),
        pos(b, p.pos) {}

  mgrpo_heads layout() {
    const bool normed = p.norms != kNone;
    return {p.of.heads,
            p.of.kv_heads,
            p.of.hd,
            normed ? q_norm.get() : nullptr,
            normed ? k_norm.get() : nullptr,
            p.norms == kWhole,
            p.offset,
            kEps,
            cos.get(),
            sin.get(),
            p.of.rotary,
            kMaxPos,
            pos.get()};
  }
  Split split() {
    Array q(b, dtype, p.rows * p.queries(), aligned), k(b, dtype, p.rows * p.keys(), aligned), v(b, dtype, p.rows * p.keys(), aligned),
        inv_q(b, MGRPO_FLOAT32, p.rows * p.groups(p.of.heads)), inv_k(b, MGRPO_FLOAT32, p.rows * p.groups(p.of.kv_heads));
    EXPECT_EQ(b.split_heads(qkv.get(), layout(), dtype, q.get(), k.get(), v.get(), static_cast<float *>(inv_q.get()),
                            static_cast<float *>(inv_k.get()), p.rows),
              MGRPO_OK);
    if (p.norms != kNone) return {q.values(), k.values(), v.values(), inv_q.values(), inv_k.values()};
    EXPECT_TRUE(inv_q.unwritten() && inv_k.unwritten());
    return {q.values(), k.values(), v.values(), {}, {}};
  }
};

Split split(const Backend &b, const Product &p, int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  return There(b, p, dtype, aligned).split();
}

// Computes `heads` heads of each row, beginning at element `from`, in float64. inv receives 1 / rms of the groups.
std::vector<double> oracle(const Product &p, int64_t from, int64_t heads, const Floats &norm, bool turns, std::vector<double> *inv) {
  const int64_t hd = p.of.hd, half = turns ? p.of.rotary / 2 : 0, d = p.group(heads);
  std::vector<double> all;
  for (int64_t r = 0; r < p.rows; r++) {
    const Floats row = part(p.qkv, r * p.of.width() + from, heads * hd);
    std::vector<double> x = doubles(row);
    for (int64_t g = 0; turns && p.norms != kNone && g < heads * hd / d; g++) {
      double squares = 0;
      for (int64_t i = g * d; i < (g + 1) * d; i++) squares += x[i] * x[i];
      inv->push_back(1 / std::sqrt(squares / d + kEps));
      for (int64_t i = g * d; i < (g + 1) * d; i++) x[i] *= inv->back() * (static_cast<double>(p.offset) + norm[i - g * d]);
    }
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < half; i++) {
        double &a = x[h * hd + i], &b = x[h * hd + i + half];
        const double c = p.cos[p.pos[r] * half + i], s = p.sin[p.pos[r] * half + i], first = a;
        a = first * c - b * s;
        b = b * c + first * s;
      }
    all.insert(all.end(), x.begin(), x.end());
  }
  return all;
}

TEST_P(Heads, MatchFloat64) {
  for (const Shape &shape : kShapes)
    for (Norms norms : kNorms)
      for (float offset : {0.0f, 1.0f}) {
        Product p(shape, norms, 5);
        p.offset = offset;
        const Split got = split(backend(), p);
        std::vector<double> inv_q, inv_k, none;
        EXPECT_TRUE(close_to(got.q, oracle(p, 0, shape.heads, p.q_norm, true, &inv_q), 0, 8 * kTolerance)) << shape.hd << " " << norms;
        EXPECT_TRUE(close_to(got.k, oracle(p, p.queries(), shape.kv_heads, p.k_norm, true, &inv_k), 0, 8 * kTolerance))
            << shape.hd << " " << norms;
        EXPECT_TRUE(close_to(got.v, oracle(p, p.queries() + p.keys(), shape.kv_heads, {}, false, &none), 0, 0));
        EXPECT_TRUE(close_to(got.inv_q, inv_q, kTolerance, 0)) << shape.hd;
        EXPECT_TRUE(close_to(got.inv_k, inv_k, kTolerance, 0)) << shape.hd;
      }
}

// Applies the norm's own kernel to the groups of a product's queries or keys, laid end to end.
Floats normed(const Backend &b, const Product &p, int32_t dtype, int64_t from, int64_t heads, const Floats &w, Floats *inv) {
  const int64_t n = heads * p.of.hd, d = static_cast<int64_t>(w.size());
  Floats x;
  for (int64_t r = 0; r < p.rows; r++) x.insert(x.end(), &p.qkv[r * p.of.width() + from], &p.qkv[r * p.of.width() + from] + n);
  Array X(b, dtype, x), W(b, dtype, w), y(b, dtype, p.rows * n), to_inv(b, MGRPO_FLOAT32, p.rows * n / d);
  EXPECT_EQ(b.rms_norm(X.get(), W.get(), dtype, p.offset, kEps, y.get(), static_cast<float *>(to_inv.get()), p.rows * n / d, d), MGRPO_OK);
  *inv = to_inv.values();
  return y.values();
}

TEST_P(Heads, AreNormalisedWithTheBitsOfTheNorm) {
  for (const Shape &shape : kShapes)
    for (Norms norms : {kEach, kWhole})
      for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16}) {
        if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
        Product p = Product(shape, norms, 3).rounded(), apart = p;
        p.offset = apart.offset = 1;
        Split want;
        const Floats q = normed(backend(), p, dtype, 0, shape.heads, p.q_norm, &want.inv_q),
                     k = normed(backend(), p, dtype, p.queries(), shape.kv_heads, p.k_norm, &want.inv_k);
        for (int64_t r = 0; r < p.rows; r++) {
          std::copy_n(&q[r * p.queries()], p.queries(), &apart.qkv[r * shape.width()]);
          std::copy_n(&k[r * p.keys()], p.keys(), &apart.qkv[r * shape.width() + p.queries()]);
        }
        apart.norms = kNone;
        const Split turned = split(backend(), apart, dtype), got = split(backend(), p, dtype);
        want.q = turned.q, want.k = turned.k, want.v = turned.v;
        EXPECT_TRUE(got == want) << shape.hd << " " << norms << " " << dtype;
      }
}

TEST_P(Heads, RowDoesNotDependOnItsCompany) {
  for (Norms norms : kNorms) {
    const Product p({9, 3, 64, 64}, norms, 400);
    Split all;
    with_threads(3, [&] { all = split(backend(), p); });
    for (int64_t r : {0, 133, 134, 399}) {
      const Split one = split(backend(), p.row(r), MGRPO_FLOAT32, true);
      EXPECT_TRUE(same_bits(one.q, part(all.q, r * p.queries(), p.queries())));
      EXPECT_TRUE(same_bits(one.k, part(all.k, r * p.keys(), p.keys())));
      EXPECT_TRUE(same_bits(one.v, part(all.v, r * p.keys(), p.keys())));
    }
  }
}

TEST_P(Heads, Bf16IsFloat32RoundedOnce) {
  if (!has_bf16(backend())) GTEST_SKIP() << "float32 only";
  for (const Shape &shape : kShapes)
    for (bool aligned : {false, true}) {
      const Product p = Product(shape, kNone, 3).rounded();
      Split want = split(backend(), p);
      for (Floats *x : {&want.q, &want.k, &want.v}) *x = rounded_to_bf16(*x);
      EXPECT_TRUE(split(backend(), p, MGRPO_BFLOAT16, aligned) == want) << shape.hd;
    }
}

struct Gradients {
  Floats dqkv, dw_q, dw_k;
};

// Runs the backward pass. dw_q0 and dw_k0 are the initial gradients of the weights; if empty, these gradients are not computed.
Gradients back(const Backend &b, const Product &p, const Split &grads, const Floats &inv_q, const Floats &inv_k, const Floats &dw_q0,
               const Floats &dw_k0, int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  There there(b, p, dtype, aligned);
  Array dq(b, dtype, grads.q, aligned), dk(b, dtype, grads.k, aligned), dv(b, dtype, grads.v, aligned), inv_of_q(b, MGRPO_FLOAT32, inv_q),
      inv_of_k(b, MGRPO_FLOAT32, inv_k), dqkv(b, dtype, p.rows * p.of.width(), aligned), dw_q(b, MGRPO_FLOAT32, dw_q0),
      dw_k(b, MGRPO_FLOAT32, dw_k0);
  const bool normed = p.norms != kNone;
  const auto or_null = [](Array &a, bool there) { return there ? static_cast<float *>(a.get()) : nullptr; };
  EXPECT_EQ(
      b.split_heads_bwd(dq.get(), dk.get(), dv.get(), normed ? there.qkv.get() : nullptr, there.layout(), or_null(inv_of_q, normed),
                        or_null(inv_of_k, normed), dtype, dqkv.get(), or_null(dw_q, !dw_q0.empty()), or_null(dw_k, !dw_k0.empty()), p.rows),
      MGRPO_OK);
  return {dqkv.values(), dw_q.values(), dw_k.values()};
}

Split gradients(const Product &p, unsigned seed) {
  return {normal(p.rows * p.queries(), seed), normal(p.rows * p.keys(), seed + 1), normal(p.rows * p.keys(), seed + 2), {}, {}};
}

// Computes the gradient of a product's queries or keys in float64, and adds to dw.
std::vector<double> oracle_back(const Product &p, const Floats &dy, int64_t from, int64_t heads, const Floats &norm,
                                std::vector<double> *dw) {
  const int64_t hd = p.of.hd, half = p.of.rotary / 2, n = heads * hd, d = p.group(heads);
  std::vector<double> all;
  for (int64_t r = 0; r < p.rows; r++) {
    std::vector<double> g = doubles(part(dy, r * n, n));
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < half; i++) {
        double &a = g[h * hd + i], &b = g[h * hd + i + half];
        const double c = p.cos[p.pos[r] * half + i], s = p.sin[p.pos[r] * half + i], first = a;
        a = first * c + b * s;
        b = b * c - first * s;
      }
    const float *x = &p.qkv[r * p.of.width() + from];
    for (int64_t at = 0; p.norms != kNone && at < n; at += d) {
      double squares = 0, projection = 0;
      const auto weight = [&](int64_t i) { return static_cast<double>(p.offset) + norm[i]; };
      for (int64_t i = 0; i < d; i++)
        squares += static_cast<double>(x[at + i]) * x[at + i], projection += g[at + i] * weight(i) * x[at + i];
      const double inv = 1 / std::sqrt(squares / d + kEps);
      for (int64_t i = 0; i < d; i++) {
        (*dw)[i] += g[at + i] * x[at + i] * inv;
        g[at + i] = inv * g[at + i] * weight(i) - inv * inv * inv * x[at + i] * projection / d;
      }
    }
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

TEST_P(Heads, BackwardMatchesFloat64AndAccumulates) {
  for (const Shape &shape : kShapes)
    for (Norms norms : kNorms)
      for (int64_t rows : {1, 5, 31, 70}) {
        if (rows > 5 && shape.hd > 64) continue;
        Product p(shape, norms, rows);
        p.offset = 1;
        const Split s = split(backend(), p), grads = gradients(p, 7);
        const Floats dw_q0 = norms == kNone ? Floats() : normal(p.group(shape.heads), 20),
                     dw_k0 = norms == kNone ? Floats() : normal(p.group(shape.kv_heads), 21);
        const Gradients got = back(backend(), p, grads, s.inv_q, s.inv_k, dw_q0, dw_k0);
        std::vector<double> dw_q = doubles(dw_q0), dw_k = doubles(dw_k0), want;
        const std::vector<double> dq = oracle_back(p, grads.q, 0, shape.heads, p.q_norm, &dw_q),
                                  dk = oracle_back(p, grads.k, p.queries(), shape.kv_heads, p.k_norm, &dw_k);
        for (int64_t r = 0; r < rows; r++) {
          want.insert(want.end(), &dq[r * p.queries()], &dq[r * p.queries()] + p.queries());
          want.insert(want.end(), &dk[r * p.keys()], &dk[r * p.keys()] + p.keys());
          want.insert(want.end(), &grads.v[r * p.keys()], &grads.v[r * p.keys()] + p.keys());
        }
        EXPECT_TRUE(close_to(got.dqkv, want, kBackwardTolerance, 16 * kBackwardTolerance)) << shape.hd << " " << norms << " " << rows;
        EXPECT_TRUE(close_to(got.dw_q, dw_q, kBackwardTolerance, kBackwardTolerance * std::sqrt(rows * shape.heads)))
            << shape.hd << " " << rows;
        EXPECT_TRUE(close_to(got.dw_k, dw_k, kBackwardTolerance, kBackwardTolerance * std::sqrt(rows * shape.heads)))
            << shape.hd << " " << rows;
        for (bool of_q : {true, false}) {  // frozen weights do not change the other results
          const Gradients some =
              back(backend(), p, grads, s.inv_q, s.inv_k, of_q ? dw_q0 : Floats(), of_q ? Floats() : dw_k0, MGRPO_FLOAT32, true);
          EXPECT_TRUE(same_bits(some.dqkv, got.dqkv) && same_bits(of_q ? some.dw_q : some.dw_k, of_q ? got.dw_q : got.dw_k)) << shape.hd;
        }
      }
}

// Runs the backward pass without norms, followed by the backward pass of the norm's own kernel.
Gradients apart(const Backend &b, const Product &p, const Split &grads, const Split &s, int32_t dtype) {
  Product turned = p;
  turned.norms = kNone;
  Gradients got = back(b, turned, grads, {}, {}, {}, {}, dtype);
  const auto norm_back = [&](int64_t from, int64_t n, const Floats &w, const Floats &inv, Floats *dw) {
    Floats dy, x;
    for (int64_t at = from; at < p.rows * p.of.width(); at += p.of.width())
      dy.insert(dy.end(), &got.dqkv[at], &got.dqkv[at] + n), x.insert(x.end(), &p.qkv[at], &p.qkv[at] + n);
    const int64_t d = static_cast<int64_t>(w.size());
    Array DY(b, dtype, dy), X(b, dtype, x), W(b, dtype, w), INV(b, MGRPO_FLOAT32, inv), DW(b, MGRPO_FLOAT32, Floats(w.size()));
    EXPECT_EQ(b.rms_norm_bwd(DY.get(), X.get(), W.get(), static_cast<float *>(INV.get()), nullptr, dtype, p.offset, DY.get(),
                             static_cast<float *>(DW.get()), p.rows * n / d, d),
              MGRPO_OK);
    *dw = DW.values();
    const Floats dx = DY.values();
    for (int64_t r = 0; r < p.rows; r++) std::copy_n(&dx[r * n], n, &got.dqkv[r * p.of.width() + from]);
  };
  norm_back(0, p.queries(), p.q_norm, s.inv_q, &got.dw_q);
  norm_back(p.queries(), p.keys(), p.k_norm, s.inv_k, &got.dw_k);
  return got;
}

TEST_P(Heads, BackwardHasTheBitsOfTheNorms) {
  for (const Shape &shape : kShapes)
    for (Norms norms : {kEach, kWhole})
      for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16})
        for (int64_t rows : {3, 40}) {
          if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
          const Product p = Product(shape, norms, rows).rounded();
          Split grads = gradients(p, 7);
          for (Floats *x : {&grads.q, &grads.k, &grads.v}) *x = rounded_to_bf16(*x);
          const Split s = split(backend(), p, dtype);
          const Gradients got = back(backend(), p, grads, s.inv_q, s.inv_k, Floats(p.q_norm.size()), Floats(p.k_norm.size()), dtype),
                          want = apart(backend(), p, grads, s, dtype);
          EXPECT_TRUE(same_bits(got.dqkv, want.dqkv)) << shape.hd << " " << norms << " " << dtype;
          EXPECT_TRUE(same_bits(got.dw_q, want.dw_q)) << shape.hd << " " << norms << " " << dtype;
          EXPECT_TRUE(same_bits(got.dw_k, want.dw_k)) << shape.hd << " " << norms << " " << dtype;
          const Gradients there =
              back(backend(), p, grads, s.inv_q, s.inv_k, Floats(p.q_norm.size()), Floats(p.k_norm.size()), dtype, true);
          EXPECT_TRUE(same_bits(there.dqkv, got.dqkv) && same_bits(there.dw_q, got.dw_q) && same_bits(there.dw_k, got.dw_k))
              << shape.hd << " " << norms << " " << dtype << " aligned";
          EXPECT_TRUE(split(backend(), p, dtype, true) == s) << shape.hd << " " << norms << " " << dtype << " aligned";
        }
}

TEST_P(Heads, ManyRows) {  // more than 65,535
  MGRPO_SKIP_EMULATED();
  const Product p({2, 1, 6, 4}, kEach, 70'000);
  const Split all = split(backend(), p), one = split(backend(), p.row(69'999));
  EXPECT_TRUE(same_bits(one.q, part(all.q, 69'999 * p.queries(), p.queries())));
  EXPECT_TRUE(same_bits(one.k, part(all.k, 69'999 * p.keys(), p.keys())));
  const Split grads = gradients(p, 7);
  const Gradients got = back(backend(), p, grads, all.inv_q, all.inv_k, Floats(6), Floats(6)),
                  want = apart(backend(), p, grads, all, MGRPO_FLOAT32);
  EXPECT_TRUE(same_bits(got.dqkv, want.dqkv) && same_bits(got.dw_q, want.dw_q) && same_bits(got.dw_k, want.dw_k));
}

TEST(HeadsCpu, BitsDoNotDependOnThreads) {
  const Product p({6, 2, 48, 48}, kEach, 1500);
  const Split s = split(cpu(), p), grads = gradients(p, 7);
  const auto run = [&] { return back(cpu(), p, grads, s.inv_q, s.inv_k, Floats(48), Floats(48)); };
  Gradients one, many;
  with_threads(1, [&] { one = run(); });
  for (int threads : {2, 3, 8}) {
    with_threads(threads, [&] { many = run(); });
    EXPECT_TRUE(same_bits(many.dqkv, one.dqkv) && same_bits(many.dw_q, one.dw_q) && same_bits(many.dw_k, one.dw_k)) << threads;
  }
}

TEST_P(Heads, NaNStaysInItsHead) {
  Product p({3, 1, 6, 4}, kEach, 3);
  const Split clean = split(backend(), p);
  p.qkv[p.of.width() + 7] = NAN;  // an element of the second query head
  const Split got = split(backend(), p);
  for (int64_t i = 0; i < static_cast<int64_t>(got.q.size()); i++) {
    if (i / 6 == 4)
      EXPECT_TRUE(std::isnan(got.q[i]));
    else
      EXPECT_TRUE(same_bits(part(got.q, i, 1), part(clean.q, i, 1)));
  }
  EXPECT_TRUE(same_bits(got.k, clean.k) && same_bits(got.v, clean.v));
}

TEST_P(Heads, PositionOutsideTheTable) {
  for (int32_t outside : {-1, 50, INT32_MAX, INT32_MIN}) {
    Product p({2, 1, 5, 4}, kEach, 2);
    const Split clean = split(backend(), p);
    p.pos[1] = outside;
    if (!backend().refuses_places) {
      const Split got = split(backend(), p);
      EXPECT_TRUE(same_bits(part(got.q, 0, 10), part(clean.q, 0, 10)) && same_bits(part(got.k, 0, 5), part(clean.k, 0, 5)));
      EXPECT_TRUE(same_bits(got.v, clean.v));
      for (int64_t i = 0; i < 10; i++) {  // elements that are not rotated keep their values
        if (i % 5 < 4)
          EXPECT_TRUE(std::isnan(got.q[10 + i]));
        else
          EXPECT_TRUE(same_bits(part(got.q, 10 + i, 1), part(clean.q, 10 + i, 1)));
      }
      continue;
    }
    There there(backend(), p);
    Array q(backend(), MGRPO_FLOAT32, 20), k(backend(), MGRPO_FLOAT32, 10), v(backend(), MGRPO_FLOAT32, 10);
    EXPECT_EQ(backend().split_heads(there.qkv.get(), there.layout(), MGRPO_FLOAT32, q.get(), k.get(), v.get(), nullptr, nullptr, 2),
              MGRPO_INVALID_ARGUMENT);
    EXPECT_TRUE(q.unwritten() && k.unwritten() && v.unwritten());
  }
}

// A product whose keys and values are written to the caches of three sequences of up to 52 tokens.
struct Cached {
  Floats q, k, v;
  int32_t status;
};
constexpr int64_t kBlock = 4, kLongest = 52;

Cached cached(const Backend &b, const Product &p, const Table &table, const Ints &sequence, const Floats &k_before, const Floats &v_before,
              int32_t dtype = MGRPO_FLOAT32, bool aligned = false) {
  There there(b, p, dtype, aligned);
  Array q(b, dtype, p.rows * p.queries(), aligned), k(b, dtype, k_before, aligned), v(b, dtype, v_before, aligned);
  Buffer<int32_t> entries(b, table.entries), in(b, sequence);
  const int32_t status = b.cache_heads(there.qkv.get(), there.layout(), dtype, q.get(), k.get(), v.get(),
                                       table.pages(entries.get(), p.of.kv_heads, p.of.hd), in.get(), p.rows);
  if (status != MGRPO_OK) {
    EXPECT_TRUE(q.unwritten());
  }
  return {q.values(), k.values(), v.values(), status};
}

TEST_P(Heads, GoToTheirPlacesInTheCache) {
  for (const Shape &shape : {Shape{4, 2, 5, 4}, Shape{4, 2, 16, 16}, Shape{2, 1, 8, 0}})
    for (Norms norms : kNorms)
      for (int32_t dtype : {MGRPO_FLOAT32, MGRPO_BFLOAT16})
        for (bool aligned : {false, true}) {
          if (dtype == MGRPO_BFLOAT16 && !has_bf16(backend())) continue;
          Product p = Product(shape, norms, 6).rounded();
          p.pos = {7, 0, 2, 7, 49, 7};
          const Ints sequence{2, 0, 2, 2, 1, 2};  // the fourth row names the same place as the first, and the last row names both
          const Table table(3, kLongest, kBlock);
          const int64_t n = table.blocks * p.keys() * kBlock;
          const Floats k_before = rounded_to_bf16(normal(n, 11)), v_before = rounded_to_bf16(normal(n, 12));
          const Split rows = split(backend(), p, dtype);
          Floats k = k_before, v = v_before;
          for (int64_t r = 0; r < p.rows; r++)
            for (int64_t h = 0; h < shape.kv_heads; h++) {
              const int64_t to = table.place(sequence[r], p.pos[r], h, shape.kv_heads) * shape.hd, from = r * p.keys() + h * shape.hd;
              std::copy_n(&rows.k[from], shape.hd, &k[to]);
              std::copy_n(&rows.v[from], shape.hd, &v[to]);
            }
          const Cached got = cached(backend(), p, table, sequence, k_before, v_before, dtype, aligned);
          ASSERT_EQ(got.status, MGRPO_OK);
          EXPECT_TRUE(same_bits(got.q, rows.q)) << shape.hd << " " << norms;
          EXPECT_TRUE(same_bits(got.k, k)) << shape.hd << " " << norms;
          EXPECT_TRUE(same_bits(got.v, v)) << shape.hd << " " << norms;
        }
}

// The CPU rounds keys and values of float for a cache of bf16.
TEST(HalfCache, KeysAndValuesAreRounded) {
  for (Norms norms : kNorms) {
    Product p({4, 2, 20, 16}, norms, 6);
    p.pos = {7, 0, 2, 7, 49, 7};
    float *values = &p.qkv[p.of.width() + p.queries() + p.keys()];  // of the second row
    values[0] = 3.4e38f, values[1] = NAN, values[2] = 1 + 0x1p-8f;
    const Ints sequence{2, 0, 2, 1, 1, 2};
    const Table table(3, kLongest, kBlock);
    const size_t n = static_cast<size_t>(table.blocks * p.keys() * kBlock);
    const Floats before(n, 2);
    const Cached want = cached(cpu(), p, table, sequence, before, before);
    There there(cpu(), p);
    std::vector<uint16_t> k(n, to_bf16(2)), v = k;
    Guarded q(p.rows * p.queries());
    const auto write = [&](int32_t dtype) {
      return mgrpo_cache_heads_cpu(p.qkv.data(), there.layout(), q.begin(), k.data(), v.data(), dtype,
                                   table.pages(table.entries.data(), p.of.kv_heads, p.of.hd), sequence.data(), p.rows);
    };
    EXPECT_EQ(write(5), MGRPO_INVALID_ARGUMENT);
    ASSERT_EQ(write(MGRPO_BFLOAT16), MGRPO_OK);
    EXPECT_TRUE(same_bits(q.values(), want.q)) << norms;
    const auto wide = [](const std::vector<uint16_t> &x) {
      Floats all;
      for (uint16_t h : x) all.push_back(from_bf16(h));
      return all;
    };
    EXPECT_TRUE(same_bits(wide(k), rounded_to_bf16(want.k)) && same_bits(wide(v), rounded_to_bf16(want.v))) << norms;
  }
}

TEST_P(Heads, ManyRowsOfOnePlaceLeaveTheLast) {
  Product p({2, 1, 64, 64}, kEach, 2500);  // enough rows for several threads
  p.pos.assign(2500, 5);
  const Table table(3, kLongest, kBlock);
  const Floats before = normal(table.blocks * p.keys() * kBlock, 11);
  Cached got;
  with_threads(3, [&] { got = cached(backend(), p, table, Ints(2500, 1), before, before); });
  ASSERT_EQ(got.status, MGRPO_OK);
  const Split last = split(backend(), p.row(2499));
  const int64_t to = table.place(1, 5, 0, 1) * 64;
  EXPECT_TRUE(same_bits(part(got.k, to, 64), last.k) && same_bits(part(got.v, to, 64), last.v));
}

// Rows have random places. Several rows name the same place, and rows of two sequences share a block.
TEST_P(Heads, TheLastRowOfEachPlaceStays) {
  for (int64_t rows : {300, 1300})
    for (Norms norms : {kEach, kWhole})
      for (bool aligned : {false, true})
        for (int32_t longest : {40, 4000}) {
          Product p({2, 1, 8, 0}, norms, rows);
          Table table(3, longest, kBlock);
          table.entries[table.width + 2] = table.entries[2];
          std::mt19937 random(5);
          Ints sequence;
          for (int64_t r = 0; r < rows; r++) {
            sequence.push_back(static_cast<int32_t>(random() % 3));
            p.pos[r] = static_cast<int32_t>(random() % longest);
          }
          const Floats before = normal(table.blocks * p.keys() * kBlock, 11);
          const Split split_rows = split(backend(), p);
          Floats k = before, v = before;
          for (int64_t r = 0; r < rows; r++) {
            const int64_t to = table.place(sequence[r], p.pos[r], 0, 1) * 8;
            std::copy_n(&split_rows.k[r * 8], 8, &k[to]);
            std::copy_n(&split_rows.v[r * 8], 8, &v[to]);
          }
          const Cached got = cached(backend(), p, table, sequence, before, before, MGRPO_FLOAT32, aligned);
          ASSERT_EQ(got.status, MGRPO_OK);
          EXPECT_TRUE(same_bits(got.k, k) && same_bits(got.v, v)) << rows << " " << norms << " " << aligned << " " << longest;
        }
}

TEST_P(Heads, PlaceOutsideTheCache) {
  Table table(3, kLongest, kBlock);
  table.entries[1] = -1;  // positions 4 to 7 of the first sequence
  for (auto [sequence, pos] : {std::pair{3, 0}, {-1, 0}, {1, 53}, {1, -1}, {0, 4}, {INT32_MAX, INT32_MAX}}) {
    Product p({2, 1, 6, 0}, kEach, 2);  // no element is rotated
    p.pos = {3, pos};
    const Floats before = normal(table.blocks * p.keys() * kBlock, 11);
    const Cached got = cached(backend(), p, table, {2, sequence}, before, before);
    if (backend().refuses_places) {
      EXPECT_EQ(got.status, MGRPO_INVALID_ARGUMENT);
      EXPECT_TRUE(same_bits(got.k, before) && same_bits(got.v, before));
      continue;
    }
    ASSERT_EQ(got.status, MGRPO_OK);
    const Split rows = split(backend(), p);
    Floats k = before, v = before;
    std::copy_n(&rows.k[0], 6, &k[table.place(2, 3, 0, 1) * 6]);
    std::copy_n(&rows.v[0], 6, &v[table.place(2, 3, 0, 1) * 6]);
    EXPECT_TRUE(same_bits(got.q, rows.q) && same_bits(got.k, k) && same_bits(got.v, v));
  }
}

TEST_P(Heads, EmptyAndInvalid) {
  const Backend &b = backend();
  const Product p({2, 1, 4, 4}, kEach, 1);
  There there(b, p);
  const Table table(1, kBlock, kBlock);
  Array q(b, MGRPO_FLOAT32, 8), k(b, MGRPO_FLOAT32, table.blocks * 16), v(b, MGRPO_FLOAT32, table.blocks * 16), dqkv(b, MGRPO_FLOAT32, 16);
  Buffer<int32_t> entries(b, table.entries), sequence(b, Ints{0});
  Buffer<float> inv(b, Floats{1, 1});
  const auto every = [&](mgrpo_heads layout, int64_t rows, int32_t want, bool null = false) {
    void *to = null ? nullptr : q.get();
    mgrpo_pages pages = table.pages(entries.get(), layout.kv_heads, layout.hd);
    EXPECT_EQ(b.split_heads(there.qkv.get(), layout, MGRPO_FLOAT32, to, k.get(), v.get(), nullptr, nullptr, rows), want);
    EXPECT_EQ(b.cache_heads(there.qkv.get(), layout, MGRPO_FLOAT32, to, k.get(), v.get(), pages, sequence.get(), rows), want);
    EXPECT_EQ(b.split_heads_bwd(to, k.get(), v.get(), there.qkv.get(), layout, inv.get(), inv.get(), MGRPO_FLOAT32, dqkv.get(), nullptr,
                                nullptr, rows),
              want);
  };
  const auto with = [&](auto change) {
    mgrpo_heads layout = there.layout();
    change(layout);
    every(layout, 1, MGRPO_INVALID_ARGUMENT);
  };
  every(there.layout(), 0, MGRPO_OK, true);
  every(there.layout(), -1, MGRPO_INVALID_ARGUMENT);
  every(there.layout(), int64_t{1} << 58, MGRPO_INVALID_ARGUMENT);
  every(there.layout(), 1, MGRPO_INVALID_ARGUMENT, true);
  with([](mgrpo_heads &h) { h.rotary = 3; });
  with([](mgrpo_heads &h) { h.rotary = -2; });
  with([](mgrpo_heads &h) { h.rotary = 6; });
  with([](mgrpo_heads &h) { h.heads = 0; });
  with([](mgrpo_heads &h) { h.heads = -2; });
  with([](mgrpo_heads &h) { h.kv_heads = 0; });
  with([](mgrpo_heads &h) { h.heads = 3, h.kv_heads = 2; });
  with([](mgrpo_heads &h) { h.heads = 1, h.kv_heads = 2; });
  with([](mgrpo_heads &h) { h.hd = 0; });
  with([](mgrpo_heads &h) { h.hd = INT32_MAX / 4 + 1; });
  with([](mgrpo_heads &h) { h.heads = h.kv_heads = int64_t{1} << 62; });
  with([](mgrpo_heads &h) { h.max_pos = int64_t{1} << 58; });
  with([](mgrpo_heads &h) { h.eps = -1; });
  with([](mgrpo_heads &h) { h.eps = NAN; });
  with([](mgrpo_heads &h) { h.q_norm = nullptr; });
  with([](mgrpo_heads &h) { h.sin = nullptr; });
  with([](mgrpo_heads &h) { h.pos = nullptr; });
  mgrpo_pages pages = table.pages(entries.get(), 1, 4);
  const auto to_cache = [&](mgrpo_pages to, void *keys) {
    return b.cache_heads(there.qkv.get(), there.layout(), MGRPO_FLOAT32, q.get(), keys, v.get(), to, sequence.get(), 1);
  };
  EXPECT_EQ(to_cache(pages, nullptr), MGRPO_INVALID_ARGUMENT);
  pages.hd = 5;
  EXPECT_EQ(to_cache(pages, k.get()), MGRPO_INVALID_ARGUMENT);
  pages.hd = 4, pages.kv_heads = 2;
  EXPECT_EQ(to_cache(pages, k.get()), MGRPO_INVALID_ARGUMENT);
  pages.kv_heads = 1, pages.blocks = int64_t{1} << 58;
  EXPECT_EQ(to_cache(pages, k.get()), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(b.split_heads_bwd(q.get(), k.get(), v.get(), there.qkv.get(), there.layout(), nullptr, inv.get(), MGRPO_FLOAT32, dqkv.get(),
                              nullptr, nullptr, 1),
            MGRPO_INVALID_ARGUMENT);
  EXPECT_TRUE(q.unwritten() && k.unwritten() && v.unwritten() && dqkv.unwritten());
}

}  // namespace
