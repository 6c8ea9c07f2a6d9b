// NCCL through its C interface. LibTorch's own group over NCCL ends the process if a rank is lost, and cannot be tested without GPUs.
#include "nccl_link.h"

#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "cuda_part.h"
#include "nccl_abi.h"

using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

namespace {

using namespace nccl_abi;

struct library {
  int (*get_version)(int *);
  int (*get_unique_id)(unique_id *);
  int (*init)(void **comm, int size, unique_id, int rank, config *);
  int (*async_error)(void *comm, int *result);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void *, size_t, int type, int peer, void *comm, void *stream);
  int (*receive)(void *, size_t, int type, int peer, void *comm, void *stream);
  int (*finalize)(void *comm);
  int (*destroy)(void *comm);
  int (*abort)(void *comm);
  const char *(*error_string)(int);
  const char *(*last_error)(void *comm);
};

const library &nccl() {
  static const library loaded = [] {
    void *so = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(so, "there is no libnccl.so.2: ", dlerror());
    library l{};
    const auto find = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(so, name));
      TORCH_CHECK(f, "libnccl.so.2 has no ", name, ": NCCL 2.18 or later is needed");
    };
    find(l.get_version, "ncclGetVersion"), find(l.get_unique_id, "ncclGetUniqueId"), find(l.init, "ncclCommInitRankConfig");
    find(l.async_error, "ncclCommGetAsyncError"), find(l.group_start, "ncclGroupStart"), find(l.group_end, "ncclGroupEnd");
    find(l.send, "ncclSend"), find(l.receive, "ncclRecv"), find(l.finalize, "ncclCommFinalize"), find(l.destroy, "ncclCommDestroy");
    find(l.abort, "ncclCommAbort"), find(l.error_string, "ncclGetErrorString"), find(l.last_error, "ncclGetLastError");
    return l;
  }();
  return loaded;
}

}  // namespace

std::string nccl_link::version() {
  int v = 0;
  TORCH_CHECK(nccl().get_version(&v) == kSuccess && v >= 21800, "NCCL 2.18 or later is needed, not ", v / 10000, ".", v / 100 % 100);
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

nccl_link::id nccl_link::new_id() {
  unique_id made{};
  const int result = nccl().get_unique_id(&made);
  TORCH_CHECK(result == kSuccess, "NCCL: ", nccl().error_string(result));
  id of;
  std::memcpy(of.data(), made.bytes, of.size());
  return of;
}

nccl_link::nccl_link(int gpu, const id &of, int rank, int size, deadline until, const std::atomic<bool> &aborted)
    : aborted_(aborted), side_(the_cuda_part->side_open(gpu)) {
  unique_id name;
  std::memcpy(name.bytes, of.data(), of.size());
  config with;
  try {
    check(nccl().init(&comm_, size, name, rank, &with));
    wait_for_host(until);
  } catch (...) {
    close();
    throw;
  }
}

nccl_link::~nccl_link() { close(); }

// This rank's messages may still be in transit. Unless a call has failed, they arrive.
void nccl_link::close() {
  if (comm_) (flushed() ? nccl().destroy : nccl().abort)(comm_);
  the_cuda_part->side_close(side_);
}

bool nccl_link::flushed() {
  try {
    if (failed_ || aborted_) return false;
    check(nccl().finalize(comm_));
    wait_for_host(steady_clock::now() + seconds(5));
    return true;
  } catch (const std::exception &) {
    return false;
  }
}

uint64_t nccl_link::start(const std::vector<message> &messages, deadline until) {
  the_cuda_part->side_follow(side_);
  auto &f = transfers_[++started_];
  f.messages = messages;
  check(nccl().group_start());
  int result = kSuccess;
  for (const auto &m : messages)
    if (result == kSuccess) result = post(m);
  const int ended = nccl().group_end();  // also after a failure: an open group would block this thread's next calls
  check(result);
  check(ended);
  wait_for_host(until);
  f.mark = the_cuda_part->side_mark(side_);
  return started_;
}

int nccl_link::post(const message &m) {
  void *stream = the_cuda_part->side_stream(side_);
  if (m.out) return nccl().send(m.piece.const_data_ptr(), m.piece.nbytes(), kBytes, m.peer, comm_, stream);
  return nccl().receive(m.piece.mutable_data_ptr(), m.piece.nbytes(), kBytes, m.peer, comm_, stream);
}

void nccl_link::finish(uint64_t number, deadline until) {
  wait(until, [&] { return the_cuda_part->mark_passed(transfers_.at(number).mark.get()); });
  transfers_.erase(number);
}

// Waits until the library has finished its work on the host.
void nccl_link::wait_for_host(deadline until) {
  wait(until, [&] { return state() != kInProgress; });
}

int nccl_link::state() {
  int now = kSuccess;
  check(nccl().async_error(comm_, &now));
  check(now);
  return now;
}

// An error of another rank is a group_error.
void nccl_link::check(int result) {
  if (result == kSuccess || result == kInProgress) return;
  failed_ = true;
  const char *last = comm_ ? nccl().last_error(comm_) : nullptr;
  const auto description = std::string("NCCL: ") + nccl().error_string(result) + (last && *last ? std::string(": ") + last : "");
  if (result == kRemoteError) throw group_error(MGT_GROUP_LOST, -1, description);
  throw std::runtime_error(description);
}

template <class Ready>
void nccl_link::wait(deadline until, Ready &&ready) {
  constexpr int kSpins = 256;  // as long as a short message takes
  for (int tries = 0; !ready(); tries++) {
    const bool late = steady_clock::now() >= until;
    failed_ = failed_ || late || aborted_;
    if (aborted_) throw group_error(MGT_GROUP_ABORTED, -1, "the call was aborted");
    if (late) throw group_error(MGT_GROUP_TIMED_OUT, -1, "NCCL has not finished the transfer in time");
    state();
    if (tries < kSpins)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(microseconds(20));
  }
}
