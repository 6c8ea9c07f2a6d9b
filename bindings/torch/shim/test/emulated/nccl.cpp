// libnccl.so.2 between processes that have an emulated GPU each: messages go over TCP. As in the real
// one, calls of a communicator that does not block return while its thread continues. Groups of messages
// are moved one after the other. Messages of two ranks meet in their order, and messages of unequal
// sizes never meet. MGRPO_EMULATED_NCCL=old is a version that is too old, and fails is one that cannot
// connect. blind does not see that a rank is lost, as the real one does not between GPUs of one machine.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_abi.h"
#include "side.h"

namespace {

using namespace nccl_abi;

struct stopped : std::runtime_error {
  stopped() : std::runtime_error("aborted") {}
};
struct lost : std::runtime_error {
  lost() : std::runtime_error("a rank is lost") {}
};

struct message {
  bool out;
  char *at;
  size_t bytes;
  int peer;
};

struct group {
  std::vector<message> messages;
  emulated_side *side = nullptr;
};

bool is(const char *kind) {
  const char *which = std::getenv("MGRPO_EMULATED_NCCL");
  return which && std::string(which) == kind;
}

// The bytes of one side of a connection in one group, in their order: each message behind its size.
struct lane {
  std::vector<message> messages;
  size_t now = 0, done = 0;  // of the header and the message
  uint64_t header = 0;
  bool finished() const { return now == messages.size(); }
};

struct communicator {
  int rank, size;
  std::vector<int> sockets;
  std::thread thread;
  std::atomic<int> state{kInProgress};
  std::atomic<bool> stop{false};
  std::mutex mutex;  // of the fields below
  std::deque<group> groups;
  bool finalised = false;

  communicator(int rank, int size) : rank(rank), size(size), sockets(size_t(size), -1) {}
  ~communicator() {
    stop = true;
    if (thread.joinable()) thread.join();
    for (int fd : sockets) close(fd);
  }

  // Connects, and then moves the groups in their order.
  void live(int root_port, int root_listener) {
    try {
      meet(root_port, root_listener);
      state = kSuccess;
      while (!stop) {
        std::unique_lock<std::mutex> lock(mutex);
        if (finalised && groups.empty()) state = kSuccess;
        if (groups.empty()) {
          lock.unlock();
          usleep(50);
          continue;
        }
        const group next = std::move(groups.front());
        groups.pop_front();
        lock.unlock();
        move(next);
        next.side->done++;
      }
    } catch (const stopped &) {
    } catch (const lost &) {
      if (!is("blind")) state = kRemoteError;
    }
  }

  void wait(int fd, short events) {
    for (pollfd p{fd, events, 0}; poll(&p, 1, 20) <= 0;)
      if (stop) throw stopped();
  }
  void all(int fd, void *data, size_t n, bool out) {
    for (auto *at = static_cast<char *>(data); n > 0;) {
      wait(fd, out ? POLLOUT : POLLIN);
      const ssize_t moved = out ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
      if (moved <= 0) throw lost();
      at += moved, n -= size_t(moved);
    }
  }
  int accepted(int listener) {
    wait(listener, POLLIN);
    return accept(listener, nullptr, nullptr);
  }

  void meet(int root_port, int root_listener);
  bool advance(lane &l, int fd);
  void move(const group &g);
};

sockaddr_in local(int port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(uint16_t(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return a;
}

std::pair<int, int> listening() {
  auto a = local(0);
  socklen_t size = sizeof a;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<sockaddr *>(&a), size) || listen(fd, 64) || getsockname(fd, reinterpret_cast<sockaddr *>(&a), &size))
    std::abort();
  return {fd, ntohs(a.sin_port)};
}

int connected(int port) {
  const auto a = local(port);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr *>(&a), sizeof a)) throw lost();
  return fd;
}

// Rank 0 receives the ports of the others and sends them to all. Then a rank connects to the
// ranks before it.
void communicator::meet(int root_port, int root_listener) {
  std::vector<int32_t> ports(size_t(size), 0);
  if (rank == 0) {
    for (int i = 1; i < size; i++) {
      const int fd = accepted(root_listener);
      int32_t hello[2];
      all(fd, hello, sizeof hello, false);
      sockets[size_t(hello[0])] = fd, ports[size_t(hello[0])] = hello[1];
    }
    close(root_listener);
    for (int r = 1; r < size; r++) all(sockets[size_t(r)], ports.data(), ports.size() * 4, true);
    return;
  }
  const auto [listener, port] = listening();
  int32_t hello[2] = {rank, port};
  sockets[0] = connected(root_port);
  all(sockets[0], hello, sizeof hello, true);
  all(sockets[0], ports.data(), ports.size() * 4, false);
  for (int r = 1; r < rank; r++) {
    sockets[size_t(r)] = connected(ports[size_t(r)]);
    all(sockets[size_t(r)], hello, sizeof hello, true);
  }
  for (int i = rank + 1; i < size; i++) {
    const int fd = accepted(listener);
    all(fd, hello, sizeof hello, false);
    sockets[size_t(hello[0])] = fd;
  }
  close(listener);
}

