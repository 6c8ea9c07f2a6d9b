// The log-probability of the target and the entropy of softmax(logits / tau), and their gradient with respect to the logits
// (docs/algorithm.md §5.5).
//
//   forward    d_v = (z_v - max z) / tau   S = sum exp d_v   logp = d_y - ln S   H = ln S - sum d_v exp d_v / S
//   backward   dz_v = (1/tau) [ G (1[v = y] - p_v) - E p_v (ln p_v + H) ]   with G = dL/dlogp, E = dL/dH
//
// For float32 and bfloat16 logits the arithmetic on elements is float32, and sums are float64. For float64 logits everything is float64.
// The result of a row depends only on that row, and not on the other rows or on the number of threads. The forward pass reads each of rows
// * vocab elements once from memory. The backward pass reads and writes each once. No scratch memory of the size rows * vocab is allocated.
#pragma once
#include "mgrpo/dtype.h"
#include "mgrpo/status.h"

// logits [rows, ld], `vocab` valid columns (1 <= vocab <= ld; columns from vocab on are neither read nor written), dtype float32,
// bfloat16 or float64. targets [rows]. mask_or_null [rows]: a row with 0 is not read and gets logp = entropy = 0. tau >=
// MGRPO_LEAST_TEMPERATURE. logp and entropy_or_null [rows], float64 for float64 logits, else float32. A logit of -Inf is a column
// of probability 0; at the target it makes logp -Inf. Returns MGRPO_NON_FINITE if a read row holds NaN or +Inf,
// MGRPO_INVALID_ARGUMENT if a read row's target is outside 0..vocab-1; *bad_row is then the first such row, else -1. The outputs
// of a row with NaN or +Inf are NaN, and the other rows are computed. On a CPU no row is computed if a target is out of range.
MGRPO_API int32_t mgrpo_token_logprob_cpu(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                          const int32_t *targets, const uint8_t *mask_or_null, double tau, void *logp,
                                          void *entropy_or_null, int64_t *bad_row);

// Overwrites the logits by dL/dlogits. dlogp and dentropy_or_null [rows] have the type of the forward pass's outputs. A row whose mask is 0
// becomes exactly 0 and is not read. The statuses are as above. MGRPO_NON_FINITE is also returned for a row in which all logits are -Inf.
MGRPO_API int32_t mgrpo_token_logprob_bwd_cpu(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                              const uint8_t *mask_or_null, double tau, const void *dlogp, const void *dentropy_or_null,
                                              int64_t *bad_row);

// The same on a GPU. Every array is in device memory, and bad_row is in host memory. The functions wait for the stream, because the return
// value depends on the data. A target out of range gives MGRPO_NON_FINITE.
MGRPO_API int32_t mgrpo_token_logprob_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                           const int32_t *targets, const uint8_t *mask_or_null, double tau, void *logp,
                                           void *entropy_or_null, int64_t *bad_row, void *stream);
MGRPO_API int32_t mgrpo_token_logprob_bwd_cuda(void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld, const int32_t *targets,
                                               const uint8_t *mask_or_null, double tau, const void *dlogp, const void *dentropy_or_null,
                                               int64_t *bad_row, void *stream);
