// Functions that are called before the CUDA part is loaded must not ask LibTorch for CUDA. The
// first answer holds for the life of the process.
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "mgrpo_torch.h"

namespace at {

struct LateHooks : CUDAHooksInterface {
  explicit LateHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
};

TEST(BeforeCUDA, TheQuestionIsOpen) {
  EXPECT_STREQ(mgt_built_version(), mgt_loaded_version());
  mgt_cpu_features();
  mgt_cuda_driver();
  mgt_thread();
  mgt_live_handles();
  // As libtorch_cuda registers its hooks when it is loaded.
  CUDAHooksRegistry()->Register(
      "CUDAHooks", [](CUDAHooksArgs args) -> std::unique_ptr<CUDAHooksInterface> { return std::make_unique<LateHooks>(args); });
  EXPECT_TRUE(detail::getCUDAHooks().hasCUDA());
}

}  // namespace at
