// Row-wise layers: RMS norm, gated activations, rotary embedding, sums over a token's experts.
#pragma once
#include <string.h>

#include "simd.h"

namespace mgrpo::cpu {
namespace {

// Calls body(load, store) for the vectors of [0, n). load(p) and store(p, v) access the elements of p that belong to the vector. The last
// vector can be shorter.
template <class Body>
MGRPO_INLINE void for_vectors(int64_t n, const Body &body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body([i](const float *p) MGRPO_LAMBDA_INLINE { return load(p + i); }, [i](float *p, Vec v) MGRPO_LAMBDA_INLINE { store(p + i, v); });
  if (i < n)
    body([i, n](const float *p) MGRPO_LAMBDA_INLINE { return load_n(p + i, n - i); },
         [i, n](float *p, Vec v) MGRPO_LAMBDA_INLINE { store_n(p + i, v, n - i); });
}

// Computes the norm of x [d]. The first pass over the row calls pass(load, store), which returns a vector of x.
template <class Pass>
MGRPO_INLINE void rms_norm_row(const float *x, const float *w, float offset, double eps, float *y, float *inv_rms, int64_t d,
                               const Pass &pass) {
  Vec squares{};
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
    const Vec v = pass(at, put);
    squares = fma(v, v, squares);
  });
  const float inv = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(sum_lanes(squares)) / d + eps));
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE { put(y, at(x) * splat(inv) * (at(w) + splat(offset))); });
  if (inv_rms != nullptr) *inv_rms = inv;
}

void rms_norm(const float *x, const float *residual, const float *w, float offset, double eps, float *sum, float *y, float *inv_rms,
              int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t row = r * d;
    float *inv = inv_rms != nullptr ? inv_rms + r : nullptr;
    if (residual == nullptr) {
      rms_norm_row(x + row, w, offset, eps, y + row, inv, d, [&](auto at, auto) MGRPO_LAMBDA_INLINE { return at(x + row); });
    } else {
      rms_norm_row(sum + row, w, offset, eps, y + row, inv, d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
        const Vec v = at(x + row) + at(residual + row);
        put(sum + row, v);
        return v;
      });
    }
  }
}

// Computes dx = inv (dy w - x inv^2 mean(dy w x)) + dx_more, where w includes the offset.
void rms_norm_dx(const float *dy, const float *x, const float *w, float offset, const float *inv_rms, const float *dx_more, float *dx,
                 int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; r++, dy += d, x += d, dx += d) {
    Vec projection{};
    for_vectors(d, [&](auto at, auto) MGRPO_LAMBDA_INLINE { projection = fma(at(dy) * (at(w) + splat(offset)), at(x), projection); });
    const double inv = inv_rms[r];
    const float along_x = static_cast<float>(-inv * inv * sum_lanes(projection) / d);
    const float *more = dx_more != nullptr ? dx_more + r * d : nullptr;
    for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
      const Vec own = splat(inv_rms[r]) * fma(at(x), splat(along_x), at(dy) * (at(w) + splat(offset)));
      put(dx, more != nullptr ? own + at(more) : own);
    });
  }
}

// The number of rows of a block. Rows are added in blocks, and the blocks in their order, because shorter chains of additions have smaller
// rounding errors.
constexpr int64_t kNormRowBlock = 64;

void rms_norm_dw(const float *dy, const float *x, const float *inv_rms, float *dw, int64_t rows, int64_t d, int64_t columns, int64_t run,
                 int64_t stride) {
  for (int64_t first = 0; first < rows; first += kNormRowBlock) {
    const int64_t last = min64(rows, first + kNormRowBlock);
    for_vectors(columns, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
      Vec sum{};
      int64_t in_run = first % run, row = first / run * stride + in_run * d;
      for (int64_t r = first; r < last; r++, row += d) {
        sum = fma(at(dy + row) * splat(inv_rms[r]), at(x + row), sum);
        if (++in_run == run) in_run = 0, row += stride - run * d;
      }
      put(dw, at(dw) + sum);
    });
  }
}

MGRPO_INLINE Vec sigmoid(Vec g) { return 1.0f / (1.0f + vexp(-g)); }

// Gated activations f(g) sigmoid(k(g)) up of a gate g. Each activation defines f, the derivative of f, k, and slope, which is f(g) times
// the derivative of k. gate and up apply its limits, and of_gate and of_up set the gradients of values beyond the limits to 0.
struct Unlimited {
  static constexpr float kSlopeOfF = 1;
  static MGRPO_INLINE Vec f(Vec g) { return g; }
  static MGRPO_INLINE Vec gate(Vec g) { return g; }
  static MGRPO_INLINE Vec up(Vec u) { return u; }
  static MGRPO_INLINE Vec of_gate(Vec, Vec gradient) { return gradient; }
  static MGRPO_INLINE Vec of_up(Vec, Vec gradient) { return gradient; }
};

struct Sigmoid : Unlimited {
  static constexpr float kSlopeOfF = 0;
  static MGRPO_INLINE Vec f(Vec) { return splat(1); }
  static MGRPO_INLINE Vec k(Vec g) { return g; }
  static MGRPO_INLINE Vec slope(Vec) { return splat(1); }
};

