#include "sherd/core/comm/agreement.h"

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

class AgreementTest : public ::testing::TestWithParam<int> {};

TEST_P(AgreementTest, IsOkIfAllRanksAre) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(Agree(group, "work", absl::OkStatus(), 7), IsOk());
  });
}

TEST_P(AgreementTest, MakesTheLowestRanksErrorEverybodys) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const int culprit = group.size() / 2;
    const absl::Status local =
        group.rank() < culprit
            ? absl::OkStatus()
            : absl::OutOfRangeError(absl::StrCat("bad index ", group.rank()));
    const absl::Status status = Agree(group, "work", local);
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kOutOfRange,
                         HasSubstr(absl::StrCat("work: rank ", culprit,
                                                ": bad index ", culprit))));
    EXPECT_EQ(ErrorRank(status), culprit);
    EXPECT_THAT(group.Barrier(), IsOk()) << "the group stays usable";
  });
}

TEST_P(AgreementTest, NamesTheRankWithOtherArguments) {
  if (GetParam() == 1) return;
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const int odd_one = group.size() - 1;
    const absl::Status status =
        Agree(group, "work", absl::OkStatus(), group.rank() == odd_one ? 1 : 2);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("other arguments")));
    EXPECT_EQ(ErrorRank(status), odd_one);
  });
}

TEST_P(AgreementTest, TheOddOneIsWhoDiffersFromMost) {
  if (GetParam() < 3) return;
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const absl::Status status =
        Agree(group, "work", absl::OkStatus(), group.rank() == 0 ? 1 : 2);
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 "work: rank 0 was called with other arguments than rank 1"));
    EXPECT_EQ(ErrorRank(status), 0);
  });
}

TEST(AgreementFailureTest, ABrokenExchangeIsAFailureOfTheOperation) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    // Leaves.
    if (group.rank() == 1) return;
    const absl::Status status = Agree(group, "work", absl::OkStatus());
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable, "work: group"));
    EXPECT_EQ(GetErrorInfo(status).operation, "work");
    EXPECT_EQ(ErrorRank(status), 1);
  });
}

TEST_P(AgreementTest, ReturnsTheLargestValue) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(AgreeOnMaximum(group, "work", absl::OkStatus(), 7,
                               10 + (group.rank() + 1) % group.size()),
                IsOkAndHolds(10 + group.size() - 1));
  });
}

TEST_P(AgreementTest, TellsEverybodyTheNotesOfAll) {
  struct Note {
    int64_t number = 0;
    std::array<int64_t, 40> more = {};
  };
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    Note mine;
    mine.number = 100 + group.rank();
    mine.more[39] = -group.rank();
    const auto notes = AgreeAndTell(group, "work", absl::OkStatus(), 7, mine);
    ASSERT_THAT(notes, IsOk());
    ASSERT_EQ(notes->size(), static_cast<size_t>(group.size()));
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ((*notes)[r].number, 100 + r);
      EXPECT_EQ((*notes)[r].more[39], -r);
    }
    // What is wrong is found as without notes.
    const int culprit = group.size() / 2;
    const absl::Status failed =
        AgreeAndTell(group, "work",
                     group.rank() == culprit ? absl::OutOfRangeError("bad")
                                             : absl::OkStatus(),
                     7, mine)
            .status();
    EXPECT_THAT(failed,
                StatusIs(absl::StatusCode::kOutOfRange,
                         absl::StrCat("work: rank ", culprit, ": bad")));
    EXPECT_EQ(ErrorRank(failed), culprit);
    if (group.size() > 1) {
      EXPECT_THAT(
          AgreeAndTell(group, "work", absl::OkStatus(), group.rank(), mine)
              .status(),
          StatusIs(absl::StatusCode::kInvalidArgument, "other arguments"));
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_P(AgreementTest, ANoteMayBeEmpty) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(
        AgreeAndTell(group, "work", absl::OkStatus(), 7, ConstBytes(), {}),
        IsOk());
  });
}

TEST_P(AgreementTest, WaitsNoLongerThanToldTo) {
  if (GetParam() == 1) return;
  absl::Notification gave_up;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return gave_up.WaitForNotification();
    const absl::Status status = Agree(group, "work", absl::OkStatus(), 7,
                                      {.timeout = absl::Milliseconds(10)});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(ErrorRank(status), 1);
    gave_up.Notify();
  });
}

TEST_P(AgreementTest, CutsVeryLongErrors) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const absl::Status status =
        Agree(group, "work", absl::InternalError(std::string(100000, 'x')));
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_LT(status.message().size(), 5000u);
  });
}

TEST_P(AgreementTest, GathersStringsOfDifferentLengths) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    // Rank 0 sends nothing, rank r sends r copies of its digit.
    const std::string own(group.rank(), static_cast<char>('0' + group.rank()));
    const auto all = AllGatherStrings(group, own);
    ASSERT_THAT(all, IsOk());
    ASSERT_EQ(all->size(), static_cast<size_t>(group.size()));
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ((*all)[r], std::string(r, static_cast<char>('0' + r)));
    }
  });
}

TEST_P(AgreementTest, RefusesToGatherMoreThanTheLimitOnAllRanks) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(AllGatherStrings(group, "0123456789", 5),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, AgreementTest,
                         ::testing::Values(1, 2, 3, 5));

TEST(FingerprintTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(Fingerprint().value(), 0xcbf29ce484222325u);
  // FNV-1a of eight zero bytes.
  EXPECT_EQ(Fingerprint().Add(int64_t{0}).value(), 0xa8c7f832281a39c5u);
}

TEST(FingerprintTest, KeepsNeighbouringStringsApart) {
  EXPECT_NE(Fingerprint().Add("ab").Add("c").value(),
            Fingerprint().Add("a").Add("bc").value());
}

}  // namespace
}  // namespace sherd
