// The gated delta rule (Yang et al. 2024, arXiv 2412.06464) of Qwen3-Next and Qwen3.5, as torch_recurrent_gated_delta_rule of transformers
// computes it with use_qk_l2norm_in_kernel. A row of x [T, 2 key_heads key_dim + value_heads value_dim] holds the heads of queries q, keys
// k and values v. A row of ba [T, 2 value_heads] holds b, then a. Value head h uses query and key head h / (value_heads / key_heads). With
//
//   k' = k / sqrt(|k|^2 + 1e-6), q' = q / sqrt(|q|^2 + 1e-6) / sqrt(key_dim),
//   beta = 1 / (1 + exp(-b)), g = -exp(a_log) softplus(a + dt_bias),
//
// a head's state S [key_dim, value_dim], zero before a sequence, and its row of y [T, value_heads, value_dim] are
//
//   S <- exp(g) S, S <- S + k' r^T beta with r = v - S^T k', y = S^T q'.
//
// The conventions of mgrpo/layers.h hold: a row's bits depend only on the rows of its sequence up to itself. They depend neither on other
// sequences, nor on the division of a sequence into segments, pieces or calls, nor on the number of threads.
#pragma once
#include "mgrpo/layers.h"

// value_heads is a multiple of key_heads; key_dim and value_dim are 1 to 256. a_log, dt_bias [value_heads], float32.
typedef struct mgrpo_delta_rule {
  int64_t key_heads, value_heads, key_dim, value_dim;
  const float *a_log, *dt_bias;
} mgrpo_delta_rule;

// The maximum number of rows of a piece.
#define MGRPO_PIECE_ROWS 64

// Packed rows, divided into pieces of at most MGRPO_PIECE_ROWS consecutive rows of one segment. Piece p is rows [first[p], first[p +
// 1]) and comes after the last row of piece before[p], which is below p; -1 begins a sequence. Several pieces may follow one piece;
// they then follow its last row. A chain is a run of pieces, each the only follower of the one before it. Chains of the same level do
// not depend on each other; the chain before a chain has a lower level. On a GPU all arrays except `level` are in device memory.
typedef struct mgrpo_pieces {
  int64_t count, chains, levels;
  const int32_t *first, *before;  // [count + 1], [count]
  const int32_t *chain, *order;   // [chains + 1] first piece of each chain, [chains] chains by level
  const int32_t *level;           // [levels + 1] in host memory: level i is chains order[level[i]] to order[level[i + 1] - 1]
} mgrpo_pieces;

// Returns the size of `to` for mgrpo_pieces_of, in integers, or -1 if the sizes are negative or too large.
MGRPO_API int64_t mgrpo_pieces_size(int64_t rows, int64_t batch);

// Divides segments into pieces. cu and follows_or_null are as for mgrpo_attention_packed_cpu. All arrays are in host memory, and the arrays
// of `pieces` point into `to`. Returns MGRPO_INVALID_ARGUMENT if cu does not rise from 0 or if a segment follows a row outside of [-1,
// cu[s]).
MGRPO_API int32_t mgrpo_pieces_of(const int32_t *cu, const int32_t *follows_or_null, int64_t batch, int32_t *to, mgrpo_pieces *pieces);

// y, r [T, value_heads, value_dim] and the state after each piece, states [pieces.count, value_heads, key_dim, value_dim], are written.
// T = pieces.first[pieces.count].
MGRPO_API int32_t mgrpo_delta_rule_packed_cpu(const float *x, const float *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, float *y,
                                              float *r, float *states);

// dx and dba, of the sizes of x and ba, are written; da_log_or_null and ddt_bias_or_null [value_heads] are accumulated into, with the rows
// in order. r and states are results of the forward pass. Gradients are computed piece by piece in the WY form of the paper. If
// several pieces come after a state, its gradient is the sum of their gradients, the last piece first.
MGRPO_API int32_t mgrpo_delta_rule_packed_bwd_cpu(const float *dy, const float *x, const float *ba, const float *r, const float *states,
                                                  mgrpo_delta_rule rule, mgrpo_pieces pieces, float *dx, float *dba, float *da_log_or_null,
                                                  float *ddt_bias_or_null);

// The same for rows of sequences with states [slots, value_heads, key_dim, value_dim], with slot and pos as for
// mgrpo_short_conv_states_cpu. The states of all sequences that have rows are advanced. y has the bits of mgrpo_delta_rule_packed_cpu.
MGRPO_API int32_t mgrpo_delta_rule_states_cpu(const float *x, const float *ba, mgrpo_delta_rule rule, float *states, int64_t slots,
                                              const int32_t *slot, const int32_t *pos, float *y, int64_t rows);

// The same on a GPU, with the conventions of mgrpo/layers.h: x, ba, y, dy, dx and dba have one dtype, float32 or
// bfloat16. r, states, a_log, dt_bias and their gradients are float32. `rows` is T. A row whose slot is
// outside of [0, slots) gives NaN and changes no state. Scratch of the backward pass, in floats: (pieces.count
// + pieces.chains) value_heads key_dim value_dim + T (value_heads (value_dim + 2) + 2 key_heads key_dim).
MGRPO_API int32_t mgrpo_delta_rule_packed_cuda(const void *x, const void *ba, mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype,
                                               void *y, float *r, float *states, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_delta_rule_packed_bwd_cuda(const void *dy, const void *x, const void *ba, const float *r, const float *states,
                                                   mgrpo_delta_rule rule, mgrpo_pieces pieces, int32_t dtype, void *dx, void *dba,
                                                   float *da_log_or_null, float *ddt_bias_or_null, int64_t rows, void *stream);
MGRPO_API int32_t mgrpo_delta_rule_states_cuda(const void *x, const void *ba, mgrpo_delta_rule rule, int32_t dtype, float *states,
                                               int64_t slots, const int32_t *slot, const int32_t *pos, void *y, int64_t rows, void *stream);
