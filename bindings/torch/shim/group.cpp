// Groups of processes that compute together. NCCL sends tensors on GPUs if every rank has NCCL and its own GPU. Gloo sends all other
// tensors. It only supports host memory, so tensors on a GPU go through a copy there, a piece at a time. Every collective here consists of
// sends and receives between pairs. The owner of a share sums it in the order of the ranks, so equal inputs give equal bits. The
// collectives of NCCL and Gloo do not promise this. A wait for a send or a receive can be aborted from another thread, unlike a wait for a
// collective of Gloo.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Logging.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "cuda_part.h"
#include "guard.h"
#include "nccl_link.h"

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct mgt_rendezvous {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

namespace {

// The maximum number of elements of another rank that a rank keeps at a time while it sums, and while they go through host memory. It
// limits the memory of a call. Gatherings during other calls, and rows to all ranks, are not divided.
constexpr int64_t kPiece = 1 << 18, kGPUPiece = 1 << 20;
// Shares begin at multiples of this, so they are aligned for kernels.
constexpr int64_t kAlign = 64;

// The kinds of calls, which are part of the tags of messages.
enum { kSum, kGather, kSend, kExchange, kAllToAll };

// Messages that are started together, and waited for together.
struct transfer {
  uint32_t number = 0;  // equal at every rank
  std::vector<int> peers;
  steady_clock::time_point deadline;
  uint64_t on_gpus = 0;  // the result of nccl_link::start, if the messages use NCCL
};

// Elements of every rank's share, from `from` on, in transit to all others.
struct gathering {
  at::Tensor flat, host;  // host: [size, piece], copies if flat is not in host memory
  int64_t from, piece;
  transfer in_transit;
};

}  // namespace

struct mgt_group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  int rank, size;
  milliseconds timeout;
  uint32_t transfers = 0;
  std::deque<gathering> gatherings;  // those that are started and not finished, in order

  std::string transport;  // of tensors on GPUs, with the reason if it is Gloo; empty before the first call with such a tensor
  std::atomic<bool> aborted{false};
  std::unique_ptr<nccl_link> link;  // reads aborted until its end

  std::mutex mutex;                                                         // guards the next members, and aborting
  std::map<uint32_t, std::vector<c10::intrusive_ptr<c10d::Work>>> pending;  // by number of the transfer

  void start(const message &m, uint32_t number, uint32_t tag);
  transfer begin(const std::vector<message> &messages, uint32_t call, int64_t elements);
  void finish(const transfer &f);
  void finish_on_gpus(const transfer &f);
  void exchange(const std::vector<message> &messages, uint32_t call, int64_t elements) { finish(begin(messages, call, elements)); }
  void abort();
};

namespace {

// Throws the error of Gloo's transport. Gloo's exceptions have no types in common with LibTorch's.
[[noreturn]] void throw_transport_error(const std::exception &e, int peer, steady_clock::time_point deadline) {
  bool late = steady_clock::now() >= deadline;
  throw group_error(late ? MGT_GROUP_TIMED_OUT : MGT_GROUP_LOST, peer, e.what());
}

}  // namespace

void mgt_group::start(const message &m, uint32_t number, uint32_t tag) {
  std::vector<at::Tensor> one{m.piece};
  auto work = m.out ? gloo->send(one, m.peer, tag) : gloo->recv(one, m.peer, tag);
  std::lock_guard<std::mutex> lock(mutex);
  if (aborted) throw group_error(MGT_GROUP_ABORTED, -1, "the call was aborted");
  pending[number].push_back(std::move(work));
}

// Starts every message. Messages without elements must be left out by both sides. Gloo accepts a message that is too
// short, so the tag contains the call and its size. Ranks with different calls do not connect.
transfer mgt_group::begin(const std::vector<message> &messages, uint32_t call, int64_t elements) {
  transfer f{++transfers, {}, steady_clock::now() + timeout};
  if (!messages.empty() && messages[0].piece.is_cuda()) {
    f.on_gpus = link->start(messages, f.deadline);
    for (const auto &m : messages) f.peers.push_back(m.peer);
    return f;
  }
  const uint32_t tag = (f.number * 0x9e3779b1u ^ call << 24 ^ uint32_t(elements) * 0x85ebca6bu) & 0x3fffffff;
  for (const auto &m : messages) {
    try {
      start(m, f.number, tag);
    } catch (const group_error &) {
      throw;
    } catch (const std::exception &e) {
      throw_transport_error(e, m.peer, f.deadline);
    }
    f.peers.push_back(m.peer);
  }
  return f;
}

