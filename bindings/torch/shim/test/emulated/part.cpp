// libmgrpo_torch_cuda over the emulated GPU: what the shim asks of the CUDA part (cuda_part.h).
#include <unistd.h>

#include <cstring>
#include <utility>

#include "cuda_part.h"
#include "gpu.h"
#include "mgrpo/cuda_error.h"
#include "mgrpo/logprob.h"
#include "side.h"

namespace {

using emulated::Recording;

int device_count() { return 1; }
void open(int) {}
void wait(int) { emulator::finish(); }
void *stream(int) { return nullptr; }
void to_host(const at::Tensor &from, void *to) {
  emulator::counts().waits++;
  emulator::finish();
  std::memcpy(to, from.const_data_ptr(), from.nbytes());
}

void from_host(const at::Tensor &to, const void *from) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  TORCH_CHECK(!emulated::recording(), "the host's memory is copied while work is recorded");
  emulator::counts().uploads++;
  emulator::finish();
  std::memcpy(to.mutable_data_ptr(), from, to.nbytes());
}
int capability(int) { return 90; }

void memory(int, mgt_memory_stats *stats) {
  stats->allocated = stats->reserved = emulated::live_bytes();
  stats->peak = emulated::most_bytes();
}
void reset_peak(int) { emulated::reset_most_bytes(); }
void free_cached() {}

struct Graph {
  Recording recording;
  bool capturing = false;
};

void *graph_open(int) { return new Graph; }
void graph_capture(void *graph) {
  auto *g = static_cast<Graph *>(graph);
  g->recording.begin();
  g->capturing = true;
}
void graph_close(void *graph) {
  auto *g = static_cast<Graph *>(graph);
  if (std::exchange(g->capturing, false)) g->recording.end();
}
void graph_replay(void *graph) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  emulator::counts().launches++;
  static_cast<Graph *>(graph)->recording.replay();
}
void graph_drop(void *graph) { delete static_cast<Graph *>(graph); }

std::string identity(int) { return "the emulated GPU of process " + std::to_string(getpid()); }

// The emulated GPU's work is done at the latest when its memory is read.
void *side_open(int) { return new emulated_side; }
void side_follow(void *) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  emulator::finish();
}
void *side_stream(void *side) { return side; }
struct Mark {
  const emulated_side *side;
  uint64_t behind;
};
std::shared_ptr<void> side_mark(void *side) {
  const auto *s = static_cast<emulated_side *>(side);
  return std::make_shared<Mark>(Mark{s, s->given});
}
bool mark_passed(void *mark) {
  const auto *m = static_cast<Mark *>(mark);
  return m->side->done >= m->behind;
}
void side_close(void *side) { delete static_cast<emulated_side *>(side); }

int32_t refused(int32_t status) {
  TORCH_CHECK(status != MGRPO_CUDA_ERROR && status != MGRPO_OUT_OF_MEMORY, mgrpo_status_string(status), ": ", mgrpo_cuda_last_error());
  return status;
}

int32_t token_logprob(const at::Tensor &logits, const at::Tensor &targets, double tau, at::Tensor &logp, at::Tensor &entropy,
                      int64_t *bad_row) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  return refused(mgrpo_token_logprob_cuda(logits.const_data_ptr(), int32_t(logits.scalar_type()), logits.size(0), logits.size(1),
                                          logits.size(1), targets.const_data_ptr<int32_t>(), nullptr, tau, logp.mutable_data_ptr(),
                                          entropy.mutable_data_ptr(), bad_row, nullptr));
}

int32_t token_logprob_bwd(at::Tensor &logits, const at::Tensor &targets, double tau, const at::Tensor &dlogp, const at::Tensor &dentropy,
                          int64_t *bad_row) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  return refused(mgrpo_token_logprob_bwd_cuda(logits.mutable_data_ptr(), int32_t(logits.scalar_type()), logits.size(0), logits.size(1),
                                              logits.size(1), targets.const_data_ptr<int32_t>(), nullptr, tau, dlogp.const_data_ptr(),
                                              dentropy.const_data_ptr(), bad_row, nullptr));
}

template <auto kCall, class>
struct Locked;
template <auto kCall, class... Arguments>
struct Locked<kCall, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... with) {
    std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
    return refused(kCall(with...));
  }
};
#define MGT_LOCKED(name) Locked<mgrpo_##name##_cuda, decltype(&mgrpo_##name##_cuda)>::call

}  // namespace

// The host's requests to the emulated GPU so far. A graph is one launch.
extern "C" MGT_API void mgt_emulated_counts(uint64_t *launches, uint64_t *uploads, uint64_t *waits) {
  std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
  const auto &counts = emulator::counts();
  *launches = counts.launches, *uploads = counts.uploads, *waits = counts.waits;
}

extern "C" MGT_API const cuda_part *mgt_cuda_part(void) {
  static const cuda_part part = [] {
    cuda_part p{};
    p.device_count = device_count, p.open = open, p.enter = open, p.wait = wait, p.to_host = to_host, p.from_host = from_host,
    p.capability = capability, p.stream = stream, p.memory = memory, p.reset_peak = reset_peak;
    p.free_cached = free_cached;
    p.graph_open = graph_open, p.graph_capture = graph_capture, p.graph_close = graph_close, p.graph_replay = graph_replay,
    p.graph_drop = graph_drop;
    p.identity = identity, p.side_open = side_open, p.side_follow = side_follow, p.side_stream = side_stream, p.side_mark = side_mark;
    p.mark_passed = mark_passed, p.side_close = side_close;
    p.token_logprob = token_logprob, p.token_logprob_bwd = token_logprob_bwd;
#define MGT_EMULATED(name) p.name = MGT_LOCKED(name)
    MGT_EMULATED(policy_gradient_from_logits);
    MGT_EMULATED(policy_loss);
    MGT_EMULATED(rms_norm);
    MGT_EMULATED(add_rms_norm);
    MGT_EMULATED(rms_norm_bwd);
    MGT_EMULATED(glu);
    MGT_EMULATED(glu_bwd);
    MGT_EMULATED(split_heads);
    MGT_EMULATED(split_heads_bwd);
    MGT_EMULATED(cache_heads);
    MGT_EMULATED(attention_cached);
    MGT_EMULATED(lora_add);
    MGT_EMULATED(moe_route);
    MGT_EMULATED(moe_route_bwd);
    MGT_EMULATED(moe_sort);
    MGT_EMULATED(moe_gather);
    MGT_EMULATED(moe_linear);
    MGT_EMULATED(moe_combine);
    MGT_EMULATED(moe_weigh);
    MGT_EMULATED(dequantise);
    MGT_EMULATED(short_conv_packed);
    MGT_EMULATED(short_conv_packed_bwd);
    MGT_EMULATED(short_conv_cached);
    MGT_EMULATED(short_conv_states);
    MGT_EMULATED(delta_rule_packed);
    MGT_EMULATED(delta_rule_packed_bwd);
    MGT_EMULATED(delta_rule_states);
    return p;
  }();
  return &part;
}