// Moves what can be moved at once; whether that was anything.
bool communicator::advance(lane &l, int fd) {
  if (l.finished()) return false;
  auto &m = l.messages[l.now];
  if (m.out) l.header = m.bytes;
  const bool in_header = l.done < sizeof l.header;
  char *at = in_header ? reinterpret_cast<char *>(&l.header) + l.done : m.at + (l.done - sizeof l.header);
  const size_t n = in_header ? sizeof l.header - l.done : m.bytes - (l.done - sizeof l.header);
  const ssize_t moved = m.out ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, n, MSG_DONTWAIT);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (moved <= 0) throw lost();
  l.done += size_t(moved);
  while (l.done == sizeof l.header && l.header != m.bytes)  // they never meet
    if (stop)
      throw stopped();
    else
      std::this_thread::yield();
  if (l.done == sizeof l.header + m.bytes) l.now++, l.done = 0;
  return true;
}

void communicator::move(const group &g) {
  std::vector<lane> out(static_cast<size_t>(size)), in(static_cast<size_t>(size));
  for (const auto &m : g.messages) (m.out ? out : in)[size_t(m.peer)].messages.push_back(m);
  for (bool under_way = true; under_way;) {
    bool moved = under_way = false;
    for (size_t r = 0; r < sockets.size(); r++)
      for (lane *l : {&out[r], &in[r]}) {
        moved |= advance(*l, sockets[r]);
        under_way |= !l->finished();
      }
    if (stop) throw stopped();
    if (under_way && !moved) usleep(50);
  }
}

thread_local int depth = 0;
thread_local communicator *grouped = nullptr;
thread_local group under_way;  // until its end

int add(message m, void *comm, void *stream) {
  auto *c = static_cast<communicator *>(comm);
  if (depth == 0 || m.peer < 0 || m.peer >= c->size || m.peer == c->rank || (grouped && grouped != c)) return kInvalidUsage;
  if (c->state != kSuccess) return c->state == kInProgress ? int(kInvalidUsage) : c->state.load();
  grouped = c;
  under_way.side = static_cast<emulated_side *>(stream);
  under_way.messages.push_back(m);
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int *version) {
  *version = is("old") ? 21000 : 22809;
  return kSuccess;
}

int ncclGetUniqueId(unique_id *id) {
  const auto [fd, port] = listening();
  const int32_t both[2] = {port, fd};
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, both, sizeof both);
  return kSuccess;
}

int ncclCommInitRankConfig(void **comm, int size, unique_id id, int rank, config *with) {
  if (!with || with->magic != 0xcafebeef || with->size < sizeof(config) || with->blocking != 0 || rank < 0 || rank >= size)
    return kInvalidArgument;
  if (is("fails")) return kSystemError;
  int32_t root[2];
  std::memcpy(root, id.bytes, sizeof root);
  auto *c = new communicator(rank, size);
  c->thread = std::thread([=] { c->live(root[0], root[1]); });
  *comm = c;
  return kInProgress;
}

int ncclCommGetAsyncError(void *comm, int *state) {
  *state = static_cast<communicator *>(comm)->state;
  return kSuccess;
}

int ncclGroupStart() {
  depth++;
  return kSuccess;
}

int ncclGroupEnd() {
  if (depth == 0) return kInvalidUsage;
  if (--depth > 0 || !grouped) return kSuccess;
  auto *c = std::exchange(grouped, nullptr);
  const std::lock_guard<std::mutex> lock(c->mutex);
  under_way.side->given++;
  c->groups.push_back(std::exchange(under_way, {}));
  return kSuccess;
}

int ncclSend(const void *from, size_t n, int, int peer, void *comm, void *stream) {
  return add({true, const_cast<char *>(static_cast<const char *>(from)), n, peer}, comm, stream);
}
int ncclRecv(void *to, size_t n, int, int peer, void *comm, void *stream) {
  return add({false, static_cast<char *>(to), n, peer}, comm, stream);
}

int ncclCommFinalize(void *comm) {
  auto *c = static_cast<communicator *>(comm);
  const std::lock_guard<std::mutex> lock(c->mutex);
  if (c->state == kSuccess) c->finalised = true, c->state = kInProgress;
  return c->state;
}
int ncclCommDestroy(void *comm) {
  if (depth > 0) return kInvalidUsage;  // the real one puts it off until the end of the group
  delete static_cast<communicator *>(comm);
  return kSuccess;
}
int ncclCommAbort(void *comm) { return ncclCommDestroy(comm); }

const char *ncclGetErrorString(int result) {
  return result == kRemoteError   ? "remote process exited or there was a network error"
         : result == kSystemError ? "unhandled system error"
                                  : "invalid";
}
const char *ncclGetLastError(void *) { return ""; }

}  // extern "C"
