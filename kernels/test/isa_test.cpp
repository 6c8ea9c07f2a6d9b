#include "mgrpo/isa.h"

#include <cstdlib>
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

}  // namespace
