#include "mgrpo/isa.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "layer_testing.h"

namespace {

TEST(Isa, EnvironmentLowersIt) {
  const std::string isa = mgrpo_cpu_isa();
  RecordProperty("isa", isa);
  EXPECT_TRUE(isa == "amx" || isa == "avx512" || isa == "avx2" || isa == "portable") << isa;
  const char *limit = std::getenv("MGRPO_CPU_ISA");
  if (limit == nullptr) return;
  if (std::string(limit) == "portable") {
    EXPECT_EQ(isa, "portable");
  }
  if (std::string(limit) == "avx2") {
    EXPECT_TRUE(isa == "avx2" || isa == "portable") << isa;
  }
  if (std::string(limit) == "avx512") {
    EXPECT_NE(isa, "amx");
  }
}

TEST(Isa, CanBeChanged) {
  const std::string before = mgrpo_cpu_isa();
  EXPECT_EQ(mgrpo_cpu_use("portable"), MGRPO_OK);
  EXPECT_STREQ(mgrpo_cpu_isa(), "portable");
  EXPECT_EQ(mgrpo_cpu_use("none such"), MGRPO_INVALID_ARGUMENT);
  EXPECT_EQ(mgrpo_cpu_use(nullptr), MGRPO_INVALID_ARGUMENT);
  EXPECT_STREQ(mgrpo_cpu_isa(), "portable");
  EXPECT_EQ(mgrpo_cpu_use(before.c_str()), MGRPO_OK);
  EXPECT_EQ(mgrpo_cpu_isa(), before);
}

// Linux's description of the CPU decides, where it has one.
TEST(Isa, BFloat16IsFaster) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), {}};
  const auto has = [&](const char *word) { return cpu.find(word) != std::string::npos; };
  if (!has("vendor_id")) GTEST_SKIP() << "no description of the CPU";
  if (has("amx_bf16")) return;  // Linux may forbid its use
  const std::string before = mgrpo_cpu_isa();
  if (!has("avx512_bf16") || mgrpo_cpu_use("avx512") != MGRPO_OK) {
    EXPECT_EQ(mgrpo_cpu_bf16_is_faster(), 0);
  } else if (has("AuthenticAMD")) {
    EXPECT_EQ(mgrpo_cpu_bf16_is_faster(), 1);
  } else if (has("GenuineIntel") && has("avx512_fp16")) {  // after Cooper Lake
    EXPECT_EQ(mgrpo_cpu_bf16_is_faster(), 0);
  }
  EXPECT_EQ(mgrpo_cpu_use(before.c_str()), MGRPO_OK);
}

}  // namespace
