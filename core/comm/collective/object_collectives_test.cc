#include "sherd/core/comm/object_collectives.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;

// Empty on rank 0, with NULs and of another length on each other rank.
std::string TextOf(int rank) {
  return std::string(static_cast<size_t>(7 * rank), static_cast<char>(rank)) +
         (rank == 0 ? "" : std::string("\0end", 4));
}

std::vector<std::string> TextsOf(int size) {
  std::vector<std::string> texts;
  for (int r = 0; r < size; ++r) texts.push_back(TextOf(r));
  return texts;
}

class ObjectCollectivesTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, ObjectCollectivesTest,
                         ::testing::Values(1, 2, 3, 5));

TEST_P(ObjectCollectivesTest, StringsOfAnyLengthGoFromAndToEveryRoot) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const std::vector<std::string> all = TextsOf(group.size());
    for (int root = 0; root < group.size(); ++root) {
      EXPECT_THAT(BroadcastString(group, TextOf(group.rank()), root),
                  IsOkAndHolds(TextOf(root)));
      const auto gathered = GatherStrings(group, TextOf(group.rank()), root);
      EXPECT_THAT(gathered, IsOkAndHolds(group.rank() == root
                                             ? all
                                             : std::vector<std::string>()));
      const std::vector<std::string> none;
      EXPECT_THAT(
          ScatterStrings(group, group.rank() == root ? all : none, root),
          IsOkAndHolds(TextOf(group.rank())));
    }
  });
}

TEST_P(ObjectCollectivesTest, StringsPassFromRankToRank) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    std::string text = "from 0";
    if (group.rank() > 0) {
      SHERD_ASSERT_OK_AND_ASSIGN(text, RecvString(group, group.rank() - 1, 3));
      SHERD_ASSERT_OK_AND_ASSIGN(const std::string empty,
                                 RecvString(group, group.rank() - 1, 3));
      EXPECT_EQ(empty, "");
    }
    EXPECT_EQ(text.size(), 6u + 2 * static_cast<size_t>(group.rank()));
    if (group.rank() + 1 < group.size()) {
      ASSERT_THAT(SendString(group, text + ", ", group.rank() + 1, 3), IsOk());
      ASSERT_THAT(SendString(group, "", group.rank() + 1, 3), IsOk());
    }
  });
}

TEST(ObjectCollectivesCapTest, TooLongStringsAreRefusedOnAllRanksAlike) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const StringOptions ten = {.max_bytes = 10};
    const StringOptions none = {.max_bytes = -1};
    const std::string eleven(11, 'x'), four(4, 'x');
    EXPECT_THAT(
        BroadcastString(group, group.rank() == 1 ? eleven : "", 1, ten),
        StatusIs(kExhausted, absl::StrCat("rank ", group.rank(),
                                          ", broadcast_string: the strings "
                                          "have 11 bytes, expected at most "
                                          "10")));
    // 12 bytes together.
    EXPECT_THAT(GatherStrings(group, four, 0, ten),
                StatusIs(kExhausted, "have 12 bytes, expected at most 10"));
    EXPECT_THAT(
        ScatterStrings(group,
                       group.rank() == 2 ? std::vector<std::string>(3, four)
                                         : std::vector<std::string>(),
                       2, ten),
        StatusIs(kExhausted, "have 12 bytes, expected at most 10"));
    EXPECT_THAT(BroadcastString(group, "a", 0, none),
                StatusIs(kExhausted, "have 1 bytes, expected at most 0"));
    EXPECT_THAT(SendString(group, eleven, (group.rank() + 1) % 3, 0, ten),
                StatusIs(kExhausted, "have 11 bytes"));
    // The group stays usable, and the limit itself is allowed.
    EXPECT_THAT(BroadcastString(group, std::string(10, 'y'), 0, ten),
                IsOkAndHolds(std::string(10, 'y')));
  });
}

