#include "mgrpo/moe.h"

#include <algorithm>

#include "check.h"
#include "layer_loops.h"
#include "moe_token.h"
#include "parallel.h"

using namespace mgrpo;
using namespace mgrpo::cpu;

namespace {

constexpr double kWorkPerLogit = 16;  // the cost of an exponential and k comparisons
constexpr int64_t kOutputBlock = 96;  // outputs of one expert that a thread computes at a time

bool valid_shape(int64_t tokens, int64_t experts, int64_t k) {
  return valid_sizes({tokens, experts}) && valid_sizes({tokens, k}) && k >= 1 && k <= experts && k <= MGRPO_MOE_MOST_CHOSEN &&
         tokens * k <= INT32_MAX && experts < INT32_MAX;
}

bool valid_first(const int32_t *first, int64_t experts, int64_t entries) {
  for (int64_t e = 0; e < experts; e++)
    if (first[e] > first[e + 1]) return false;
  return first[0] == 0 && first[experts] == entries;
}

template <class Weight, class Loop>
int32_t linear(Loop loop, const float *x, const Weight *w, const int32_t *first, float *y, int64_t entries, int64_t experts, int64_t in,
               int64_t out) {
  if (!valid_sizes({entries, in, out}) || !valid_sizes({experts, in, out}) || experts < 1 || first == nullptr ||
      !valid_first(first, experts, entries))
    return MGRPO_INVALID_ARGUMENT;
  if (entries == 0 || out == 0) return MGRPO_OK;
  if (y == nullptr || (in > 0 && any_null({x, w}))) return MGRPO_INVALID_ARGUMENT;
  const int64_t blocks = (out + kOutputBlock - 1) / kOutputBlock;
  std::atomic<bool> failed{false};
  parallel_for(experts * blocks, static_cast<double>(entries) * in * out, [&](int64_t i) {
    const int64_t e = i / blocks, from = first[e], rows = first[e + 1] - from;
    if (rows == 0) return;
    const int64_t begin = i % blocks * kOutputBlock, end = std::min(begin + kOutputBlock, out);
    note_bad_alloc(&failed, [&] {
      loop(x + from * in, in, w + (e * out + begin) * in, in, nullptr, y + from * out + begin, out, rows, in, end - begin);
    });
  });
  return failed ? MGRPO_OUT_OF_MEMORY : MGRPO_OK;
}

}  // namespace

int32_t mgrpo_moe_route_cpu(const float *logits, const int32_t *given_or_null, int32_t *expert, float *weight, int32_t *differs_or_null,
                            int64_t tokens, int64_t experts, int64_t k, int32_t normalise) {
  if (!valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({logits, expert, weight})) return MGRPO_INVALID_ARGUMENT;
  const auto given = [=](int64_t t) { return given_or_null != nullptr && given_or_null[t * k] != kFree ? given_or_null + t * k : nullptr; };
  for (int64_t t = 0; t < tokens; t++)
    if (given(t) != nullptr && !valid_choice(given(t), experts, k)) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(tokens, 1, kWorkPerLogit * tokens * experts, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      route_token(logits + t * experts, given(t), expert + t * k, weight + t * k,
                  differs_or_null != nullptr ? differs_or_null + t : nullptr, experts, k, normalise != 0);
  });
  return MGRPO_OK;
}

int32_t mgrpo_moe_route_bwd_cpu(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                float *dlogits, int64_t tokens, int64_t experts, int64_t k, int32_t normalise) {
  if (!valid_shape(tokens, experts, k)) return MGRPO_INVALID_ARGUMENT;
  if (tokens == 0) return MGRPO_OK;
  if (any_null({dweight, logits, expert, dlogits}) || !all_in_range(expert, tokens * k, 0, static_cast<int32_t>(experts)))
    return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(tokens, 1, kWorkPerLogit * tokens * experts, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      route_token_bwd(dweight + t * k, logits + t * experts, expert + t * k, dprob_or_null, dlogits + t * experts, experts, k,
                      normalise != 0);
  });
  return MGRPO_OK;
}

