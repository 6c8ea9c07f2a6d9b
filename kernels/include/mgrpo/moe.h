// A mixture of experts in place of a decoder layer's MLP: the router's choice, the order of rows by expert, and the
// products of each expert with its rows.
//
// T tokens choose k of E experts each. Entry t * k + j is the j-th choice of token t; S = T k entries.
// `place` sorts the entries by expert and keeps the order within an expert. Entry i is row place[i] of
// the sorted rows, and row s is entry source[s]. The rows of expert e are [first[e], first[e + 1]).
// Layout, aliasing, threads, statuses and batch invariance are as in mgrpo/layers.h: the results of a
// token depend on that token alone, bit for bit. 1 <= k <= E, k <= MGRPO_MOE_MOST_CHOSEN, and S below
// 2^31. Non-finite numbers propagate to the weights of their token, and so to its output.
#pragma once
#include "mgrpo/status.h"

#define MGRPO_MOE_MOST_CHOSEN 64

// expert [T, k] receives the k largest of logits [T, E], largest first, and of equal ones the lower index first. With given_or_null [T,
// k], a token whose first given expert is not -1 goes to the given ones instead, which must be distinct and in [0, E), else
// MGRPO_INVALID_ARGUMENT. weight [T, k] is softmax(logits) over all E; with normalise != 0 divided by the sum of the k, which is the
// softmax over the k alone. differs_or_null [T]: 1 if a given set is not the set of the k largest.
MGRPO_API int32_t mgrpo_moe_route_cpu(const float *logits, const int32_t *given_or_null, int32_t *expert, float *weight,
                                      int32_t *differs_or_null, int64_t tokens, int64_t experts, int64_t k, int32_t normalise);

// dlogits [T, E] is written: the gradient through the weights of mgrpo_moe_route_cpu, whose expert [T, k] this is. The
// choice has no gradient. dprob_or_null [E] is the gradient of each token's softmax from elsewhere, the same for all.
MGRPO_API int32_t mgrpo_moe_route_bwd_cpu(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                          float *dlogits, int64_t tokens, int64_t experts, int64_t k, int32_t normalise);

// first [E + 1], source [S] and place [S] of expert [S], whose values must be in [0, E), else MGRPO_INVALID_ARGUMENT.
MGRPO_API int32_t mgrpo_moe_sort_cpu(const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries,
                                     int64_t experts);

// Computes y[s] = x[source[s] / k].  x [T, d], y [S, d].
MGRPO_API int32_t mgrpo_moe_gather_cpu(const float *x, const int32_t *source, float *y, int64_t tokens, int64_t k, int64_t d);

// Computes y[s, j] = sum_i x[s, i] w[e, j, i] for the rows s of each expert e.  x [S, in], w [E, out, in], y [S, out]. Weights of an expert
// without rows are not read. The results have the bits of mgrpo_linear_cpu and mgrpo_linear_bf16_cpu, and `round` has the same meaning.
MGRPO_API int32_t mgrpo_moe_linear_cpu(const float *x, const float *w, const int32_t *first, float *y, int64_t entries, int64_t experts,
                                       int64_t in, int64_t out);
MGRPO_API int32_t mgrpo_moe_linear_bf16_cpu(const float *x, const uint16_t *w, const int32_t *first, float *y, int64_t entries,
                                            int64_t experts, int64_t in, int64_t out, int32_t round);

// y[t] = sum_j weight[t, j] x[place[t k + j]], in the order of j.  x [S, d], weight [T, k], null for 1, y [T, d].
MGRPO_API int32_t mgrpo_moe_combine_cpu(const float *x, const int32_t *place, const float *weight_or_null, float *y, int64_t tokens,
                                        int64_t k, int64_t d);

// Backward pass of the weights. a [S, d] is the input of the experts' last product, and g [S, d] is its gradient as if every weight
// were 1. Writes dweight = g[s] · a[s] at the row's entry of dweight [S], then multiplies g[s] and a[s] by the row's weight.
MGRPO_API int32_t mgrpo_moe_weigh_cpu(float *g, float *a, const int32_t *source, const float *weight, float *dweight, int64_t entries,
                                      int64_t d);

// The same on a GPU: arrays in device memory; x, y, w, g and a of one dtype, float32 or bfloat16, all else float32 and
// int32. Arithmetic is float32. Calls only enqueue: expert, given, first, source and place are not seen by the host. A token
// that is given an expert outside of [0, E) or one twice has NaN for weights and expert 0; other values outside of their range
// are not read. mgrpo_moe_linear_cuda reads the weights of an expert once for four rows or eight, and is for few rows, as in decoding.
MGRPO_API int32_t mgrpo_moe_route_cuda(const float *logits, const int32_t *given_or_null, int32_t *expert, float *weight,
                                       int32_t *differs_or_null, int64_t tokens, int64_t experts, int64_t k, int32_t normalise,
                                       void *stream);
MGRPO_API int32_t mgrpo_moe_route_bwd_cuda(const float *dweight, const float *logits, const int32_t *expert, const float *dprob_or_null,
                                           float *dlogits, int64_t tokens, int64_t experts, int64_t k, int32_t normalise, void *stream);
MGRPO_API int32_t mgrpo_moe_sort_cuda(const int32_t *expert, int32_t *first, int32_t *source, int32_t *place, int64_t entries,
                                      int64_t experts, void *stream);
MGRPO_API int32_t mgrpo_moe_gather_cuda(const void *x, const int32_t *source, int32_t dtype, void *y, int64_t tokens, int64_t k, int64_t d,
                                        void *stream);
MGRPO_API int32_t mgrpo_moe_linear_cuda(const void *x, const void *w, const int32_t *first, int32_t dtype, void *y, int64_t entries,
                                        int64_t experts, int64_t in, int64_t out, void *stream);
MGRPO_API int32_t mgrpo_moe_combine_cuda(const void *x, const int32_t *place, const float *weight_or_null, int32_t dtype, void *y,
                                         int64_t tokens, int64_t k, int64_t d, void *stream);
MGRPO_API int32_t mgrpo_moe_weigh_cuda(void *g, void *a, const int32_t *source, const float *weight, int32_t dtype, float *dweight,
                                       int64_t entries, int64_t d, void *stream);