struct Silu : Unlimited {
  static MGRPO_INLINE Vec k(Vec g) { return g; }
  static MGRPO_INLINE Vec slope(Vec g) { return g; }
};

// (1 + tanh(u)) / 2 is sigmoid(2 u). Beyond 16 the sigmoid is 0 or 1, and a cube of g could overflow.
struct GeluTanh : Unlimited {
  static constexpr float kLinear = 1.5957691216f, kCubic = kLinear * 0.044715f;  // kLinear is 2 sqrt(2 / pi)
  static MGRPO_INLINE Vec bounded(Vec g) {
    g = g > splat(16) ? splat(16) : g;
    return g < splat(-16) ? splat(-16) : g;
  }
  static MGRPO_INLINE Vec k(Vec g) {
    g = bounded(g);
    return g * fma(g * g, splat(kCubic), splat(kLinear));
  }
  static MGRPO_INLINE Vec slope(Vec g) {
    g = bounded(g);
    return g * fma(g * g, splat(3 * kCubic), splat(kLinear));
  }
};

struct Clamped {
  static constexpr float kLimit = 7, kAlpha = 1.702f, kSlopeOfF = 1;
  static MGRPO_INLINE Vec f(Vec g) { return g; }
  static MGRPO_INLINE Vec gate(Vec g) { return g > splat(kLimit) ? splat(kLimit) : g; }
  static MGRPO_INLINE Vec up(Vec u) {
    u = u > splat(kLimit) ? splat(kLimit) : u;
    return (u < splat(-kLimit) ? splat(-kLimit) : u) + splat(1);
  }
  static MGRPO_INLINE Vec of_gate(Vec g, Vec gradient) { return g > splat(kLimit) ? Vec{} : gradient; }
  static MGRPO_INLINE Vec of_up(Vec u, Vec gradient) {
    gradient = u > splat(kLimit) ? Vec{} : gradient;
    return u < splat(-kLimit) ? Vec{} : gradient;
  }
  // Below -64 the sigmoid is 0, and a product with alpha could overflow.
  static MGRPO_INLINE Vec k(Vec g) { return (g < splat(-64) ? splat(-64) : g) * splat(kAlpha); }
  static MGRPO_INLINE Vec slope(Vec g) { return k(g); }
};

template <class Activation>
void glu(const float *gate_up, float *y, int64_t rows, int64_t f) {
  for (int64_t r = 0; r < rows; r++, gate_up += 2 * f, y += f)
    for_vectors(f, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
      const Vec gate = Activation::gate(at(gate_up));
      put(y, Activation::f(gate) * sigmoid(Activation::k(gate)) * Activation::up(at(gate_up + f)));
    });
}

template <class Activation>
void glu_bwd(const float *dy, const float *gate_up, float *dgate_up, int64_t rows, int64_t f) {
  for (int64_t r = 0; r < rows; r++, dy += f, gate_up += 2 * f, dgate_up += 2 * f)
    for_vectors(f, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
      const Vec given = at(gate_up), gate = Activation::gate(given), given_up = at(gate_up + f), up = Activation::up(given_up),
                grad = at(dy);
      const Vec s = sigmoid(Activation::k(gate));
      put(dgate_up, Activation::of_gate(given, grad * up * s * fma(Activation::slope(gate), 1.0f - s, splat(Activation::kSlopeOfF))));
      put(dgate_up + f, Activation::of_up(given_up, grad * Activation::f(gate) * s));
    });
}

void silu(const float *x, float *y, int64_t n) {
  for_vectors(n, [&](auto at, auto put) MGRPO_LAMBDA_INLINE { put(y, at(x) * sigmoid(at(x))); });
}

void silu_bwd(const float *dy, const float *x, float *dx, int64_t n) {
  for_vectors(n, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
    const Vec s = sigmoid(at(x));
    put(dx, at(dy) * s * fma(at(x), 1.0f - s, splat(1.0f)));
  });
}

void rope(const float *x, const float *cos, const float *sin, float *y, int64_t heads, int64_t hd, int64_t rotary, float sign) {
  const int64_t half = rotary / 2;
  for (int64_t h = 0; h < heads; h++, x += hd, y += hd) {
    if (rotary < hd && y != x) memcpy(y + rotary, x + rotary, static_cast<size_t>(hd - rotary) * sizeof(float));
    for_vectors(half, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
      const Vec a = at(x), b = at(x + half), c = at(cos), s = at(sin) * splat(sign);
      put(y, fma(a, c, -(b * s)));
      put(y + half, fma(b, c, a * s));
    });
  }
}

void moe_combine(const float *x, const int32_t *place, const float *weight, float *y, int64_t k, int64_t d) {
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
    Vec sum{};
    for (int64_t j = 0; j < k; j++) {
      const Vec row = at(x + place[j] * d);
      sum = weight != nullptr ? fma(splat(weight[j]), row, sum) : sum + row;
    }
    put(y, sum);
  });
}

float moe_weigh(float *g, float *a, float weight, int64_t d) {
  Vec product{};
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE {
    const Vec gradient = at(g), value = at(a);
    product = fma(gradient, value, product);
    put(g, gradient * splat(weight));
    put(a, value * splat(weight));
  });
  return sum_lanes(product);
}

}  // namespace
}  // namespace mgrpo::cpu
