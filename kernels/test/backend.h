// Backends of the conformance suite. Every test with a Backend runs once on the CPU, and once on a GPU if the build supports GPUs and the
// machine has one.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mgrpo/adamw.h"
#include "mgrpo/advantage.h"
#include "mgrpo/attention.h"
#include "mgrpo/delta_rule.h"
#include "mgrpo/glu.h"
#include "mgrpo/heads.h"
#include "mgrpo/logprob.h"
#include "mgrpo/lora.h"
#include "mgrpo/moe.h"
#include "mgrpo/policy_loss.h"
#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo/quant.h"
#include "mgrpo/rms_norm.h"
#include "mgrpo/sample.h"
#include "mgrpo/short_conv.h"

namespace conformance {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Allocates arrays and calls kernels. The stream is the default one.
struct Backend {
  std::string name;
  bool is_emulated;
  bool (*available)();
  void *(*allocate)(size_t bytes);
  void (*release)(void *);
  void (*upload)(void *to, const void *from, size_t bytes);
  void (*download)(void *to, const void *from, size_t bytes);

  decltype(&mgrpo_group_advantage_cpu) group_advantage;
  decltype(&mgrpo_token_logprob_cpu) token_logprob;
  decltype(&mgrpo_token_logprob_bwd_cpu) token_logprob_bwd;
  decltype(&mgrpo_policy_loss_cpu) policy_loss;
  decltype(&mgrpo_policy_gradient_from_logits_cpu) policy_gradient_from_logits;
  decltype(&mgrpo_policy_loss_from_logits_cpu) policy_loss_from_logits;
  decltype(&mgrpo_grad_norm_cpu) grad_norm;
  decltype(&mgrpo_adamw_cpu) adamw;
  decltype(&mgrpo_sample_cpu) sample;

  // Layers. They take the arguments of the GPU functions. The CPU returns MGRPO_UNSUPPORTED unless the type is float32.
  int32_t (*rms_norm)(const void *x, const void *w, int32_t dtype, float offset, double eps, void *y, float *inv_rms, int64_t rows,
                      int64_t d);
  int32_t (*add_rms_norm)(const void *x, const void *residual, const void *w, int32_t dtype, float offset, double eps, void *sum, void *y,
                          float *inv_rms, int64_t rows, int64_t d);
  int32_t (*rms_norm_bwd)(const void *dy, const void *x, const void *w, const float *inv_rms, const void *dx_more, int32_t dtype,
                          float offset, void *dx, float *dw, int64_t rows, int64_t d);
  int32_t (*glu)(int32_t gates, const void *gate_up, int32_t dtype, void *y, int64_t rows, int64_t f);
  int32_t (*glu_bwd)(int32_t gates, const void *dy, const void *gate_up, int32_t dtype, void *dgate_up, int64_t rows, int64_t f);
  int32_t (*split_heads)(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k, void *v, float *inv_q, float *inv_k,
                         int64_t rows);
  int32_t (*split_heads_bwd)(const void *dq, const void *dk, const void *dv, const void *qkv, mgrpo_heads layout, const float *inv_q,
                             const float *inv_k, int32_t dtype, void *dqkv, float *dw_q, float *dw_k, int64_t rows);
  int32_t (*cache_heads)(const void *qkv, mgrpo_heads layout, int32_t dtype, void *q, void *k_cache, void *v_cache, mgrpo_pages pages,
                         const int32_t *sequence, int64_t rows);
  int32_t (*attention_cached)(const void *q, const void *k_cache, const void *v_cache, mgrpo_pages pages, const int32_t *sequence,
                              const int32_t *length, const float *sinks, int32_t dtype, void *out, int64_t rows, int64_t heads, float scale,
                              int64_t window);
  int32_t (*lora_add)(const mgrpo_lora *adapters, int64_t count, const int32_t *which, const void *x, int32_t dtype, void *y, int64_t rows,
                      int64_t k, int64_t n);
  decltype(&mgrpo_moe_route_cpu) moe_route;
  decltype(&mgrpo_moe_route_bwd_cpu) moe_route_bwd;
  decltype(&mgrpo_moe_sort_cpu) moe_sort;
  int32_t (*moe_gather)(const void *x, const int32_t *source, int32_t dtype, void *y, int64_t tokens, int64_t k, int64_t d);
  int32_t (*moe_linear)(const void *x, const void *w, const int32_t *first, int32_t dtype, void *y, int64_t entries, int64_t experts,
                        int64_t in, int64_t out);
  int32_t (*moe_combine)(const void *x, const int32_t *place, const float *weight, int32_t dtype, void *y, int64_t tokens, int64_t k,
                         int64_t d);
  int32_t (*moe_weigh)(void *g, void *a, const int32_t *source, const float *weight, int32_t dtype, float *dweight, int64_t entries,
                       int64_t d);
  int32_t (*dequantise)(const void *w, int32_t type, const int32_t *rows, int32_t dtype, void *y, int64_t count, int64_t n, int64_t k);
  int32_t (*short_conv_packed)(const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows, int64_t batch,
                               int32_t dtype, void *y, int64_t rows);
  int32_t (*short_conv_packed_bwd)(const void *dy, const void *bcx, mgrpo_short_conv conv, const int32_t *cu, const int32_t *follows,
                                   int64_t batch, int32_t dtype, void *dbcx, float *dw, float *dbias, int64_t rows);
  int32_t (*short_conv_cached)(const void *bcx, mgrpo_short_conv conv, int32_t dtype, void *cache, mgrpo_pages pages,
                               const int32_t *sequence, const int32_t *pos, void *y, int64_t rows);
  int32_t (*short_conv_states)(const void *u, mgrpo_short_conv conv, int32_t dtype, void *states, int64_t slots, const int32_t *slot,
                               const int32_t *pos, void *y, int64_t rows);
  int32_t (*delta_rule_packed)(const void *x, const void *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *y, float *r,
                               float *states, int64_t rows);
  int32_t (*delta_rule_packed_bwd)(const void *dy, const void *x, const void *ba, const float *r, const float *states,
                                   mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *dx, void *dba, float *da_log,
                                   float *ddt_bias, int64_t rows);
  int32_t (*delta_rule_states)(const void *x, const void *ba, mgrpo_delta_rule rule, int32_t dtype, float *states, int64_t slots,
                               const int32_t *slot, const int32_t *pos, void *y, int64_t rows);
  bool refuses_places;  // whether a layer refuses places outside a table or cache; a call that only enqueues work cannot
};

const Backend &cpu();
std::vector<const Backend *> backends();

// Returns whether MGRPO_REQUIRE_GPU is set. If so, a test without a device fails, and a program that ran no test on a GPU fails too.
bool gpu_required();

// Counts a test on the backend. The program prints the counts of all backends except the CPU when it ends.
void count_run(const Backend &);

// Holds n elements in a backend's memory between two guards. The destructor fails the test if a guard was overwritten. Unless `aligned`
// is set, the address is not a multiple of 16 bytes, like the address of a slice.
template <class T>
class Buffer {
 public:
  Buffer(const Backend &backend, const std::vector<T> &values, bool aligned = false)
      : backend_(backend), n_(values.size()), guard_(aligned ? 16 : 17) {
    std::vector<T> all(n_ + 2 * guard_);
    std::memset(static_cast<void *>(all.data()), kMark, bytes());
    std::copy(values.begin(), values.end(), all.begin() + guard_);
    memory_ = static_cast<T *>(backend_.allocate(bytes()));
    backend_.upload(memory_, all.data(), bytes());
  }
  // Creates an output, filled with a pattern that no kernel writes.
  Buffer(const Backend &backend, size_t n, bool aligned = false) : Buffer(backend, std::vector<T>(n, T(-77)), aligned) {}
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() {
    std::vector<T> all(n_ + 2 * guard_);
    backend_.download(all.data(), memory_, bytes());
    const auto *raw = reinterpret_cast<const unsigned char *>(all.data());
    for (size_t i = 0; i < guard_ * sizeof(T); i++) {
      EXPECT_EQ(raw[i], kMark) << "written before the buffer";
      EXPECT_EQ(raw[bytes() - 1 - i], kMark) << "written after the buffer";
    }
    backend_.release(memory_);
  }

