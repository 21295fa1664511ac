#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

TEST(LocalBackendTest, DifferentOperationsAreAnErrorThatNamesTheRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    std::byte buffer[4] = {};
    const absl::Status status = group.rank() == 1
                                    ? group.Broadcast(absl::MakeSpan(buffer), 0)
                                    : group.Barrier();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("called broadcast")));
    EXPECT_EQ(BlamedRank(status), 1);
  });
}

TEST(LocalBackendTest, DifferentLengthsAreAnErrorOnAllRanks) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    std::vector<std::byte> buffer(group.rank() == 0 ? 4 : 8);
    EXPECT_THAT(group.Broadcast(absl::MakeSpan(buffer), 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("8 bytes; rank 0 called")));
  });
}

TEST(LocalBackendTest, AMessageThatDoesNotFitItsReceiverIsAnError) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    std::byte bytes[8] = {};
    std::vector<ConstBytes> sends(2);
    std::vector<MutableBytes> recvs(2);
    const int other = 1 - group.rank();
    sends[other] = absl::MakeConstSpan(bytes, group.rank() == 0 ? 3 : 2);
    recvs[other] = absl::MakeSpan(bytes + 4, 2);
    EXPECT_THAT(group.AllToAllV(sends, recvs),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("sends 3 bytes to rank 1 in all_to_all_v, "
                                   "which expects 2")));
  });
}

TEST(LocalBackendTest, ARankThatLeavesEndsTheWaitOfTheOthers) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    if (group.rank() == 2) {
      EXPECT_THAT(group.Destroy(), IsOk());
      return;
    }
    const absl::Status status = group.Barrier();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr("rank 2: left the group")));
  });
}

TEST(LocalBackendTest, AbortFromAnotherRankEndsAWait) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      group.Abort(absl::CancelledError("stop"));
      return;
    }
    EXPECT_FALSE(group.Barrier().ok());
  });
}

}  // namespace
}  // namespace sherd
