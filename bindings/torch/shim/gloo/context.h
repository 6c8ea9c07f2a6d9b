// The names of Gloo that ProcessGroupGloo.hpp cannot be read without: LibTorch ships that header and none of Gloo's.
// Everything behind them is made, used and destroyed in libtorch_cpu. Nothing here may be constructed or derived from.
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