// Waits for the messages of a transfer, and forgets them.
void mgt_group::finish(const transfer &f) {
  if (f.on_gpus) return finish_on_gpus(f);
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  {
    std::lock_guard<std::mutex> lock(mutex);
    works = pending[f.number];
  }
  for (size_t i = 0; i < f.peers.size(); i++) {
    // The time is rounded up, because a wait must not time out before the deadline.
    const auto left = std::chrono::ceil<milliseconds>(f.deadline - steady_clock::now());
    bool completed = false;
    try {
      completed = works[i]->wait(std::max(left, milliseconds(1)));
    } catch (const std::exception &e) {
      throw_transport_error(e, f.peers[i], f.deadline);
    }
    if (!completed) throw group_error(MGT_GROUP_ABORTED, -1, "the call was aborted");
  }
  std::lock_guard<std::mutex> lock(mutex);
  pending.erase(f.number);
}

// NCCL does not report which rank it waits for.
void mgt_group::finish_on_gpus(const transfer &f) {
  try {
    link->finish(f.on_gpus, f.deadline);
  } catch (const group_error &e) {
    const bool one = std::all_of(f.peers.begin(), f.peers.end(), [&](int peer) { return peer == f.peers[0]; });
    throw group_error(e.why, one ? f.peers[0] : e.peer, e.what());
  }
}

void mgt_group::abort() {
  std::lock_guard<std::mutex> lock(mutex);
  aborted = true;
  for (auto &[number, works] : pending)
    for (auto &work : works) work->abort();
}

