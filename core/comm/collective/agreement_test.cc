#include "sherd/core/comm/collective/agreement.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/comm/collective/agreement_scope.h"
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

// The group as a scope holds it; it outlives the scope.
std::shared_ptr<ProcessGroup> Shared(ProcessGroup& group) {
  return std::shared_ptr<ProcessGroup>(std::shared_ptr<void>(), &group);
}

class AgreementTest : public ::testing::TestWithParam<int> {};

TEST_P(AgreementTest, IsOkIfAllRanksAre) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(Agree(group, "work", absl::OkStatus(), {7}), IsOk());
  });
}

TEST_P(AgreementTest, AllRanksReturnTheErrorOfTheLowestRank) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const int failing_rank = group.size() / 2;
    const absl::Status local =
        group.rank() < failing_rank
            ? absl::OkStatus()
            : absl::OutOfRangeError(absl::StrCat("bad index ", group.rank()));
    const absl::Status status = Agree(group, "work", local);
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kOutOfRange,
                 HasSubstr(absl::StrCat("work: rank ", failing_rank,
                                        ": bad index ", failing_rank))));
    EXPECT_EQ(ErrorRank(status), failing_rank);
    EXPECT_THAT(group.Barrier(), IsOk()) << "the group stays usable";
  });
}

// Every rank passes one line that all have and one of its own.
absl::Status AgreeOnText(ProcessGroup& group, const std::string& own,
                         int* calls = nullptr) {
  return Agree(group, "work", absl::OkStatus(),
               {Fingerprint().Add(own).value(), [&] {
                  if (calls != nullptr) ++*calls;
                  return absl::StrCat("size [4]\n", own, "\nand more");
                }});
}

TEST_P(AgreementTest, NamesTheMinorityWithTheValuesOfBoth) {
  if (GetParam() < 3) return;
  for (const int odd : {0, GetParam() - 1}) {
    RunLocalRanks(GetParam(), [odd](ProcessGroup& group) {
      const absl::Status status =
          AgreeOnText(group, group.rank() == odd ? "dtype int8" : "dtype bool");
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           absl::StrCat("work: rank ", odd,
                                        " was called with other arguments: "
                                        "rank ",
                                        odd, " passed dtype int8; ranks ")));
      EXPECT_THAT(status.message(), HasSubstr(" passed dtype bool; every"));
      EXPECT_EQ(FailedRank(status), odd);
      const ErrorInfo info = GetErrorInfo(status);
      EXPECT_EQ(info.rank, odd);
      EXPECT_EQ(info.operation, "work");
      EXPECT_EQ(info.group, group.name());
      EXPECT_THAT(group.Barrier(), IsOk()) << "the group stays usable";
    });
  }
}

TEST_P(AgreementTest, NamesNoRankInADraw) {
  if (GetParam() == 1) return;
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    // Every rank passes a different value.
    const absl::Status status =
        AgreeOnText(group, absl::StrCat("value ", group.rank()));
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "work: a rank was called with other arguments: rank 1 "
                         "passed value 1; rank 0 passed value 0; "));
    EXPECT_EQ(GetErrorInfo(status).rank, std::nullopt);
    EXPECT_FALSE(IsRankFailure(status));
  });
}

TEST_P(AgreementTest, DescribesOnlyFieldsThatDiffer) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    int calls = 0;
    EXPECT_THAT(AgreeOnText(group, "dtype bool", &calls), IsOk());
    EXPECT_EQ(calls, 0);
  });
}

TEST_P(AgreementTest, ShowsOfALongValueThePartThatDiffers) {
  if (GetParam() < 3) return;
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    std::string own(3000, 'x');
    own[2000] = group.rank() == 1 ? 'o' : 'm';
    const absl::Status status = AgreeOnText(group, own);
    EXPECT_THAT(status.message(), HasSubstr("passed …xxx"));
    EXPECT_THAT(status.message(), HasSubstr("xox"));
    EXPECT_THAT(status.message(), HasSubstr("xmx"));
    EXPECT_LT(status.message().size(), 800u);
  });
}

TEST_P(AgreementTest, DistinguishesTheReportingRankFromTheFailedOne) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const absl::Status full =
        Agree(group, "work",
              group.rank() == 0 ? absl::ResourceExhaustedError("No space left")
                                : absl::OkStatus());
    EXPECT_EQ(ErrorRank(full), 0);
    EXPECT_FALSE(IsRankFailure(full)) << full;
    const absl::Status lost =
        Agree(group, "work",
              group.rank() == 0
                  ? WithFailedRank(absl::UnavailableError("its peer died"), 9)
                  : absl::OkStatus());
    EXPECT_EQ(ErrorRank(lost), 9);
    EXPECT_EQ(FailedRank(lost), 9);
  });
}

