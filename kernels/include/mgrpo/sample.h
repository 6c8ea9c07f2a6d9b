// Draws one token for each row from softmax(logits / temperature), optionally truncated.
//
// The filters apply in Hugging Face's order, each to the tokens that the previous one kept, all to softmax(logits / temperature):
//   top_k   keep z_v >= the k-th largest logit
//   top_p   keep v while the probability of all strictly larger logits, renormalised after top_k, is below top_p
//   min_p   keep v with p_v >= min_p * max p
// All ties at a cut are kept. The draw is the inverse of the cumulative distribution in token
// order at u. u is the 53-bit uniform of Philox block (position low, position high, 0, 0) under
// the row's key. One row's result depends only on that row's logits and settings. It does not
// depend on the batch, its order, or the number of threads or of a GPU's blocks. Backends differ
// by rounding, and so may their tokens if u is within rounding of a boundary. Temperature 0
// takes the largest logit, the smallest id among equals; its log-probs and filters are at
// tau = 1. Without filters no sort or selection is done, and the row is read from memory once.
#pragma once
#include "mgrpo/dtype.h"
#include "mgrpo/philox.h"
#include "mgrpo/status.h"

typedef struct mgrpo_sampling {
  double temperature;  // 0, or at least MGRPO_LEAST_TEMPERATURE
  double top_p;        // in [0, 1]; 0 or 1 = off
  double min_p;        // in [0, 1]; 0 = off
  int32_t top_k;       // >= 0; 0 = off
  uint32_t key[2];     // Philox key of the row's stream
  uint64_t position;   // the token's position in its stream
} mgrpo_sampling;

// logits [rows, ld] float32 or bfloat16 with `vocab` valid columns; sampling, token, logp_or_null,
// truncated_logp_or_null [rows]. logp is under softmax(logits / tau) of the whole vocabulary, truncated_logp
// under the distribution that the token is drawn from. MGRPO_NON_FINITE when a row holds NaN or +Inf, or only -Inf: that
// row's token is -1, its log-probs NaN, *bad_row (else -1) the first such row; other rows are sampled.
// MGRPO_INVALID_ARGUMENT, with *bad_row, for settings out of range; nothing is written then.
MGRPO_API int32_t mgrpo_sample_cpu(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                   const mgrpo_sampling *sampling, int32_t *token, float *logp_or_null, float *truncated_logp_or_null,
                                   int64_t *bad_row);

// Returns the first row with settings out of range, or -1.
MGRPO_API int64_t mgrpo_sampling_out_of_range(const mgrpo_sampling *sampling, int64_t rows);

// The same on a GPU. Logits and outputs are in device memory, sampling and bad_row are in host memory. The function waits for the stream.
MGRPO_API int32_t mgrpo_sample_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                    const mgrpo_sampling *sampling, int32_t *token, float *logp_or_null, float *truncated_logp_or_null,
                                    int64_t *bad_row, void *stream);

// The same, but it only enqueues. sampling and bad_row are in device memory, too. All rows of sampling must be in range, and *bad_row must
// be -1 before.
MGRPO_API int32_t mgrpo_sample_enqueue_cuda(const void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                            const mgrpo_sampling *sampling, int32_t *token, float *logp_or_null,
                                            float *truncated_logp_or_null, int64_t *bad_row, void *stream);
