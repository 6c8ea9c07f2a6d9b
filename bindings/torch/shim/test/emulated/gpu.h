// The emulated GPU as LibTorch's device "cuda:0".
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "stream.h"

namespace emulated {

// The emulator runs on one thread at a time; a GPU of several agents is driven from several.
std::recursive_mutex &one_at_a_time();

// Bytes in tensors.
int64_t live_bytes();
int64_t most_bytes();
void reset_most_bytes();

// Operations of LibTorch and launches of our kernels, in their order, to be done again: what a CUDA graph is.
class Recording {
 public:
  void begin();
  void end();
  void replay();

  void own(const at::Tensor &t) { own_.insert(t.storage().unsafeGetStorageImpl()); }  // which the recorded work makes
  using Run = std::function<std::vector<c10::IValue>(const c10::OperatorHandle &, const std::vector<c10::IValue> &)>;
  std::vector<c10::IValue> add(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments, bool writes, const Run &run);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  // An argument: itself, or a tensor that the recording does not keep alive.
  struct Held {
    c10::IValue always;
    at::Tensor shape;
    std::optional<Weak> weak;
    c10::IValue value(const std::string &op) const;
  };
  Held hold(const c10::IValue &v);

  emulator::Work work_;
  std::unordered_set<const c10::StorageImpl *> own_;  // made by the recorded work
};

Recording *recording();  // what is recorded now, or nullptr

}  // namespace emulated
