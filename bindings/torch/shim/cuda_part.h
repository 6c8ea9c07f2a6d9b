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
#include "mgrpo/logprob.h"
#include "mgrpo/lora.h"
#include "mgrpo/moe.h"
#include "mgrpo/policy_loss_from_logits.h"
#include "mgrpo/quant.h"
#include "mgrpo/rms_norm.h"
#include "mgrpo/short_conv.h"
#include "mgrpo_torch.h"

// The kernels mgrpo_NAME_cuda that the shim calls.
// clang-format off
#define MGT_KERNELS(X)                                                                                   \
  X(token_logprob) X(token_logprob_bwd) X(policy_gradient_from_logits) X(policy_loss)                    \
  X(rms_norm) X(add_rms_norm) X(rms_norm_bwd) X(glu) X(glu_bwd) X(lora_add) X(dequantise)                \
  X(split_heads) X(split_heads_bwd) X(cache_heads) X(attention_cached)                                   \
  X(moe_route) X(moe_route_bwd) X(moe_sort) X(moe_gather) X(moe_linear) X(moe_combine) X(moe_weigh)      \
  X(short_conv_packed) X(short_conv_packed_bwd) X(short_conv_cached) X(short_conv_states)                \
  X(delta_rule_packed) X(delta_rule_packed_bwd) X(delta_rule_states)
// clang-format on

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
#define MGT_MEMBER(name) decltype(&mgrpo_##name##_cuda) name;
  MGT_KERNELS(MGT_MEMBER)
#undef MGT_MEMBER
};

extern const cuda_part *the_cuda_part;  // NULL until loaded

// Returns the current stream of the GPU of t.
inline void *stream_of(const at::Tensor &t) { return the_cuda_part->stream(t.get_device()); }
