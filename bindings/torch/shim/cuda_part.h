// The functions of libmgrpo_torch_cuda that libmgrpo_torch uses. That library is loaded only if the machine has a GPU.
// The functions throw exceptions, which libmgrpo_torch catches (guard.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "mgrpo/attention.h"
#include "mgrpo/delta_rule.h"
#include "mgrpo/glu.h"
#include "mgrpo/heads.h"
#include "mgrpo/lora.h"
#include "mgrpo/moe.h"
#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo/quant.h"
#include "mgrpo/rms_norm.h"
#include "mgrpo/short_conv.h"
#include "mgrpo_torch.h"

struct cuda_part {
  int (*device_count)();
  void (*open)(int index);
  void (*enter)(int index);  // makes the GPU's context current on this thread
  void (*wait)(int index);
  void *(*stream)(int index);
  int (*capability)(int index);                       // 10 times the major number of the compute capability, and the minor number
  void (*to_host)(const at::Tensor &from, void *to);  // copies a contiguous tensor and waits
  // Copies to a contiguous tensor of at most 64 KiB. CUDA copies the bytes to a buffer before the call returns, so the call does not wait
  // for earlier work.
  void (*from_host)(const at::Tensor &to, const void *from);
  void (*memory)(int index, mgt_memory_stats *stats);
  void (*reset_peak)(int index);
  void (*free_cached)();  // returns unused memory to the GPUs, so that other processes can use it
  void *(*graph_open)(int index);
  void (*graph_capture)(void *graph);
  void (*graph_close)(void *graph);
  void (*graph_replay)(void *graph);
  void (*graph_drop)(void *graph);
  std::string (*identity)(int index);  // a worldwide unique name of the GPU
  // A second stream. Work that it receives after side_follow runs after the work that the current stream had at that call.
  void *(*side_open)(int index);
  void (*side_follow)(void *side);
  void *(*side_stream)(void *side);
  std::shared_ptr<void> (*side_mark)(void *side);
  bool (*mark_passed)(void *mark);  // whether the stream has finished the work before the mark
  void (*side_close)(void *side);
  // mgrpo_token_logprob_cuda and its backward pass (mgrpo/logprob.h) on the current stream. bad_row is in host memory.
  int32_t (*token_logprob)(const at::Tensor &logits, const at::Tensor &targets, double tau, at::Tensor &logp, at::Tensor &entropy,
                           int64_t *bad_row);
  int32_t (*token_logprob_bwd)(at::Tensor &logits, const at::Tensor &targets, double tau, const at::Tensor &dlogp,
                               const at::Tensor &dentropy, int64_t *bad_row);
  decltype(&mgrpo_policy_gradient_from_logits_cuda) policy_gradient_from_logits;
  decltype(&mgrpo_policy_loss_cuda) policy_loss;
  decltype(&mgrpo_rms_norm_cuda) rms_norm;
  decltype(&mgrpo_add_rms_norm_cuda) add_rms_norm;
  decltype(&mgrpo_rms_norm_bwd_cuda) rms_norm_bwd;
  decltype(&mgrpo_glu_cuda) glu;
  decltype(&mgrpo_glu_bwd_cuda) glu_bwd;
  decltype(&mgrpo_split_heads_cuda) split_heads;
  decltype(&mgrpo_split_heads_bwd_cuda) split_heads_bwd;
  decltype(&mgrpo_cache_heads_cuda) cache_heads;
  decltype(&mgrpo_attention_cached_cuda) attention_cached;
  decltype(&mgrpo_lora_add_cuda) lora_add;
  decltype(&mgrpo_moe_route_cuda) moe_route;
  decltype(&mgrpo_moe_route_bwd_cuda) moe_route_bwd;
  decltype(&mgrpo_moe_sort_cuda) moe_sort;
  decltype(&mgrpo_moe_gather_cuda) moe_gather;
  decltype(&mgrpo_moe_linear_cuda) moe_linear;
  decltype(&mgrpo_moe_combine_cuda) moe_combine;
  decltype(&mgrpo_moe_weigh_cuda) moe_weigh;
  decltype(&mgrpo_dequantise_cuda) dequantise;
  decltype(&mgrpo_short_conv_packed_cuda) short_conv_packed;
  decltype(&mgrpo_short_conv_packed_bwd_cuda) short_conv_packed_bwd;
  decltype(&mgrpo_short_conv_cached_cuda) short_conv_cached;
  decltype(&mgrpo_short_conv_states_cuda) short_conv_states;
  decltype(&mgrpo_delta_rule_packed_cuda) delta_rule_packed;
  decltype(&mgrpo_delta_rule_packed_bwd_cuda) delta_rule_packed_bwd;
  decltype(&mgrpo_delta_rule_states_cuda) delta_rule_states;
};

extern const cuda_part *the_cuda_part;  // NULL until loaded

// Returns the current stream of the GPU of t.
inline void *stream_of(const at::Tensor &t) { return the_cuda_part->stream(t.get_device()); }
