// Rows of logits in the element types that kernels read, and the definition of softmax in long double.
#pragma once
#include "backend.h"

namespace conformance {

struct Row {
  double logp, entropy;
  std::vector<double> dz;  // for dL/dlogp = g and dL/dentropy = e
};

// Computes the definitions in long double.
inline Row oracle(const std::vector<double> &z, int32_t target, double tau, double g, double e) {
  long double max = -kInf, sum = 0, h = 0;
  for (double x : z) max = std::max<long double>(max, x);
  for (double x : z) sum += std::exp((x - max) / tau);
  std::vector<long double> p, lp;
  for (double x : z) {
    lp.push_back((x - max) / tau - std::log(sum));
    p.push_back(std::exp(lp.back()));
    if (p.back() > 0) h -= p.back() * lp.back();
  }
  Row r{static_cast<double>(lp[static_cast<size_t>(target)]), static_cast<double>(h), {}};
  for (size_t v = 0; v < z.size(); v++) {
    const long double entropy_term = p[v] > 0 ? e * p[v] * (lp[v] + h) : 0;
    r.dz.push_back(static_cast<double>((g * ((v == static_cast<size_t>(target)) - p[v]) - entropy_term) / tau));
  }
  return r;
}

// An element type of logits: how tests store and read it, and the expected tolerances.
struct InFloat32 {
  using Logit = float;
  using Output = float;
  static constexpr int32_t kType = MGRPO_FLOAT32;
  static constexpr double kValue = 2e-6, kGradient = 2e-6;
  static float store(double x) { return static_cast<float>(x); }
  static double load(float x) { return x; }
};
struct InFloat64 {
  using Logit = double;
  using Output = double;
  static constexpr int32_t kType = MGRPO_FLOAT64;
  static constexpr double kValue = 1e-12, kGradient = 1e-12;
  static double store(double x) { return x; }
  static double load(double x) { return x; }
};
struct InBFloat16 {
  using Logit = uint16_t;
  using Output = float;
  static constexpr int32_t kType = MGRPO_BFLOAT16;
  static constexpr double kValue = 2e-6, kGradient = 4e-3;  // the gradient is rounded to 8 bits
  static uint16_t store(double x) { return to_bf16(static_cast<float>(x)); }
  static double load(uint16_t x) { return from_bf16(x); }
};

struct Shape {
  int64_t rows, vocab, ld;
};

}  // namespace conformance
