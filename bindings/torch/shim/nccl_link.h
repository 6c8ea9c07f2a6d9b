// Messages between the GPUs of a group. NCCL moves them without host memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct message {
  int peer;
  at::Tensor piece;
  bool out;  // whether the message is sent; otherwise it is received
};

// The failure of a call of a group because of another rank.
struct group_error : std::runtime_error {
  int why, peer;
  group_error(int why, int peer, const std::string &message) : std::runtime_error(message), why(why), peer(peer) {}
};

// The connections of one GPU to the GPUs of the other ranks. All ranks start the same transfers of messages in the same order. Only one
// thread may call it at a time. If another thread sets `aborted`, the call in progress fails.
class nccl_link {
 public:
  using deadline = std::chrono::steady_clock::time_point;
  using id = std::array<char, 128>;  // the ranks of one link use it to find each other

  static std::string version();  // "2.28.9"; throws if this process has no NCCL
  static id new_id();

  nccl_link(int gpu, const id &of, int rank, int size, deadline until, const std::atomic<bool> &aborted);
  ~nccl_link();
  nccl_link(const nccl_link &) = delete;

  // Sends and receives messages after the GPU's work until now. Meanwhile the GPU continues with later work. The messages' tensors must
  // live until the messages are finished (by the number that start returned), or until the link ends.
  uint64_t start(const std::vector<message> &messages, deadline until);
  void finish(uint64_t number, deadline until);

 private:
  void close();
  bool flushed();
  void wait_for_host(deadline until);
  int state();
  void check(int result);
  int post(const message &m);
  template <class Ready>
  void wait(deadline until, Ready &&ready);

  struct transfer {
    std::vector<message> messages;
    std::shared_ptr<void> mark;  // a mark on the side stream of the GPU after the messages
  };

  const std::atomic<bool> &aborted_;
  std::map<uint64_t, transfer> transfers_;
  uint64_t started_ = 0;
  void *const side_;  // the side stream of the GPU (cuda_part.h)
  void *comm_ = nullptr;
  bool failed_ = false;
};
