// The policy objective on token log-probabilities: loss, gradient and statistics (docs/algorithm.md §5 to 7).
//
//   L = sum_{j in R} c_j sum_t u_t [ v_t l_t + beta kl_t - eta H_t ]
//
// R: the trajectories with w_j > 0 and T_j > 0; u_t: the mask; v_t, l_t: §5.1 and 5.2; kl_t, H_t: §5.4.
//
// Sources: M-GRPO 2511.13288 eq 14-19; PPO 1707.06347 eq 7; DAPO 2503.14476; GSPO 2507.18071 eq 7; CISPO
// 2506.13585 eq 4-5; Dr. GRPO 2503.20783; dual clip 1912.09729; k1, k2, k3: Schulman 2020.
//
// c_j depends on the whole optimizer batch. So a caller calls mgrpo_loss_coefficients once for the trajectories of the batch. Then it calls
// mgrpo_policy_loss for each micro-batch with its coefficients. It merges the sums of the micro-batches by mgrpo_loss_sums_merge, and
// finally calls mgrpo_loss_stats_finalize. The losses and gradients of the micro-batches add up to the loss and gradient of the batch.
//
// All arithmetic is float64 for every array type. On a CPU the tokens of a trajectory are added in order. On a GPU 128 threads share a
// trajectory. Each adds its tokens in order, and their sums are added in a fixed tree (`block_reduce`). Trajectories are added in order.
// So the result depends neither on the number of threads nor on the run. The two backends differ by rounding. In float32 a token takes
// 21 bytes of reads and 8 bytes of writes.
#pragma once
#include "mgrpo/dtype.h"
#include "mgrpo/status.h"

enum mgrpo_ratio {
  MGRPO_RATIO_TOKEN = 0,               // rho = exp(delta_t)
  MGRPO_RATIO_SEQUENCE_PRODUCT = 1,    // rho = exp(sum_t delta_t)
  MGRPO_RATIO_SEQUENCE_GEOMETRIC = 2,  // rho = exp(mean_t delta_t)
  MGRPO_RATIO_CISPO = 3,               // clipped exp(delta_t) inside a stop-gradient
};

enum mgrpo_aggregation {
  MGRPO_AGGREGATION_TRAJECTORY_MEAN = 0,  // c_j = w_j / (G W_g T_j)
  MGRPO_AGGREGATION_TOKEN_MEAN = 1,       // c_j = w_j / sum_R w T
  MGRPO_AGGREGATION_CONSTANT = 2,         // c_j = w_j / (G W_g max_length)
};

enum mgrpo_kl { MGRPO_KL_NONE = 0, MGRPO_KL_K1 = 1, MGRPO_KL_K2 = 2, MGRPO_KL_K3 = 3 };

typedef struct mgrpo_loss_config {
  int32_t ratio;           // enum mgrpo_ratio
  int32_t aggregation;     // enum mgrpo_aggregation
  int32_t kl;              // enum mgrpo_kl
  double eps_low;          // in [0, 1]
  double eps_high;         // >= 0
  double dual_clip;        // C > 1; 0 = off
  double cispo_low;        // in [0, 1]; 1 = no lower bound
  double cispo_high;       // >= 0
  double tis_cap;          // C_tis > 0; 0 = off
  double log_ratio_clamp;  // D_max in (0, 88]; 0 = none
  double kl_coef;          // beta >= 0; needs kl != NONE when > 0
  double entropy_coef;     // eta, finite
  double max_length;       // L_max > 0 for CONSTANT; ignored otherwise
} mgrpo_loss_config;

// A packed batch: trajectory j is tokens cu_seqlens[j] .. cu_seqlens[j+1]-1. Null arrays are not supplied.
typedef struct mgrpo_loss_batch {
  int64_t trajectories;
  int64_t tokens;              // cu_seqlens[trajectories]
  const int64_t *cu_seqlens;   // [trajectories + 1], from 0, never decreasing
  const double *weight;        // [trajectories]
  const double *advantage;     // [trajectories]
  const double *coefficient;   // [trajectories]: c_j
  const uint8_t *mask;         // [tokens]: u_t, 0 = never read
  int32_t dtype;               // of the arrays below and of the gradients: float32 or float64
  const void *logp_new;        // [tokens]
  const void *logp_old;        // [tokens]
  const void *logp_behaviour;  // [tokens] or null
  const void *logp_ref;        // [tokens] or null
  const void *entropy;         // [tokens] or null
} mgrpo_loss_batch;

// Totals over the whole optimizer batch.
typedef struct mgrpo_loss_totals {
  int64_t tokens;              // sum of T_j over R
  int64_t trajectories;        // size of R
  int64_t groups;              // G
  int64_t empty_trajectories;  // w_j > 0 and T_j = 0
  double weighted_tokens;      // sum of w_j T_j over R
} mgrpo_loss_totals;

// The raw sums of one micro-batch. mgrpo_loss_sums_merge merges them by addition, minimum and maximum. "weighted" means weighted by w_j.
typedef struct mgrpo_loss_sums {
  double loss_policy, loss_kl, loss_entropy;                                // parts of L, signed and scaled; they add up to L
  double weight;                                                            // sum of w_j over trained tokens
  double clip_low, clip_high, dual_clip, log_ratio_clamped, tis_truncated;  // weighted counts
  double ratio, kl_k1, kl_k3, entropy, ref_kl, tis, behaviour_gap;          // weighted sums
  double ratio_min, ratio_max, tis_max, behaviour_gap_max;                  // +Inf, -Inf, -Inf, -Inf over no tokens
  int64_t tokens;                                                           // trained tokens
  uint8_t has_entropy, has_ref_kl, has_tis, has_behaviour;                  // whether those sums were collected
} mgrpo_loss_sums;