int32_t mgrpo_moe_sort_cpu(const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries, int64_t experts) {
  if (!valid_sizes({entries}) || !valid_sizes({experts}) || entries > INT32_MAX || experts < 1 || experts >= INT32_MAX || first == nullptr)
    return MGRPO_INVALID_ARGUMENT;
  if (entries > 0 && (any_null({expert, source, place}) || !all_in_range(expert, entries, 0, static_cast<int32_t>(experts))))
    return MGRPO_INVALID_ARGUMENT;
  std::fill_n(first, experts + 1, 0);
  for (int64_t i = 0; i < entries; i++) first[expert[i] + 1]++;
  for (int64_t e = 0; e < experts; e++) first[e + 1] += first[e];
  for (int64_t i = 0; i < entries; i++) {  // first[e] advances to the end of the rows of expert e
    place[i] = first[expert[i]]++;
    source[place[i]] = static_cast<int32_t>(i);
  }
  std::copy_backward(first, first + experts, first + experts + 1);
  first[0] = 0;
  return MGRPO_OK;
}

int32_t mgrpo_moe_gather_cpu(const float *x, const int32_t *source, float *y, int64_t tokens, int64_t k, int64_t d) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  const int64_t entries = tokens * k;
  if (entries == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, source, y}) || !all_in_range(source, entries, 0, static_cast<int32_t>(entries))) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(entries, 1, static_cast<double>(entries) * d, [=](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; s++) std::copy_n(x + source[s] / k * d, d, y + s * d);
  });
  return MGRPO_OK;
}

int32_t mgrpo_moe_linear_cpu(const float *x, const float *w, const int32_t *first, float *y, int64_t entries, int64_t experts, int64_t in,
                             int64_t out) {
  return linear(layer_loops().linear, x, w, first, y, entries, experts, in, out);
}

int32_t mgrpo_moe_linear_bf16_cpu(const float *x, const uint16_t *w, const int32_t *first, float *y, int64_t entries, int64_t experts,
                                  int64_t in, int64_t out, int32_t round) {
  return linear(linear_bf16(round), x, w, first, y, entries, experts, in, out);
}

int32_t mgrpo_moe_combine_cpu(const float *x, const int32_t *place, const float *weight_or_null, float *y, int64_t tokens, int64_t k,
                              int64_t d) {
  if (!valid_sizes({tokens, k, d}) || k < 1) return MGRPO_INVALID_ARGUMENT;
  const int64_t entries = tokens * k;
  if (entries == 0 || d == 0) return MGRPO_OK;
  if (any_null({x, place, y}) || !all_in_range(place, entries, 0, static_cast<int32_t>(entries))) return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(tokens, 1, static_cast<double>(entries) * d, [=](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++)
      layer_loops().moe_combine(x, place + t * k, weight_or_null != nullptr ? weight_or_null + t * k : nullptr, y + t * d, k, d);
  });
  return MGRPO_OK;
}

int32_t mgrpo_moe_weigh_cpu(float *g, float *a, const int32_t *source, const float *weight, float *dweight, int64_t entries, int64_t d) {
  if (!valid_sizes({entries, d}) || entries > INT32_MAX) return MGRPO_INVALID_ARGUMENT;
  if (entries == 0) return MGRPO_OK;
  if (any_null({source, weight, dweight}) || (d > 0 && any_null({g, a})) ||
      !all_in_range(source, entries, 0, static_cast<int32_t>(entries)))
    return MGRPO_INVALID_ARGUMENT;
  parallel_ranges(entries, 1, static_cast<double>(entries) * d, [=](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; s++) dweight[source[s]] = layer_loops().moe_weigh(g + s * d, a + s * d, weight[source[s]], d);
  });
  return MGRPO_OK;
}