namespace {

template <class F>
mgt_group_result attempt(F &&f) noexcept {
  mgt_group_result r{};
  r.peer = -1;
  r.error = guard([&] {
    try {
      f(r);
    } catch (const group_error &e) {
      r.why = e.why;
      r.peer = e.peer;
      throw;
    }
  });
  return r;
}

// Returns every rank's bytes [size, bytes].
at::Tensor exchange(mgt_group *g, const void *mine, int64_t bytes) {
  // The messages own their tensors, so the memory still exists when a message arrives late.
  const auto received = at::empty({g->size, bytes}, at::TensorOptions(at::kByte));
  const auto own = received.select(0, g->rank);
  std::memcpy(own.mutable_data_ptr(), mine, size_t(bytes));
  std::vector<message> messages;
  for (int r = 0; r < g->size; r++) {
    if (r == g->rank) continue;
    messages.push_back({r, received.select(0, r), false});
    messages.push_back({r, own, true});
  }
  g->exchange(messages, kExchange, bytes);
  return received;
}

// A rank's description of its GPU.
struct offer {
  char gpu[64] = {}, version[16] = {}, refusal[256] = {};  // texts; refusal: the reason if the rank cannot use NCCL
};

offer own_offer(int gpu) {
  offer mine;
  try {
    nccl_link::version().copy(mine.version, sizeof mine.version - 1);
    the_cuda_part->identity(gpu).copy(mine.gpu, sizeof mine.gpu - 1);
  } catch (const c10::Error &e) {
    std::string(e.what_without_backtrace()).copy(mine.refusal, sizeof mine.refusal - 1);
  }
  return mine;
}

// Returns the reason if these ranks cannot use NCCL together, else "".
std::string refusal_of(const mgt_group *g, const at::Tensor &gathered_offers) {
  std::vector<offer> all(size_t(g->size));
  std::memcpy(all.data(), gathered_offers.const_data_ptr(), all.size() * sizeof(offer));
  for (int r = 0; r < g->size; r++) {
    auto &o = all[size_t(r)];
    o.gpu[sizeof o.gpu - 1] = o.version[sizeof o.version - 1] = o.refusal[sizeof o.refusal - 1] = 0;
    const auto rank = "rank " + std::to_string(r);
    if (*o.refusal) return rank + ": " + o.refusal;
    for (int before = 0; before < r; before++)
      if (std::string(o.gpu) == all[size_t(before)].gpu) return rank + " has the same GPU as rank " + std::to_string(before);
  }
  return "";
}

// Connects the ranks by NCCL. Returns the reason if that failed in one of them, else "".
std::string connect_nccl(mgt_group *g, int gpu) {
  nccl_link::id id{};
  offer outcome;
  std::to_string(g->rank).copy(outcome.gpu, sizeof outcome.gpu - 1);
  // A rank that fails at once waits for the others' result for the whole time-out, so the others may take half of it.
  const auto until = steady_clock::now() + g->timeout / 2;
  try {
    if (g->rank == 0) id = nccl_link::new_id();
  } catch (const std::exception &e) {
    std::string(e.what()).copy(outcome.refusal, sizeof outcome.refusal - 1);
  }
  const auto ids = exchange(g, id.data(), int64_t(id.size()));
  std::memcpy(id.data(), ids.const_data_ptr(), id.size());
  try {
    if (id != nccl_link::id{}) g->link = std::make_unique<nccl_link>(gpu, id, g->rank, g->size, until, g->aborted);
  } catch (const std::exception &e) {
    if (g->aborted) throw;
    std::string(e.what()).copy(outcome.refusal, sizeof outcome.refusal - 1);
  }
  return refusal_of(g, exchange(g, &outcome, sizeof outcome));
}

// Agrees with the other ranks on the transport of tensors on GPUs. The ranks call it at their first call with such a tensor.
void agree_on_transport(mgt_group *g, int gpu) {
  const auto mine = own_offer(gpu);
  auto refusal = refusal_of(g, exchange(g, &mine, sizeof mine));
  if (refusal.empty()) refusal = connect_nccl(g, gpu);
  if (!refusal.empty()) g->link.reset();
  g->transport = refusal.empty() ? std::string("NCCL ") + mine.version : "Gloo, through the host's memory: " + refusal;
}

// Checks the thread and the tensor of a call, and agrees on the transport if necessary.
void enter(mgt_device *d, mgt_group *g, const at::Tensor &x) {
  TORCH_CHECK(d->thread == mgt_thread(), "called from another goroutine than Do's, or inside Do of another device");
  TORCH_CHECK(x.is_contiguous(), "the tensor is not contiguous (strides ", x.strides(), "): call Contiguous first");
  if (x.is_cuda() && g->transport.empty()) agree_on_transport(g, x.get_device());
}

// Calls f with the elements of t in one dimension. f works in place.
template <class F>
mgt_group_result on_flat(mgt_device *d, mgt_group *g, void *t, F &&f) noexcept {
  return attempt([&](mgt_group_result &) {
    at::NoGradGuard no_grad;
    const auto &x = ref(t);
    enter(d, g, x);
    f(x.view({-1}));
  });
}

// Reports whether messages contain the elements of flat itself instead of copies in host memory.
bool direct(const mgt_group *g, const at::Tensor &flat) { return flat.is_cpu() || g->link; }

// Returns the maximum number of elements of another rank that a rank keeps at a time while it sums.
int64_t piece_to_sum(const mgt_group *g, const at::Tensor &flat) { return flat.is_cuda() && g->link ? kGPUPiece : kPiece; }

// Returns the share of a rank in a buffer.
at::Tensor share(const at::Tensor &flat, int rank, int size) {
  int64_t from, to;
  mgt_group_share(flat.numel(), rank, size, &from, &to);
  return flat.narrow(0, from, to - from);
}

int64_t longest_share(const mgt_group *g, const at::Tensor &flat) { return share(flat, 0, g->size).numel(); }

at::Tensor piece_of(const at::Tensor &share, int64_t from, int64_t max_elements) {
  from = std::min(from, share.numel());
  return share.narrow(0, from, std::min(max_elements, share.numel() - from));
}

// Returns a buffer for one piece of every rank. Messages read or fill it.
at::Tensor staging_buffer(mgt_group *g, const at::Tensor &flat, int64_t piece) {
  return at::empty({g->size, piece}, flat.options().device(direct(g, flat) ? flat.device() : at::Device(at::kCPU)));
}

// One step of a sum, for one piece of every share: the other ranks' values for this rank's share, and this rank's values for their shares.
struct sum_step {
  at::Tensor theirs, ours;  // [size, piece]; ours if flat is not in host memory
  at::Tensor own;           // this rank's part of its own share
  transfer in_transit;
};

void begin(mgt_group *g, sum_step &t, const at::Tensor &flat, int64_t from, int64_t piece) {
  t.own = piece_of(share(flat, g->rank, g->size), from, piece).clone();
  std::vector<message> messages;
  for (int r = 0; r < g->size; r++) {
    if (r == g->rank) continue;
    auto out = piece_of(share(flat, r, g->size), from, piece);
    if (!direct(g, flat)) out = t.ours.select(0, r).narrow(0, 0, out.numel()).copy_(out);
    if (t.own.numel()) messages.push_back({r, t.theirs.select(0, r).narrow(0, 0, t.own.numel()), false});
    if (out.numel()) messages.push_back({r, out, true});
  }
  t.in_transit = g->begin(messages, kSum, flat.numel());
}

// Adds this rank's share of every rank's flat to sum, from rank 0 to the last. If sum is undefined, the sum replaces the share in flat.
// While one piece is added up, the next one is in transit.
void reduce_scatter(mgt_group *g, const at::Tensor &flat, const at::Tensor &sum) {
  const auto mine = share(flat, g->rank, g->size), into = sum.defined() ? sum : mine;
  TORCH_CHECK(into.numel() == mine.numel(), "a sum of ", into.numel(), " elements for a share of ", mine.numel());
  TORCH_CHECK(into.scalar_type() == at::kFloat || into.scalar_type() == at::kDouble, "sums are of float32 or float64, not ",
              into.scalar_type());
  const int64_t longest = longest_share(g, flat);
  const int64_t piece = piece_to_sum(g, flat), capacity = std::min(piece, longest);
  sum_step steps[2];
  for (auto &t : steps) {
    t.theirs = staging_buffer(g, flat, capacity);
    if (!direct(g, flat)) t.ours = staging_buffer(g, flat, capacity);
  }
  if (longest) begin(g, steps[0], flat, 0, piece);
  for (int64_t from = 0, i = 0; from < longest; from += piece, i++) {
    if (from + piece < longest) begin(g, steps[(i + 1) % 2], flat, from + piece, piece);
    const auto &t = steps[i % 2];
    g->finish(t.in_transit);
    auto &next = steps[(i + 1) % 2].in_transit;  // the other ranks could not send it before this piece
    next.deadline = std::max(next.deadline, steady_clock::now() + g->timeout);
    const auto to = piece_of(into, from, piece);
    if (!sum.defined()) to.zero_();
    for (int r = 0; r < g->size; r++) to.add_(r == g->rank ? t.own : t.theirs.select(0, r).narrow(0, 0, t.own.numel()).to(flat.device()));
  }
}

// Return the elements of rank r's share that x gathers, and the memory that their messages use.
at::Tensor gathered(const mgt_group *g, const gathering &x, int r) { return piece_of(share(x.flat, r, g->size), x.from, x.piece); }
at::Tensor at_host(const mgt_group *g, const gathering &x, int r) {
  const auto of = gathered(g, x, r);
  return direct(g, x.flat) ? of : x.host.select(0, r).narrow(0, 0, of.numel());
}

// Starts to send a piece of each rank's share to all others.
gathering start_gathering(mgt_group *g, const at::Tensor &flat, int64_t from, int64_t piece) {
  gathering x{flat, direct(g, flat) ? at::Tensor() : staging_buffer(g, flat, piece), from, piece, {}};
  const auto mine = at_host(g, x, g->rank);
  if (!direct(g, flat)) mine.copy_(gathered(g, x, g->rank));
  std::vector<message> messages;
  for (int r = 0; r < g->size; r++) {
    if (r == g->rank) continue;
    const auto in = at_host(g, x, r);
    if (in.numel()) messages.push_back({r, in, false});
    if (mine.numel()) messages.push_back({r, mine, true});
  }
  x.in_transit = g->begin(messages, kGather, flat.numel());
  return x;
}

void finish_gathering(mgt_group *g, const gathering &x) {
  g->finish(x.in_transit);
  for (int r = 0; r < g->size && !direct(g, x.flat); r++)
    if (r != g->rank) gathered(g, x, r).copy_(at_host(g, x, r));
}

// Gathers all shares at once or, if they go through copies in host memory, a piece at a time.
void all_gather(mgt_group *g, const at::Tensor &flat) {
  const int64_t longest = longest_share(g, flat), piece = direct(g, flat) ? longest : std::min(kPiece, longest);
  for (int64_t from = 0; from < longest; from += piece) finish_gathering(g, start_gathering(g, flat, from, piece));
}

// Finishes the gathering that was started first. It must be the gathering of flat.
void finish_oldest(mgt_group *g, const at::Tensor &flat) {
  TORCH_CHECK(!g->gatherings.empty() && g->gatherings.front().flat.is_set_to(flat),
              "it is not the tensor whose gathering was started first");
  auto &x = g->gatherings.front();
  x.in_transit.deadline = std::max(x.in_transit.deadline, steady_clock::now() + g->timeout);  // this rank itself may be late
  finish_gathering(g, x);
  g->gatherings.pop_front();
}

// Sends a tensor at once or, if it goes through copies in host memory, a piece at a time.
void send(mgt_group *g, const at::Tensor &flat, int from, int to) {
  const bool out = g->rank == from, in = g->rank == to;
  const int64_t all = flat.numel(), step = direct(g, flat) ? std::max(all, int64_t(1)) : kPiece;
  for (int64_t begin = 0; begin == 0 || begin < all; begin += step) {
    const auto piece = piece_of(flat, begin, step);
    auto host = piece;
    std::vector<message> messages;
    if (from != to && piece.numel() && (out || in)) {
      if (!direct(g, flat)) host = out ? piece.cpu() : at::empty(piece.sizes(), piece.options().device(at::kCPU));
      messages.push_back({out ? to : from, host, out});
    }
    g->exchange(messages, kSend, all);
    if (in && !messages.empty() && !direct(g, flat)) piece.copy_(host);
  }
}

// Sends send_counts[r] rows of out to rank r, and receives receive_counts[r] rows of in from rank r, in the order of ranks. All rows move
// at once, because the numbers of pieces would differ between pairs.
void all_to_all(mgt_group *g, const at::Tensor &in, const at::Tensor &out, const int64_t *receive_counts, const int64_t *send_counts) {
  TORCH_CHECK(in.dim() == 2 && out.dim() == 2 && in.size(1) == out.size(1) && in.scalar_type() == out.scalar_type() && in.is_contiguous() &&
                  out.is_contiguous(),
              "received and sent rows must be contiguous, and equal in size and dtype");
  const auto split = [&](const at::Tensor &rows, const int64_t *numbers) {
    std::vector<at::Tensor> all;
    int64_t at = 0;
    for (int r = 0; r < g->size; at += numbers[r++]) {
      TORCH_CHECK(0 <= numbers[r] && numbers[r] <= rows.size(0) - at, "the number of rows for rank ", r, " is ", numbers[r],
                  ": it must be between 0 and the ", rows.size(0) - at, " rows that are left");
      all.push_back(rows.narrow(0, at, numbers[r]));
    }
    TORCH_CHECK(at == rows.size(0), "the numbers of rows have the sum ", at, ", but the tensor has ", rows.size(0), " rows");
    return all;
  };
  const auto receiving = split(in, receive_counts), sending = split(out, send_counts);
  TORCH_CHECK(receiving[g->rank].size(0) == sending[g->rank].size(0), "this rank sends itself ", sending[g->rank].size(0),
              " rows and expects ", receiving[g->rank].size(0));
  receiving[g->rank].copy_(sending[g->rank]);
  std::vector<message> messages;
  std::vector<std::pair<at::Tensor, at::Tensor>> host_copies;  // copies in host memory, and their targets
  for (int r = 0; r < g->size; r++) {
    if (r == g->rank) continue;
    if (receiving[r].numel()) {
      auto to = receiving[r];
      if (!direct(g, in)) host_copies.emplace_back(to = at::empty(to.sizes(), to.options().device(at::kCPU)), receiving[r]);
      messages.push_back({r, to, false});
    }
    if (sending[r].numel()) messages.push_back({r, direct(g, out) ? sending[r] : sending[r].cpu(), true});
  }
  g->exchange(messages, kAllToAll, in.size(1));
  for (const auto &[host, to] : host_copies) to.copy_(host);
}

// While an object of this class lives, SIGPIPE is blocked. In threads that are started meanwhile it stays blocked. Gloo's thread writes to
// a lost rank without MSG_NOSIGNAL, and Go ends the process after a SIGPIPE on a thread that it did not start.
class without_sigpipe {
  sigset_t before;