TEST_P(AgreementTest, ComparesValuesOfTheRanksThatHaveOne) {
  if (GetParam() < 5) return;
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const auto compare = [&](const std::vector<std::optional<uint64_t>>& of) {
      return CompareValues(group, "work", "has another layout", of, [&] {
        return absl::StrCat("layout ", *of[static_cast<size_t>(group.rank())]);
      });
    };
    EXPECT_THAT(compare({std::nullopt, 7, 7, std::nullopt, 7}), IsOk());
    const absl::Status status = compare({std::nullopt, 7, 8, std::nullopt, 8});
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "work: rank 1 has another layout: rank 1 passed "
                         "layout 7; ranks 2, 4 passed layout 8; every rank"));
    EXPECT_EQ(FailedRank(status), 1);
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
    EXPECT_THAT(AgreeOnMaximum(group, "work", absl::OkStatus(), {7},
                               10 + (group.rank() + 1) % group.size()),
                IsOkAndHolds(10 + group.size() - 1));
  });
}

TEST_P(AgreementTest, GivesAllRanksTheNotesOfAll) {
  struct Note {
    int64_t number = 0;
    std::array<int64_t, 40> more = {};
  };
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    Note mine;
    mine.number = 100 + group.rank();
    mine.more[39] = -group.rank();
    const auto notes =
        AgreeAndGather(group, "work", absl::OkStatus(), {7}, mine);
    ASSERT_THAT(notes, IsOk());
    ASSERT_EQ(notes->size(), static_cast<size_t>(group.size()));
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ((*notes)[r].number, 100 + r);
      EXPECT_EQ((*notes)[r].more[39], -r);
    }
    // Errors are found as without notes.
    const int failing_rank = group.size() / 2;
    const absl::Status failed =
        AgreeAndGather(group, "work",
                       group.rank() == failing_rank
                           ? absl::OutOfRangeError("bad")
                           : absl::OkStatus(),
                       {7}, mine)
            .status();
    EXPECT_THAT(failed,
                StatusIs(absl::StatusCode::kOutOfRange,
                         absl::StrCat("work: rank ", failing_rank, ": bad")));
    EXPECT_EQ(ErrorRank(failed), failing_rank);
    if (group.size() > 1) {
      EXPECT_THAT(AgreeAndGather(group, "work", absl::OkStatus(),
                                 {static_cast<uint64_t>(group.rank())}, mine)
                      .status(),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           "was called with other arguments"));
    }
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_P(AgreementTest, ANoteMayBeEmpty) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    EXPECT_THAT(
        AgreeAndGather(group, "work", absl::OkStatus(), {7}, ConstBytes(), {}),
        IsOk());
  });
}

TEST_P(AgreementTest, WaitsNoLongerThanTheTimeout) {
  if (GetParam() == 1) return;
  absl::Notification gave_up;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    if (group.rank() == 1) return gave_up.WaitForNotification();
    const absl::Status status = Agree(group, "work", absl::OkStatus(), {7},
                                      {.timeout = absl::Milliseconds(10)});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(ErrorRank(status), 1);
    gave_up.Notify();
  });
}

