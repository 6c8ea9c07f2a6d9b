// What libmgrpo_torch asks of libmgrpo_torch_cuda, a library that is loaded only where there is a GPU. The
// functions throw; the first library's guard catches.
#pragma once
#include <ATen/core/Tensor.h>

#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo_torch.h"

struct cuda_part {
  int (*device_count)();
  void *(*stream)(int index);
  void (*memory)(int index, mgt_memory_stats *stats);
  // As mgrpo_token_logprob_cuda and its backward pass (mgrpo/logprob.h), on the current stream; bad_row is host memory.
  int32_t (*token_logprob)(const at::Tensor &logits, const at::Tensor &targets, double tau, at::Tensor &logp, at::Tensor &entropy,
                           int64_t *bad_row);
  int32_t (*token_logprob_bwd)(at::Tensor &logits, const at::Tensor &targets, double tau, const at::Tensor &dlogp,
                               const at::Tensor &dentropy, int64_t *bad_row);
  decltype(&mgrpo_policy_gradient_from_logits_cuda) policy_gradient_from_logits;
  decltype(&mgrpo_policy_loss_cuda) policy_loss;
};

extern const cuda_part *the_cuda_part;  // NULL until loaded