 public:
  without_sigpipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
  }
  ~without_sigpipe() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  without_sigpipe(const without_sigpipe &) = delete;
};

// While an object of this class lives, LibTorch does not log. During a join it would log every failed attempt with a back-trace, although
// the call's error has the same content. If TORCH_CPP_LOG_LEVEL is set, the log stays on.
class without_log {
  static inline std::mutex mutex;
  static inline int alive = 0, level = 0;

 public:
  without_log() {
    std::lock_guard<std::mutex> lock(mutex);
    if (alive++ > 0) return;
    level = FLAGS_caffe2_log_level;
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~without_log() {
    std::lock_guard<std::mutex> lock(mutex);
    if (--alive == 0) FLAGS_caffe2_log_level = level;
  }
  without_log(const without_log &) = delete;
};

}  // namespace

mgt_pointer mgt_rendezvous_serve(const char *host, int port, int listening) {
  mgt_pointer r{};
  const without_sigpipe guarded;
  r.error = guard([&] {
    c10d::TCPStoreOptions options;
    options.port = uint16_t(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = fcntl(listening, F_DUPFD_CLOEXEC, 0);
    TORCH_CHECK(*options.masterListenFd >= 0, "no file descriptor: ", std::strerror(errno));
    r.value = new mgt_rendezvous{c10::make_intrusive<c10d::TCPStore>(host, options)};
  });
  return r;
}
void mgt_rendezvous_close(mgt_rendezvous *r) { delete r; }

mgt_group_result mgt_group_open(const char *host, int port, const char *name, const char *bind, int rank, int size, int64_t join_ms,
                                int64_t timeout_ms) {
  const auto deadline = steady_clock::now() + milliseconds(join_ms);
  const without_sigpipe guarded;
  const without_log quiet;
  return attempt([&](mgt_group_result &r) {
    try {
      c10d::TCPStoreOptions options;
      options.port = uint16_t(port);
      options.waitWorkers = false;
      options.timeout = milliseconds(join_ms);
      auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
      auto gloo = c10d::ProcessGroupGloo::Options::create(milliseconds(join_ms));
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(bind));
      gloo->threads = 1;
      auto g = std::make_unique<mgt_group>();
      g->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, gloo);
      g->rank = rank;
      g->size = size;
      g->timeout = milliseconds(timeout_ms);
      r.group = g.release();
    } catch (const std::exception &e) {
      auto *torch = dynamic_cast<const c10::Error *>(&e);
      throw group_error(steady_clock::now() >= deadline ? MGT_GROUP_TIMED_OUT : MGT_GROUP_LOST, -1,
                        torch ? torch->what_without_backtrace() : e.what());
    }
  });
}

