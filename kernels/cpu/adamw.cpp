#include "mgrpo/adamw.h"

#include <new>
#include <vector>

#include "adamw_element.h"
#include "bfloat16.h"
#include "layer_loops.h"
#include "parallel.h"

namespace mgrpo::cpu {
namespace {

// Within a block squares are added in kNormLanes lanes, and then the blocks are added in their order. So the bits of the sum depend on
// neither the number of threads nor the instruction set.
constexpr int64_t kNormBlock = 8192;
constexpr int kNormLanes = 8;

// The functions below are compiled once for each instruction set, with the same bits.
#define MGRPO_INLINE inline __attribute__((always_inline))

MGRPO_INLINE double block_sum_of_squares(const float *x, int64_t n) {
  double lane[kNormLanes] = {};
  int64_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes)
    for (int l = 0; l < kNormLanes; l++) {
      const double value = x[i + l];
      lane[l] += value * value;
    }
  for (; i < n; i++) lane[i % kNormLanes] += static_cast<double>(x[i]) * x[i];
  double sum = 0;
  for (double s : lane) sum += s;
  return sum;
}

constexpr int64_t kUpdateBlock = 4096;

MGRPO_INLINE void update_block(const AdamwFactors &factors, float *__restrict p, float *__restrict m, float *__restrict v,
                               const float *__restrict g, uint16_t *__restrict bf16, int64_t n) {
  const AdamwFactors f = factors;
  for (int64_t i = 0; i < n; i++) adamw_element(f, g[i], p[i], m[i], v[i]);
  if (bf16)
    for (int64_t i = 0; i < n; i++) bf16[i] = to_bfloat16(p[i]);
}

struct AdamwLoops {
  double (*sum_of_squares)(const float *x, int64_t n);
  void (*update)(const AdamwFactors &factors, float *p, float *m, float *v, const float *g, uint16_t *bf16, int64_t n);
};

#define MGRPO_ADAMW_LOOPS(name, target)                                                                                             \
  target double sum_of_squares_##name(const float *x, int64_t n) { return block_sum_of_squares(x, n); }                             \
  target void update_##name(const AdamwFactors &factors, float *p, float *m, float *v, const float *g, uint16_t *bf16, int64_t n) { \
    update_block(factors, p, m, v, g, bf16, n);                                                                                     \
  }                                                                                                                                 \
  constexpr AdamwLoops name{sum_of_squares_##name, update_##name};

MGRPO_ADAMW_LOOPS(kPortable, )
#if defined(__x86_64__)
MGRPO_ADAMW_LOOPS(kAvx2, __attribute__((target("avx2"))))
MGRPO_ADAMW_LOOPS(kAvx512, __attribute__((target("avx512f"))))
#endif

// Returns the loops for the instruction set of layer_loops().
const AdamwLoops &adamw_loops() {
#if defined(__x86_64__)
  const Isa isa = layer_loops().isa;
  if (isa >= Isa::avx512) return kAvx512;
  if (isa == Isa::avx2) return kAvx2;
#endif
  return kPortable;
}

}  // namespace
}  // namespace mgrpo::cpu

using namespace mgrpo;

int32_t mgrpo_grad_norm_cpu(const float *grad, int64_t n, double *norm) try {
  if (n < 0 || norm == nullptr || (n > 0 && grad == nullptr)) return MGRPO_INVALID_ARGUMENT;
  const int64_t blocks = (n + cpu::kNormBlock - 1) / cpu::kNormBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  const cpu::AdamwLoops &loops = cpu::adamw_loops();
  cpu::parallel_ranges(blocks, 1, static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b++) {
      const int64_t first = b * cpu::kNormBlock;
      sums[b] = loops.sum_of_squares(grad + first, n - first < cpu::kNormBlock ? n - first : cpu::kNormBlock);
    }
  });
  double sum = 0;
  for (double s : sums) sum += s;
  *norm = sqrt(sum);
  return MGRPO_OK;
} catch (const std::bad_alloc &) {
  return MGRPO_OUT_OF_MEMORY;
}

int32_t mgrpo_adamw_cpu(float *param, float *m, float *v, const float *grad, uint16_t *bf16_or_null, int64_t n, double norm,
                        const mgrpo_adamw_config *config) {
  if (n < 0 || config == nullptr || !valid(*config)) return MGRPO_INVALID_ARGUMENT;
  if (n > 0 && !(param && m && v && grad)) return MGRPO_INVALID_ARGUMENT;
  if (!isfinite(norm)) return MGRPO_NON_FINITE;
  AdamwFactors factors = adamw_factors(*config);
  factors.scale = clip_scale(norm, config->max_norm);
  const cpu::AdamwLoops &loops = cpu::adamw_loops();
  cpu::parallel_ranges(n, cpu::kUpdateBlock, 8.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += cpu::kUpdateBlock) {
      const int64_t count = end - i < cpu::kUpdateBlock ? end - i : cpu::kUpdateBlock;
      loops.update(factors, param + i, m + i, v + i, grad + i, bf16_or_null ? bf16_or_null + i : nullptr, count);
    }
  });
  return MGRPO_OK;
}
