#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/storage.h"
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
    EXPECT_EQ(FailedRank(status), 1);
  });
}

TEST(LocalBackendTest, DifferentLengthsAreAnErrorOnAllRanks) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    std::vector<std::byte> buffer(group.rank() == 0 ? 4 : 8);
    EXPECT_THAT(
        group.Broadcast(absl::MakeSpan(buffer), 0),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("rank 1 called broadcast (root 0, 8 bytes); "
                           "rank 0 called broadcast (root 0, 4 bytes)")));
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

TEST(LocalBackendTest, EveryAddressCanBeReachedByHandlesOfTheGroup) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const std::shared_ptr<PeerMemory> memory = group.peer_memory();
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(&group.shard_allocator(), &HeapAllocator());
    const int other = 1 - group.rank();
    int value = 70 + group.rank();
    const std::optional<MemoryHandle> own =
        memory->Export(&value, sizeof(value));
    ASSERT_TRUE(own.has_value());
    std::vector<MemoryHandle> handles(2);
    ASSERT_THAT(
        group.AllGather(
            ConstBytes(reinterpret_cast<const std::byte*>(&*own), sizeof(*own)),
            MutableBytes(reinterpret_cast<std::byte*>(handles.data()),
                         2 * sizeof(*own))),
        IsOk());
    const auto range = memory->Import(other, handles[other]);
    ASSERT_THAT(range, IsOk());
    EXPECT_EQ(range->size(), sizeof(value));
    EXPECT_EQ(*reinterpret_cast<const int*>(range->data()), 70 + other);
    // In another group no rank made them.
    const auto next = group.NewGroup({0, 1});
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT((*next)->peer_memory()->Import(other, handles[other]),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("in another group")));
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

TEST(LocalBackendTest, AGroupOfOneRankHasNoMemoryOfPeers) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    EXPECT_EQ(group.peer_memory(), nullptr);
    EXPECT_EQ(&group.shard_allocator(), &HeapAllocator());
  });
}

}  // namespace
}  // namespace sherd
