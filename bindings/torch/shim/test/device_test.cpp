#include <gtest/gtest.h>

#include <filesystem>

#include "mgrpo_torch.h"

namespace {

int64_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// Go cannot end the process's first thread, which may be a device's. So closing the device must end the thread's OpenMP
// team.
TEST(Device, ClosingEndsItsTeam) {
  auto opened = mgt_device_open(0, 0, 2);
  ASSERT_EQ(opened.error, nullptr);
  auto *device = static_cast<mgt_device *>(opened.value);
  const int64_t alone = threads_of_process(), sizes[] = {1 << 22};
  auto filled = mgt_full(device, 6 /* float32 */, 1, sizes, 1);
  ASSERT_EQ(filled.error, nullptr);
  EXPECT_EQ(threads_of_process(), alone + 1);
  mgt_drop(&filled.handle, 1);
  mgt_device_close(device);
  EXPECT_EQ(threads_of_process(), alone);
}

}  // namespace
