// The policy objective from logits, which are overwritten by their gradient (docs/algorithm.md §5).
//
//   z -> log p(y), H -> L of policy_loss.h -> dL/dz, over z
//
// Only token-level ratios (TOKEN, CISPO) are supported. A token's gradient then depends on its own row, its trajectory's
// advantage and its coefficient c_j. So the row is differentiated while it is still in cache. A sequence ratio needs
// the log-probs of the whole trajectory first: mgrpo_token_logprob, mgrpo_policy_loss, mgrpo_token_logprob_bwd.
//
// policy_loss.h and logprob.h describe the sources and the arithmetic. The result of a row depends only on that row. Each of rows * vocab
// elements is read once and written once, and takes one exponential. No memory of that size is allocated.
#pragma once
#include "mgrpo/policy_loss.h"

// Logits [rows, ld] with `vocab` valid columns (1 <= vocab <= ld). Other columns are neither read nor written.
typedef struct mgrpo_logits {
  void *data;
  int32_t dtype;  // float32, bfloat16 or float64
  int64_t rows, vocab, ld;
  const int32_t *targets;  // [rows]
  double tau;              // at least MGRPO_LEAST_TEMPERATURE
  // 0: the gradient has the logits' dtype. MGRPO_BFLOAT16, for float32 logits on a GPU: a row's gradient is vocab bfloat16
  // numbers at the start of the row of logits. So rows are 2 ld of these apart, and the rest of the row is unspecified.
  int32_t gradient_dtype;
} mgrpo_logits;

// Row i of the logits is token first + i of the batch, whose logp_new and entropy are not read; its dtype is float64
// for float64 logits, else float32. Overwrites the logits by dL/dlogits and writes those tokens' entries of logp and
// entropy [batch tokens]. A token that the batch does not train gives a row of exact zeros, and logp = entropy = 0,
// for any content of its row. Calls over disjoint ranges make up a batch, so not all logits need exist at once.
//
// Set *bad_row to -1 before the first call of a batch. It becomes the first token whose row held NaN or +Inf, or whose
// target is outside 0..vocab-1. That row and its logp become NaN, and the function returns MGRPO_OK. If it returns
// MGRPO_REFUSED, *error names rule 1 or 4 of docs/algorithm.md §7. This function does not compute the loss, its statistics
// and the other refusals. Pass the written logp and entropy to mgrpo_policy_loss for these.
MGRPO_API int32_t mgrpo_policy_gradient_from_logits_cpu(const mgrpo_logits *logits, int64_t first, const mgrpo_loss_batch *batch,
                                                        const mgrpo_loss_config *config, void *logp, void *entropy, int64_t *bad_row,
                                                        mgrpo_loss_error *error);

// The same on a GPU. cu_seqlens, weight, advantage, coefficient and error are in host memory, and everything else, also bad_row, is in
// device memory. The function only enqueues.
MGRPO_API int32_t mgrpo_policy_gradient_from_logits_cuda(const mgrpo_logits *logits, int64_t first, const mgrpo_loss_batch *batch,
                                                         const mgrpo_loss_config *config, void *logp, void *entropy, int64_t *bad_row,
                                                         mgrpo_loss_error *error, void *stream);

// Calls mgrpo_policy_gradient_from_logits for all rows of a batch, and then mgrpo_policy_loss, which fills *sums and may refuse
// the micro-batch. Returns MGRPO_NON_FINITE if *bad_row (host memory) is not -1. After a refusal, logits, logp and entropy
// are unspecified.
MGRPO_API int32_t mgrpo_policy_loss_from_logits_cpu(const mgrpo_logits *logits, const mgrpo_loss_batch *batch,
                                                    const mgrpo_loss_config *config, void *logp, void *entropy, mgrpo_loss_sums *sums,
                                                    int64_t *bad_row, mgrpo_loss_error *error);
MGRPO_API int32_t mgrpo_policy_loss_from_logits_cuda(const mgrpo_logits *logits, const mgrpo_loss_batch *batch,
                                                     const mgrpo_loss_config *config, void *logp, void *entropy, mgrpo_loss_sums *sums,
                                                     int64_t *bad_row, mgrpo_loss_error *error, void *stream);
