// One C function for each kernel, which calls its CPU or CUDA implementation.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

typedef struct mgrpo_backend {
  const mgrpo_gpu *gpu;  // NULL: the CPU
  void *stream;
} mgrpo_backend;

typedef struct mgrpo_outcome {
  int32_t status;
  char *cause;  // CUDA's error message, which the caller frees; else NULL
} mgrpo_outcome;

static inline mgrpo_outcome outcome(mgrpo_backend backend, int32_t status) {
  mgrpo_outcome r = {status, NULL};
  // CUDA keeps its message per thread, and Go may make its next call on another thread.
  if (backend.gpu && (status == MGRPO_CUDA_ERROR || status == MGRPO_OUT_OF_MEMORY)) r.cause = strdup(backend.gpu->mgrpo_cuda_last_error());
  return r;
}

#ifdef MGRPO_CUDA
static inline const mgrpo_gpu *linked_gpu(void) {
#define MGRPO_LINKED(name) name,
  static const mgrpo_gpu gpu = {MGRPO_GPU_FUNCTIONS(MGRPO_LINKED)};
#undef MGRPO_LINKED
  return &gpu;
}
#endif

// Memory of a GPU. On a CPU, kernels use the caller's memory.
static inline mgrpo_outcome allocate(mgrpo_backend b, int64_t bytes, void **memory) {
  return outcome(b, b.gpu->mgrpo_allocate_cuda(bytes, memory, b.stream));
}

static inline mgrpo_outcome release(mgrpo_backend b, void *memory) { return outcome(b, b.gpu->mgrpo_release_cuda(memory, b.stream)); }

static inline mgrpo_outcome upload(mgrpo_backend b, void *memory, void *host, int64_t bytes) {
  return outcome(b, b.gpu->mgrpo_upload_cuda(memory, host, bytes, b.stream));
}

static inline mgrpo_outcome download(mgrpo_backend b, void *host, void *memory, int64_t bytes) {
  return outcome(b, b.gpu->mgrpo_download_cuda(host, memory, bytes, b.stream));
}

#define MGRPO_DISPATCH(backend, name, ...) \
  outcome(backend, (backend).gpu ? (backend).gpu->mgrpo_##name##_cuda(__VA_ARGS__, (backend).stream) : mgrpo_##name##_cpu(__VA_ARGS__))

static inline mgrpo_outcome group_advantage(mgrpo_backend b, int32_t dtype, void *rewards, void *weights, void *offsets, int64_t groups,
                                            const mgrpo_convention *convention, void *advantages, void *stats,
                                            mgrpo_advantage_error *error) {
  return MGRPO_DISPATCH(b, group_advantage, rewards, dtype, (const double *)weights, (const int64_t *)offsets, groups, convention,
                        advantages, (mgrpo_group_stats *)stats, error);
}

static inline mgrpo_outcome token_logprob(mgrpo_backend b, void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                          void *targets, void *mask, double tau, void *logp, void *entropy, int64_t *bad_row) {
  return MGRPO_DISPATCH(b, token_logprob, logits, dtype, rows, vocab, ld, (const int32_t *)targets, (const uint8_t *)mask, tau, logp,
                        entropy, bad_row);
}

static inline mgrpo_outcome token_logprob_bwd(mgrpo_backend b, void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                              void *targets, void *mask, double tau, void *dlogp, void *dentropy, int64_t *bad_row) {
  return MGRPO_DISPATCH(b, token_logprob_bwd, logits, dtype, rows, vocab, ld, (const int32_t *)targets, (const uint8_t *)mask, tau, dlogp,
                        dentropy, bad_row);
}

static inline mgrpo_outcome policy_loss(mgrpo_backend b, void *batch, void *config, void *dlogp_new, void *dentropy, void *sums,
                                        void *error) {
  return MGRPO_DISPATCH(b, policy_loss, (const mgrpo_loss_batch *)batch, (const mgrpo_loss_config *)config, dlogp_new, dentropy,
                        (mgrpo_loss_sums *)sums, (mgrpo_loss_error *)error);
}

static inline mgrpo_outcome policy_loss_from_logits(mgrpo_backend b, void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                                    void *targets, double tau, void *batch, void *config, void *logp, void *entropy,
                                                    void *sums, int64_t *bad_row, void *error) {
  const mgrpo_logits z = {logits, dtype, rows, vocab, ld, (const int32_t *)targets, tau, 0};
  return MGRPO_DISPATCH(b, policy_loss_from_logits, &z, (const mgrpo_loss_batch *)batch, (const mgrpo_loss_config *)config, logp, entropy,
                        (mgrpo_loss_sums *)sums, bad_row, (mgrpo_loss_error *)error);
}

static inline mgrpo_outcome grad_norm(mgrpo_backend b, void *grad, int64_t n, double *norm) {
  return MGRPO_DISPATCH(b, grad_norm, (const float *)grad, n, norm);
}

static inline mgrpo_outcome adamw(mgrpo_backend b, void *param, void *m, void *v, void *grad, void *bf16, int64_t n, double norm,
                                  const mgrpo_adamw_config *config) {
  return MGRPO_DISPATCH(b, adamw, (float *)param, (float *)m, (float *)v, (const float *)grad, (uint16_t *)bf16, n, norm, config);
}

static inline mgrpo_outcome sample(mgrpo_backend b, void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                   const mgrpo_sampling *sampling, void *token, void *logp, int64_t *bad_row) {
  return MGRPO_DISPATCH(b, sample, logits, dtype, rows, vocab, ld, sampling, (int32_t *)token, (float *)logp, NULL, bad_row);
}

// On a GPU only.
static inline mgrpo_outcome sample_enqueue(mgrpo_backend b, void *logits, int32_t dtype, int64_t rows, int64_t vocab, int64_t ld,
                                           void *sampling, void *token, void *logp, void *bad_row) {
  return outcome(b, b.gpu->mgrpo_sample_enqueue_cuda(logits, dtype, rows, vocab, ld, (const mgrpo_sampling *)sampling, (int32_t *)token,
                                                     (float *)logp, NULL, (int64_t *)bad_row, b.stream));
}
