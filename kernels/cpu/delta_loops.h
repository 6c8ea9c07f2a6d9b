// The inner loops of the gated delta rule.
#pragma once
#include "layer_loops.h"
#include "rowwise_layers.h"
#include "simd.h"

namespace mgrpo::cpu {
namespace {

constexpr int kDeltaVecs = kDeltaColumns / kLanes;

// Some columns of a state, padded with zeros.
struct DeltaState {
  alignas(64) float at[kMaxDeltaDim * kDeltaColumns];

  void load_from(const float *from, const DeltaRows &in) {
    for (int64_t i = 0; i < in.key_dim; i++)
      for (int v = 0; v < kDeltaVecs; v++) {
        const int64_t left = in.columns - v * kLanes;
        const Vec s = from == nullptr || left <= 0 ? Vec{} : load_n(from + i * in.value_dim + v * kLanes, min64(left, kLanes));
        store(at + i * kDeltaColumns + v * kLanes, s);
      }
  }
  void store_to(float *to, const DeltaRows &in) const {
    for (int64_t i = 0; i < in.key_dim; i++)
      for (int v = 0; v < kDeltaVecs && v * kLanes < in.columns; v++)
        store_n(to + i * in.value_dim + v * kLanes, load(at + i * kDeltaColumns + v * kLanes), min64(in.columns - v * kLanes, kLanes));
  }
};

struct DeltaVecs {
  Vec at[kDeltaVecs];
};

// Returns S^T k.
MGRPO_INLINE DeltaVecs delta_read(const DeltaState &state, const float *k, int64_t key_dim) {
  DeltaVecs sum{};
  for (int64_t i = 0; i < key_dim; i++)
    MGRPO_UNROLL for (int v = 0; v < kDeltaVecs; v++) sum.at[v] =
        fma(load(state.at + i * kDeltaColumns + v * kLanes), splat(k[i]), sum.at[v]);
  return sum;
}

// Multiplies the state by the decay and adds k u^T. In the same pass it computes S^T q and S^T k of the next row.
MGRPO_INLINE void delta_step(DeltaState &state, const float *k, const float *q, const float *next_k, float decay, const DeltaVecs &u,
                             int64_t key_dim, DeltaVecs &y, DeltaVecs &next) {
  y = next = {};
  for (int64_t i = 0; i < key_dim; i++) MGRPO_UNROLL for (int v = 0; v < kDeltaVecs; v++) {
      float *place = state.at + i * kDeltaColumns + v * kLanes;
      const Vec s = fma(splat(k[i]), u.at[v], splat(decay) * load(place));
      y.at[v] = fma(s, splat(q[i]), y.at[v]);
      next.at[v] = fma(s, splat(next_k[i]), next.at[v]);
      store(place, s);
    }
}

// Computes a single row in place, for `vecs` vectors of columns from `column` on, with the bits of delta_step.
template <int vecs>
MGRPO_INLINE void delta_row(const DeltaRows &in, int64_t column) {
  const Vec decay = splat(in.decay[0]), beta = splat(in.beta[0]);
  const auto each = [&](auto body) MGRPO_LAMBDA_INLINE {
    MGRPO_UNROLL for (int v = 0; v < vecs; v++) {
      const int64_t at = column + v * kLanes, left = in.columns - at;
      if (left > 0) body(v, at, left < kLanes ? left : kLanes);
    }
  };
  const auto state_at = [&](int64_t i, int64_t at, int64_t n) MGRPO_LAMBDA_INLINE {
    if (in.before == nullptr) return Vec{};
    const float *from = in.before + i * in.value_dim + at;
    return n == kLanes ? load(from) : load_n(from, n);
  };
  Vec read[vecs] = {}, u[vecs] = {}, y[vecs] = {};
  for (int64_t i = 0; in.before != nullptr && i < in.key_dim; i++)
    each([&](int v, int64_t at, int64_t n) MGRPO_LAMBDA_INLINE { read[v] = fma(state_at(i, at, n), splat(in.k[i]), read[v]); });
  each([&](int v, int64_t at, int64_t n) MGRPO_LAMBDA_INLINE {
    const Vec r = load_n(in.v + at, n) - decay * read[v];
    if (in.r != nullptr) store_n(in.r + at, r, n);
    u[v] = beta * r;
  });
  for (int64_t i = 0; i < in.key_dim; i++)
    each([&](int v, int64_t at, int64_t n) MGRPO_LAMBDA_INLINE {
      const Vec s = fma(splat(in.k[i]), u[v], decay * state_at(i, at, n));
      y[v] = fma(s, splat(in.q[i]), y[v]);
      float *to = in.after + i * in.value_dim + at;
      if (n == kLanes) {
        store(to, s);
      } else {
        store_n(to, s, n);
      }
    });
  each([&](int v, int64_t at, int64_t n) MGRPO_LAMBDA_INLINE { store_n(in.y + at, y[v], n); });
}

void delta_rows(const DeltaRows &in) {
  if (in.rows == 1) {
    constexpr int vecs = kLanes == 16 ? 8 : 4;
    for (int64_t column = 0; column < in.columns; column += vecs * kLanes) delta_row<vecs>(in, column);
    return;
  }
  DeltaState state;
  state.load_from(in.before, in);
  DeltaVecs read = delta_read(state, in.k, in.key_dim);
  for (int64_t t = 0; t < in.rows; t++) {
    const float *k = in.k + t * in.qk_stride, *next_k = t + 1 < in.rows ? k + in.qk_stride : k;
    const float decay = in.decay[t * in.gate_stride], beta = in.beta[t * in.gate_stride];
    DeltaVecs u, y;
    for (int v = 0; v < kDeltaVecs; v++) {
      const int64_t left = in.columns - v * kLanes;
      u.at[v] = Vec{};
      if (left <= 0) continue;
      const Vec r = load_n(in.v + t * in.v_stride + v * kLanes, min64(left, kLanes)) - splat(decay) * read.at[v];
      if (in.r != nullptr) store_n(in.r + t * in.y_stride + v * kLanes, r, min64(left, kLanes));
      u.at[v] = splat(beta) * r;
    }
    delta_step(state, k, in.q + t * in.qk_stride, next_k, decay, u, in.key_dim, y, read);
    for (int v = 0; v < kDeltaVecs && v * kLanes < in.columns; v++)
      store_n(in.y + t * in.y_stride + v * kLanes, y.at[v], min64(in.columns - v * kLanes, kLanes));
  }
  state.store_to(in.after, in);
}

constexpr int kDeltaTile = kLanes == 16 ? 8 : 2;  // rows whose sums stay in registers

// Computes DeltaProduct for `tile` rows and up to kDeltaColumns columns.
template <int tile>
MGRPO_INLINE void delta_tile(const DeltaProduct &p, int64_t i, int64_t j) {
  const int64_t columns = p.columns - j;
  Vec sum[tile][kDeltaVecs] = {};
  for (int64_t t = 0; t < p.inner; t++) {
    Vec b[kDeltaVecs];
    MGRPO_UNROLL for (int v = 0; v < kDeltaVecs; v++) {
      const float *from = p.b + t * p.b_stride + j + v * kLanes;
      b[v] = columns >= (v + 1) * kLanes ? load(from) : columns > v * kLanes ? load_n(from, columns - v * kLanes) : Vec{};
    }
    MGRPO_UNROLL for (int r = 0; r < tile; r++) {
      const Vec a = splat(p.a[(i + r) * p.row_stride + t * p.column_stride]);
      MGRPO_UNROLL for (int v = 0; v < kDeltaVecs; v++) sum[r][v] = fma(a, b[v], sum[r][v]);
    }
  }
  for (int r = 0; r < tile; r++)
    for (int v = 0; v < kDeltaVecs && v * kLanes < columns; v++) {
      float *to = p.y + (i + r) * p.y_stride + j + v * kLanes;
      const int64_t n = min64(columns - v * kLanes, kLanes);
      store_n(to, fma(splat(p.sign), sum[r][v], load_n(to, n)), n);
    }
}

void delta_product(const DeltaProduct &p) {
  for (int64_t j = 0; j < p.columns; j += kDeltaColumns) {
    int64_t i = 0;
    for (; i + kDeltaTile <= p.rows; i += kDeltaTile) delta_tile<kDeltaTile>(p, i, j);
    for (; i < p.rows; i++) delta_tile<1>(p, i, j);
  }
}

// Divides the q or k of a head by its length and multiplies it by scale. Returns scale / length.
float delta_normalise(const float *x, float scale, float *y, int64_t d) {
  Vec squares{};
  for_vectors(d, [&](auto at, auto) MGRPO_LAMBDA_INLINE { squares = fma(at(x), at(x), squares); });
  const float factor = static_cast<float>(scale / __builtin_sqrt(static_cast<double>(sum_lanes(squares)) + kDeltaEps));
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE { put(y, at(x) * splat(factor)); });
  return factor;
}

// Computes dx for y = delta_normalise(x). `factor` is the result of that call, scale / |x|.
void delta_normalise_bwd(const float *dy, const float *x, float factor, float scale, float *dx, int64_t d) {
  Vec along{};
  for_vectors(d, [&](auto at, auto) MGRPO_LAMBDA_INLINE { along = fma(at(dy), at(x), along); });
  const double inverse = static_cast<double>(factor) / scale;
  const float back = static_cast<float>(-sum_lanes(along) * inverse * inverse);
  for_vectors(d, [&](auto at, auto put) MGRPO_LAMBDA_INLINE { put(dx, splat(factor) * fma(at(x), splat(back), at(dy))); });
}

}  // namespace
}  // namespace mgrpo::cpu
