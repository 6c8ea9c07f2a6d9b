// libmgrpo_torch_cuda over the emulated GPU: what the shim asks of the CUDA part (cuda_part.h).
#include <unistd.h>

#include <cstring>
#include <utility>

#include "cuda_part.h"
#include "gpu.h"
#include "mgrpo/cuda_error.h"
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

template <auto kCall, class>
struct Locked;
template <auto kCall, class... Arguments>
struct Locked<kCall, int32_t (*)(Arguments...)> {
  static int32_t call(Arguments... with) {
    std::lock_guard<std::recursive_mutex> lock(emulated::one_at_a_time());
    return refused(kCall(with...));
  }
};

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
#define MGT_LOCKED(name) p.name = Locked<mgrpo_##name##_cuda, decltype(&mgrpo_##name##_cuda)>::call;
    MGT_KERNELS(MGT_LOCKED)
    return p;
  }();
  return &part;
}