// The statistics of docs/algorithm.md §5.6. Fields without data (see has_* of the sums) are NaN.
typedef struct mgrpo_loss_stats {
  double loss, loss_policy, loss_kl, loss_entropy;
  int64_t tokens, trajectories, groups, empty_trajectories;
  double weighted_tokens;
  double clip_frac_low, clip_frac_high, dual_clip_frac;
  double ratio_mean, ratio_min, ratio_max;
  double approx_kl_k1, approx_kl_k3, log_ratio_clamped_frac;
  double entropy_mean, ref_kl_mean;
  double tis_mean, tis_max, tis_truncated_frac;
  double behaviour_gap_mean, behaviour_gap_max;
} mgrpo_loss_stats;

enum mgrpo_loss_error_code {
  MGRPO_LOSS_OK = 0,
  MGRPO_LOSS_BAD_WEIGHT = 1,
  MGRPO_LOSS_EMPTY_BATCH = 2,
  MGRPO_LOSS_NON_FINITE_INPUT = 3,
  MGRPO_LOSS_MISSING_INPUT = 4,
  MGRPO_LOSS_POSITIVE_LOGPROB = 5,
  MGRPO_LOSS_RATIO_OVERFLOW = 6,
  MGRPO_LOSS_NON_FINITE_VALUE = 7,
};

enum mgrpo_loss_field {
  MGRPO_FIELD_NONE = 0,
  MGRPO_FIELD_ADVANTAGE = 1,
  MGRPO_FIELD_LOGP_NEW = 2,
  MGRPO_FIELD_LOGP_OLD = 3,
  MGRPO_FIELD_LOGP_BEHAVIOUR = 4,
  MGRPO_FIELD_LOGP_REF = 5,
  MGRPO_FIELD_ENTROPY = 6,
  MGRPO_FIELD_RATIO = 7,
  MGRPO_FIELD_REF_KL = 8,
};

// A refusal of docs/algorithm.md §7; entries that do not apply are -1 (trajectory, token) or 0 (field, count).
typedef struct mgrpo_loss_error {
  int32_t code;   // enum mgrpo_loss_error_code
  int32_t field;  // enum mgrpo_loss_field
  int64_t trajectory, token, count;
} mgrpo_loss_error;

// Computes c_j of every trajectory of an optimizer batch. It is 0 for a trajectory that is not in R. group, weight, advantage, trained
// (T_j, the number of unmasked tokens) and coefficient have one element for each trajectory, in host memory on every backend. The function
// refuses bad weights, an empty R and non-finite advantages, in this order: it returns MGRPO_REFUSED and fills *error.
MGRPO_API int32_t mgrpo_loss_coefficients(int64_t trajectories, const int64_t *group, const double *weight, const double *advantage,
                                          const int64_t *trained, const mgrpo_loss_config *config, double *coefficient,
                                          mgrpo_loss_totals *totals, mgrpo_loss_error *error);

// Computes the loss and the gradient of one micro-batch. dlogp_new_or_null [tokens] receives dL/dnew, and dentropy_or_null [tokens]
// receives dL/dH. If there is an entropy term, dL/dH must be given with dL/dnew. Both are exactly 0 at tokens that are not trained. A
// micro-batch without trained tokens is valid, and all its sums are 0. If one of the rules 3 to 8 of docs/algorithm.md §7 applies
// (MGRPO_LOSS_NON_FINITE_INPUT to MGRPO_LOSS_NON_FINITE_VALUE), the function returns MGRPO_REFUSED and fills *error for the first such
// rule. Then outputs are unspecified, and no parameter may be updated. Indices in the error count within this micro-batch.
MGRPO_API int32_t mgrpo_policy_loss_cpu(const mgrpo_loss_batch *batch, const mgrpo_loss_config *config, void *dlogp_new_or_null,
                                        void *dentropy_or_null, mgrpo_loss_sums *sums, mgrpo_loss_error *error);

// The same on a GPU. cu_seqlens, weight, advantage, coefficient, sums and error are in host memory. The token arrays and gradients are in
// device memory. The function waits for the stream, because its sums and its return value depend on the data.
MGRPO_API int32_t mgrpo_policy_loss_cuda(const mgrpo_loss_batch *batch, const mgrpo_loss_config *config, void *dlogp_new_or_null,
                                         void *dentropy_or_null, mgrpo_loss_sums *sums, mgrpo_loss_error *error, void *stream);

// Sets the sums to their values for a batch without tokens.
MGRPO_API void mgrpo_loss_sums_init(mgrpo_loss_sums *sums);
// Adds part to into. The order of parts changes only the last bits.
MGRPO_API void mgrpo_loss_sums_merge(mgrpo_loss_sums *into, const mgrpo_loss_sums *part);
// Computes the statistics of the whole batch from its merged sums.
MGRPO_API void mgrpo_loss_stats_finalize(const mgrpo_loss_sums *sums, const mgrpo_loss_totals *totals, mgrpo_loss_stats *stats);
