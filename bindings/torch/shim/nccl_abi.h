// The used part of NCCL's C interface. LibTorch brings NCCL's library but not its header.
#pragma once
#include <climits>
#include <cstddef>

namespace nccl_abi {

enum { kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7 };  // ncclResult_t
enum { kBytes = 1 };                                                                                                  // ncclUint8

struct unique_id {
  char bytes[128];
};

// ncclConfig_t of NCCL 2.18. Later libraries accept it, too.
struct config {
  size_t size = sizeof(config);
  unsigned magic = 0xcafebeef, version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char *net_name = nullptr;
  int split_share = INT_MIN;
};

}  // namespace nccl_abi
