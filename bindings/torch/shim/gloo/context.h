// The names of Gloo that ProcessGroupGloo.hpp needs. LibTorch ships that header without Gloo's own headers.
// Objects of these types are made, used and destroyed in libtorch_cpu. These types must not be constructed or derived from.
#pragma once
#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
namespace transport {
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};
}  // namespace transport
}  // namespace gloo
