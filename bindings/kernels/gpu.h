// A GPU's kernels as a table of functions. A build with the tag cuda links them, or a test loads a library with them
// (emulated/).
#pragma once
#include "mgrpo/adamw.h"
#include "mgrpo/advantage.h"
#include "mgrpo/cuda_error.h"
#include "mgrpo/logprob.h"
#include "mgrpo/memory.h"
#include "mgrpo/policy_loss.h"
#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo/sample.h"

// clang-format off
#define MGRPO_GPU_FUNCTIONS(X)                                                                          \
  X(mgrpo_allocate_cuda) X(mgrpo_release_cuda) X(mgrpo_upload_cuda) X(mgrpo_download_cuda)              \
  X(mgrpo_group_advantage_cuda) X(mgrpo_token_logprob_cuda) X(mgrpo_token_logprob_bwd_cuda)             \
  X(mgrpo_policy_loss_cuda) X(mgrpo_policy_loss_from_logits_cuda) X(mgrpo_grad_norm_cuda)               \
  X(mgrpo_adamw_cuda) X(mgrpo_sample_cuda) X(mgrpo_sample_enqueue_cuda) X(mgrpo_cuda_last_error)
// clang-format on

typedef struct mgrpo_gpu {
#define MGRPO_MEMBER(name) __typeof__(&name) name;
  MGRPO_GPU_FUNCTIONS(MGRPO_MEMBER)
#undef MGRPO_MEMBER
} mgrpo_gpu;