// The last rank makes progress `votes` times, and each time waits until the
// vote is over: then the others have begun to wait anew.
void StepOfTheLast(ProcessGroup& group, LongStep& step, uint64_t votes) {
  if (group.rank() != group.size() - 1) return;
  const auto rounds = [&] {
    return group.counters().Of(CollectiveOp::kAllGather).calls;
  };
  const uint64_t before = rounds();
  for (uint64_t i = 1; i <= votes; ++i) {
    EXPECT_THAT(step.MadeProgress(), IsOk());
    while (rounds() < before + i && group.health().ok()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

TEST_P(AgreementTest, ALongStepRenewsTheDeadlineOfWaitingRanks) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const uint64_t votes = group.size() == 1 ? 0 : 5;
    LongStep step(group, "work", {.interval = absl::ZeroDuration()});
    StepOfTheLast(group, step, votes);
    EXPECT_THAT(step.AgreeOnMaximum(absl::OkStatus(), {7}, group.rank() + 1),
                IsOkAndHolds(group.size()));
    EXPECT_EQ(group.counters().Of(CollectiveOp::kAllGather).calls, votes + 1);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_P(AgreementTest, AShortStepIsOneAgreement) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    LongStep step(group, "work", {.interval = absl::Hours(1)});
    EXPECT_THAT(step.MadeProgress(), IsOk());
    const absl::Status status = step.Agree(
        group.rank() == 0 ? absl::InternalError("bad") : absl::OkStatus());
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInternal, "work: rank 0: bad"));
    EXPECT_EQ(group.counters().Of(CollectiveOp::kAllGather).calls, 1u);
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

TEST_P(AgreementTest, ALongStepEndsWithTheNotesOfAllRanks) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const uint64_t votes = group.size() == 1 ? 0 : 3;
    const auto notes_of = [&](const absl::Status& local, LongStep& step) {
      std::vector<std::byte> notes(3 * static_cast<size_t>(group.size()));
      const std::vector<std::byte> own(
          3, static_cast<std::byte>(0x40 + group.rank()));
      const absl::Status status =
          step.AgreeAndGather(local, {7}, own, absl::MakeSpan(notes));
      for (size_t i = 0; status.ok() && i < notes.size(); ++i) {
        EXPECT_EQ(notes[i], static_cast<std::byte>(0x40 + i / 3)) << i;
      }
      return status;
    };
    LongStep step(group, "work",
                  {.interval = absl::ZeroDuration(), .note_bytes = 3});
    StepOfTheLast(group, step, votes);
    EXPECT_THAT(notes_of(absl::OkStatus(), step), IsOk());
    EXPECT_EQ(group.counters().Of(CollectiveOp::kAllGather).calls, votes + 1);
    LongStep failing(group, "work", {.note_bytes = 3});
    EXPECT_THAT(notes_of(group.rank() == 0 ? absl::InternalError("bad")
                                           : absl::OkStatus(),
                         failing),
                StatusIs(absl::StatusCode::kInternal, "work: rank 0: bad"));
  });
}

TEST(AgreementFailureTest, ARankWithoutProgressInALongStepIsNamed) {
  absl::Notification gave_up;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    LongStep step(
        group, "work",
        {.timeout = absl::Milliseconds(100), .interval = absl::ZeroDuration()});
    if (group.rank() == 1) {
      gave_up.WaitForNotification();
      EXPECT_THAT(step.Agree(absl::OkStatus()), ::testing::Not(IsOk()));
      return;
    }
    const absl::Status status = step.Agree(absl::OkStatus());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(FailedRank(status), 1) << status;
    EXPECT_EQ(GetErrorInfo(status).operation, "work");
    gave_up.Notify();
  });
}

TEST_P(AgreementTest, ARankInALongStepLearnsThatTheGroupFailed) {
  if (GetParam() == 1) return;
  RunLocalRanks(GetParam(), [&](ProcessGroup& group) {
    // Leaves.
    if (group.rank() == 0) return;
    LongStep step(group, "work", {.interval = absl::ZeroDuration()});
    absl::Status status;
    while (status.ok()) {
      status = step.MadeProgress();
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(FailedRank(status), 0) << status;
    EXPECT_EQ(FailedRank(step.Agree(absl::OkStatus())), 0);
  });
}

TEST_P(AgreementTest, ARankInALongStepLearnsThatAnotherOneEndedItWithAnError) {
  if (GetParam() == 1) return;
  for (const size_t note : {0, 3}) {
    RunLocalRanks(GetParam(), [&](ProcessGroup& group) {
      const bool fails = group.rank() == group.size() - 1;
      LongStep step(group, "work",
                    {.interval = absl::ZeroDuration(), .note_bytes = note});
      absl::Status status;
      if (fails) status = absl::DataLossError("bad");
      while (status.ok()) {
        status = step.MadeProgress();
        absl::SleepFor(absl::Milliseconds(1));
      }
      EXPECT_TRUE(fails || absl::IsCancelled(status)) << status;
      EXPECT_TRUE(fails || absl::IsCancelled(step.MadeProgress()));
      std::vector<std::byte> notes(note * static_cast<size_t>(group.size()));
      status = note == 0 ? step.Agree(status)
                         : step.AgreeAndGather(
                               status, {}, absl::MakeSpan(notes).first(note),
                               absl::MakeSpan(notes));
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   absl::StrCat("work: rank ", group.size() - 1,
                                                ": bad")));
      EXPECT_EQ(GetErrorInfo(status).rank, group.size() - 1);
      EXPECT_THAT(group.Barrier(), IsOk());
    });
  }
}

