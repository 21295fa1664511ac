#include "sherd/rpc/transfer/byte_runs.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

using Runs = std::vector<std::pair<uint64_t, size_t>>;

// Addresses and lengths of all runs, taken as many at once as `capacity`, and
// `step` bytes at a time.
Runs Walk(ByteRuns runs, size_t capacity, uint64_t step) {
  Runs all;
  std::vector<iovec> parts(capacity);
  while (const size_t count = runs.Peek(absl::MakeSpan(parts))) {
    uint64_t left = step;
    for (size_t i = 0; i < count && left > 0; ++i) {
      const uint64_t length = std::min<uint64_t>(left, parts[i].iov_len);
      all.emplace_back(reinterpret_cast<uintptr_t>(parts[i].iov_base), length);
      left -= length;
    }
    runs.Advance(step - left);
  }
  return all;
}

TEST(ByteRunsTest, ABoxWithoutGapsIsOneRun) {
  ByteRuns runs(1000, {2, 1, 3, 4}, {12, 77, 4, 1}, 8);
  EXPECT_EQ(runs.bytes(), 192);
  EXPECT_EQ(runs.run_bytes(), 192);
  EXPECT_THAT(Walk(runs, 5, 1 << 20), ElementsAre(Pair(1000, 192)));
  EXPECT_THAT(Walk(runs, 5, 100), ElementsAre(Pair(1000, 100), Pair(1100, 92)));
}

TEST(ByteRunsTest, AScalarIsOneRun) {
  EXPECT_THAT(Walk(ByteRuns(16, {}, {}, 2), 5, 100), ElementsAre(Pair(16, 2)));
}

TEST(ByteRunsTest, RunsAreInRowMajorOrder) {
  const ByteRuns runs(0, {2, 2, 3}, {100, 10, 1}, 4);
  EXPECT_EQ(runs.run_bytes(), 12);
  const auto all =
      ElementsAre(Pair(0, 12), Pair(40, 12), Pair(400, 12), Pair(440, 12));
  EXPECT_THAT(Walk(runs, 100, 1000), all);
  EXPECT_THAT(Walk(runs, 3, 1000), all);
  EXPECT_THAT(Walk(runs, 1, 1000), all);
  EXPECT_THAT(Walk(runs, 3, 18),
              ElementsAre(Pair(0, 12), Pair(40, 6), Pair(46, 6), Pair(400, 12),
                          Pair(440, 12)));
}

TEST(ByteRunsTest, TransposedElementsAreRunsOfTheirOwn) {
  EXPECT_THAT(Walk(ByteRuns(0, {2, 2}, {1, 2}, 4), 8, 100),
              ElementsAre(Pair(0, 4), Pair(8, 4), Pair(4, 4), Pair(12, 4)));
  // Repeated.
  EXPECT_THAT(Walk(ByteRuns(8, {3}, {0}, 4), 8, 100),
              ElementsAre(Pair(8, 4), Pair(8, 4), Pair(8, 4)));
}

}  // namespace
}  // namespace sherd::internal
