#include "sherd/tools/bench/harness/proportional_memory.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(ProportionalMemoryTest, GrowsByTouchedPages) {
  constexpr int64_t kBytes = int64_t{32} << 20;
  const int64_t before = ProportionalMemory();
  ASSERT_GT(before, 0);
  const std::vector<char> touched(kBytes, 'x');
  // Other processes may share pages with this one by now.
  EXPECT_GE(ProportionalMemory() - before, kBytes / 2);
  EXPECT_EQ(touched.back(), 'x');
}

}  // namespace
}  // namespace sherd
