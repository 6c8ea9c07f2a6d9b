#include "mgrpo/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

// Random123's known answers.
TEST(Philox, KnownAnswers) {
  const auto words = [](mgrpo_philox_block b) { return std::vector<uint32_t>(b.word, b.word + 4); };
  EXPECT_EQ(words(mgrpo_philox(0, 0, 0, 0, 0, 0)), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(words(mgrpo_philox(ones, ones, ones, ones, ones, ones)),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(mgrpo_philox(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0)),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformStaysBelowOne) {
  const mgrpo_philox_block largest = {{0xffffffff, 0xffffffff, 0, 0}}, least = {{0, 0x7ff, 0, 0}};
  EXPECT_LT(mgrpo_philox_uniform(largest), 1.0);
  EXPECT_EQ(mgrpo_philox_uniform(least), 0.0);
}

}  // namespace