  T *get() { return memory_ + guard_; }
  std::vector<T> values() const {
    std::vector<T> out(n_);
    if (n_ > 0) backend_.download(out.data(), memory_ + guard_, n_ * sizeof(T));
    return out;
  }

 private:
  static constexpr unsigned char kMark = 0xA5;
  size_t bytes() const { return (n_ + 2 * guard_) * sizeof(T); }

  const Backend &backend_;
  size_t n_, guard_;
  T *memory_;
};

class OnEveryBackend : public testing::TestWithParam<const Backend *> {
 protected:
  void SetUp() override {
    if (GetParam()->available())
      count_run(*GetParam());
    else if (gpu_required())
      FAIL() << GetParam()->name << ": no device, and MGRPO_REQUIRE_GPU is set";
    else
      GTEST_SKIP() << GetParam()->name << ": no device";
  }
  const Backend &backend() const { return *GetParam(); }
};

// Skips a test of 70,000 rows on an emulated GPU.
#define MGRPO_SKIP_EMULATED() \
  if (backend().is_emulated) GTEST_SKIP() << "takes minutes on an emulated GPU, which strides over rows in every test"

#define MGRPO_EVERY_BACKEND(Suite)                                              \
  INSTANTIATE_TEST_SUITE_P(, Suite, testing::ValuesIn(conformance::backends()), \
                           [](const testing::TestParamInfo<const conformance::Backend *> &info) { return info.param->name; })

inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline std::vector<double> normals(size_t n, unsigned seed, double scale = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> draw(0, scale);
  std::vector<double> out(n);
  for (double &v : out) v = draw(generator);
  return out;
}

template <class To, class From>
std::vector<To> cast(const std::vector<From> &in) {
  return std::vector<To>(in.begin(), in.end());
}

// Checks the largest difference relative to max(1, |want|).
template <class T>
void expect_near(const std::vector<T> &got, const std::vector<double> &want, double tolerance, const char *what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); i++) {
    const double g = static_cast<double>(got[i]);
    if (g == want[i]) continue;
    ASSERT_LE(std::abs(g - want[i]) / std::max(1.0, std::abs(want[i])), tolerance) << what << " " << i << ": " << g << ", want " << want[i];
  }
}

}  // namespace conformance