void mgt_group_share(int64_t n, int rank, int size, int64_t *from, int64_t *to) {
  const int64_t blocks = (n + kAlign - 1) / kAlign, each = (blocks + size - 1) / size * kAlign;
  *from = std::min(n, rank * each);
  *to = std::min(n, (rank + 1) * each);
}

mgt_group_result mgt_group_reduce_scatter_(mgt_device *d, mgt_group *g, void *t) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { reduce_scatter(g, flat, at::Tensor()); });
}
mgt_group_result mgt_group_accumulate_(mgt_device *d, mgt_group *g, void *sum, void *t) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { reduce_scatter(g, flat, ref(sum)); });
}
mgt_group_result mgt_group_all_gather_(mgt_device *d, mgt_group *g, void *t) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { all_gather(g, flat); });
}
mgt_group_result mgt_group_start_all_gather(mgt_device *d, mgt_group *g, void *t) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { g->gatherings.push_back(start_gathering(g, flat, 0, longest_share(g, flat))); });
}
mgt_group_result mgt_group_finish_all_gather(mgt_device *d, mgt_group *g, void *t) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { finish_oldest(g, flat); });
}
mgt_group_result mgt_group_send_(mgt_device *d, mgt_group *g, void *t, int from, int to) {
  return on_flat(d, g, t, [&](const at::Tensor &flat) { send(g, flat, from, to); });
}
mgt_group_result mgt_group_all_to_all_(mgt_device *d, mgt_group *g, void *in, void *out, const int64_t *receive_counts,
                                       const int64_t *send_counts) {
  return attempt([&](mgt_group_result &) {
    at::NoGradGuard no_grad;
    enter(d, g, ref(in));
    all_to_all(g, ref(in), ref(out), receive_counts, send_counts);
  });
}
mgt_group_result mgt_group_exchange(mgt_group *g, const void *mine, int64_t bytes, void *all) {
  return attempt([&](mgt_group_result &) {
    const auto received = exchange(g, mine, bytes);
    std::memcpy(all, received.const_data_ptr(), size_t(bytes) * size_t(g->size));
  });
}

char *mgt_group_transport(mgt_group *g) { return failure(g->transport.c_str()); }
void mgt_group_abort(mgt_group *g) { g->abort(); }
void mgt_group_close(mgt_group *g) { delete g; }