TEST_P(AgreementTest, AScopeTakesAnErrorToAnyAgreementOfTheOthers) {
  for (const int kind : {0, 1, 2, 3}) {
    RunLocalRanks(GetParam(), [&](ProcessGroup& group) {
      const bool fails = group.rank() == group.size() - 1;
      const std::string phrase =
          absl::StrCat("work: rank ", group.size() - 1, ": no more");
      std::vector<std::byte> notes(24 * static_cast<size_t>(group.size()));
      const std::vector<std::byte> note(24);
      const auto call = [&]() -> absl::Status {
        if (kind == 0) return Agree(group, "inner", absl::OkStatus(), {7});
        if (kind == 1) {
          // Another rank's error is not what the failed one waits for.
          return AgreeAndGather(
              group, "inner",
              group.rank() == 0 ? absl::InternalError("bad") : absl::OkStatus(),
              {7}, note, absl::MakeSpan(notes));
        }
        LongStep step(group, "inner",
                      {.interval = absl::ZeroDuration(), .note_bytes = 24});
        if (kind == 2 && group.rank() == 0) {
          absl::Status status;
          while (status.ok()) {
            status = step.MadeProgress();
            absl::SleepFor(absl::Milliseconds(1));
          }
        }
        return step.AgreeAndGather(absl::OkStatus(), {7}, note,
                                   absl::MakeSpan(notes));
      };
      {
        internal::AgreementScope scope(Shared(group));
        EXPECT_THAT(scope.Agree("work", absl::OkStatus(), {1}), IsOk());
        if (!fails) {
          for (int i = 0; i < 2; ++i) {
            EXPECT_THAT(call(),
                        StatusIs(absl::StatusCode::kOutOfRange, phrase));
          }
        }
        const absl::Status status =
            scope.Agree("work", fails ? absl::OutOfRangeError("no more")
                                      : absl::OkStatus());
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange, phrase));
        EXPECT_EQ(ErrorRank(status), group.size() - 1);
        EXPECT_EQ(scope.failure(), status);
      }
      EXPECT_THAT(Agree(group, "work", absl::OkStatus(), {7}), IsOk());
    });
  }
}

// Rank 1 of the inner group is the last rank of the outer one.
TEST(AgreementScopeTest, AFailureHasTheRanksOfEachGroup) {
  constexpr int kRanks = 4;
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto inner, group.NewGroup({2, 3}));
    internal::AgreementScope scope(Shared(group));
    if (inner->is_member()) {
      internal::AgreementScope within(inner);
      const absl::Status status = within.Agree(
          "inner", group.rank() == 3 ? absl::OutOfRangeError("no more")
                                     : absl::OkStatus());
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                   "inner: rank 1: no more"));
      EXPECT_EQ(ErrorRank(status), 1);
      EXPECT_EQ(GetErrorInfo(status).group, inner->name());
    }
    const absl::Status status = scope.Agree("outer", absl::OkStatus());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                 "outer: rank 2: inner: rank 1: no more"));
    EXPECT_EQ(ErrorRank(status), 3);
    EXPECT_EQ(GetErrorInfo(status).group, group.name());
    EXPECT_EQ(scope.failure(), status);
  });
}

TEST_P(AgreementTest, NotesTravelInAScopeToo) {
  RunLocalRanks(GetParam(), [](ProcessGroup& group) {
    const internal::AgreementScope scope(Shared(group));
    const auto notes =
        AgreeAndGather(group, "work", absl::OkStatus(), {7}, group.rank());
    ASSERT_THAT(notes, IsOk());
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ((*notes)[static_cast<size_t>(r)], r);
    }
    // An error of a call is not one of the scope.
    EXPECT_THAT(Agree(group, "work",
                      group.rank() == 0 ? absl::InternalError("bad")
                                        : absl::OkStatus()),
                StatusIs(absl::StatusCode::kInternal, "work: rank 0: bad"));
    EXPECT_THAT(scope.failure(), IsOk());
    LongStep step(group, "work", {.note_bytes = 1});
    std::vector<std::byte> all(static_cast<size_t>(group.size()));
    const std::vector<std::byte> own(1, static_cast<std::byte>(group.rank()));
    EXPECT_THAT(
        step.AgreeAndGather(absl::OkStatus(), {7}, own, absl::MakeSpan(all)),
        IsOk());
    EXPECT_EQ(all.back(), static_cast<std::byte>(group.size() - 1));
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
    EXPECT_THAT(AllGatherStrings(group, "0123456789", {}, 5),
                StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(group.Barrier(), IsOk());
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, AgreementTest,
                         ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace sherd