// Values that a hostile peer could send in place of a length.
TEST(ObjectCollectivesCapTest, HostileLengthsTakeNoMemory) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    uint64_t lengths[] = {UINT64_MAX - 3, UINT64_MAX - 3};
    const auto bytes = [&](size_t count) {
      return MutableBytes(reinterpret_cast<std::byte*>(lengths),
                          count * sizeof(uint64_t));
    };
    if (group.rank() == 0) {
      ASSERT_THAT(group.Broadcast(bytes(1), 0), IsOk());
      ASSERT_THAT(group.Broadcast(bytes(2), 0), IsOk());
      uint64_t both[2];
      ASSERT_THAT(
          group.AllGather(bytes(1),
                          MutableBytes(reinterpret_cast<std::byte*>(both), 16)),
          IsOk());
      ASSERT_THAT(group.Send(bytes(1), 1), IsOk());
      return;
    }
    const StringOptions most = {.max_bytes = INT64_MAX};
    EXPECT_THAT(BroadcastString(group, "", 0), StatusIs(kExhausted));
    // Their sum overflows.
    EXPECT_THAT(ScatterStrings(group, {}, 0, most), StatusIs(kExhausted));
    EXPECT_THAT(GatherStrings(group, "1234", 0, most), StatusIs(kExhausted));
    const absl::Status status = RecvString(group, 0).status();
    EXPECT_THAT(status, StatusIs(kExhausted,
                                 "recv_string: the strings have "
                                 "18446744073709551612 bytes"));
    EXPECT_EQ(ErrorRank(status), 0);
    EXPECT_THAT(group.health(), StatusIs(kExhausted));
  });
}

TEST(ObjectCollectivesArgumentsTest, RootAloneScattersOneStringPerRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const std::vector<std::string> two = {"a", "b"};
    EXPECT_THAT(
        ScatterStrings(group, two, group.rank()),
        StatusIs(kInvalid, "there are 2 strings, expected 3, one per rank"));
    EXPECT_THAT(ScatterStrings(group, two, (group.rank() + 1) % 3),
                StatusIs(kInvalid, "expected none here, not 2"));
    EXPECT_THAT(BroadcastString(group, "", 3),
                StatusIs(kInvalid, "root is 3, expected 0 to 2"));
    EXPECT_THAT(GatherStrings(group, "", 0), IsOk());
  });
}

TEST(ObjectCollectivesArgumentsTest, AProcessThatIsNotAMemberGetsAnError) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, world.NewGroup({0}));
    if (world.rank() == 0) return;
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "not a member of the group");
    EXPECT_THAT(BroadcastString(*group, "a", 0), refused);
    EXPECT_THAT(GatherStrings(*group, "a", 0), refused);
    EXPECT_THAT(ScatterStrings(*group, {}, 0), refused);
    EXPECT_THAT(SendString(*group, "a", 0), refused);
    EXPECT_THAT(RecvString(*group, 0), refused);
  });
}

TEST(ObjectCollectivesTimeoutTest, ACallWhosePeerNeverComesEnds) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      // Leaves once rank 0 has given up.
      EXPECT_FALSE(group.Barrier().ok());
      return;
    }
    EXPECT_THAT(RecvString(group, 1, 9, {.timeout = absl::Milliseconds(20)}),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  });
}

// Written like what Protobuf generates.
struct Point {
  int32_t x = 0;
  int32_t y = 0;

  bool SerializeToString(std::string* bytes) const {
    if (x < 0) return false;
    bytes->assign(reinterpret_cast<const char*>(this), sizeof(*this));
    return true;
  }
  bool ParseFromString(const std::string& bytes) {
    if (bytes.size() != sizeof(*this)) return false;
    std::memcpy(this, bytes.data(), sizeof(*this));
    return true;
  }
  friend bool operator==(const Point&, const Point&) = default;
};

TEST_P(ObjectCollectivesTest, MessagesTravelLikeStrings) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const Point own = {group.rank(), 100 + group.rank()};
    const int last = group.size() - 1;
    SHERD_ASSERT_OK_AND_ASSIGN(const Point root,
                               BroadcastMessage(group, own, last));
    EXPECT_EQ(root, (Point{last, 100 + last}));
    SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<Point> all,
                               GatherMessages(group, own, last));
    ASSERT_EQ(all.size(), group.rank() == last ? group.size() : 0u);
    for (size_t r = 0; r < all.size(); ++r) {
      EXPECT_EQ(all[r].y, 100 + static_cast<int>(r));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Point back,
                               ScatterMessages<Point>(group, all, last));
    EXPECT_EQ(back, own);
    if (group.size() == 1) return;
    if (group.rank() == 0) {
      EXPECT_THAT(SendMessage(group, own, 1), IsOk());
    }
    if (group.rank() == 1) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Point from_0,
                                 RecvMessage<Point>(group, 0));
      EXPECT_EQ(from_0, (Point{0, 100}));
    }
  });
}

TEST(ObjectCollectivesMessageTest, AMalformedMessageIsRefusedWithItsSender) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      EXPECT_THAT(SendMessage(group, Point{-1, 0}, 1),
                  StatusIs(kInvalid, "cannot be serialized"));
      ASSERT_THAT(SendString(group, "123", 1), IsOk());
    } else {
      const absl::Status status = RecvMessage<Point>(group, 0).status();
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kDataLoss,
                           "the 3 bytes from rank 0 are not a message"));
      EXPECT_EQ(ErrorRank(status), 0);
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
