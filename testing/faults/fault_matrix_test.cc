// One rank of three fails at a named point, by each kind of fault: the others
// get an error that names it, in time, and continue.

#include "sherd/testing/faults/fault_matrix.h"

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

// A vendor's library that ends all ranks with the first leaves nothing to look
// at.
bool RanksDieTogether() { return GetKnobOr(Knob::kTestBackend, "") == "mpi"; }

std::vector<FaultCase> Cross(absl::Span<const absl::string_view> points,
                             bool can_fail = true) {
  std::vector<FaultCase> cases;
  for (const absl::string_view point : points) {
    if (!RanksDieTogether()) {
      cases.push_back({point, FaultKind::kKill});
      cases.push_back({point, FaultKind::kStop});
    }
    cases.push_back({point, FaultKind::kSlow});
    if (can_fail) cases.push_back({point, FaultKind::kError});
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<FaultCase>& info) {
  return Name(info.param);
}

class FaultMatrix : public DistributedTest,
                    public ::testing::WithParamInterface<FaultCase> {
 protected:
  int world_size() const override { return kRanks; }

  void Expect(absl::Status (*run)(ConformanceRank&, const FaultCase&)) {
    ConformanceRank rank = {.group = group(),
                            .dies_together = RanksDieTogether()};
    if (RanksDieTogether()) SkipFinalBarrier();
    rank.expect_death = [this](int dying, int signal) {
      ExpectRankDies(dying, signal);
    };
    const absl::Status status = run(rank, GetParam());
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

class Collectives : public FaultMatrix {};
SHERD_DIST_TEST_P(Collectives, NameTheRankAndEnd) {
  Expect(FaultInACollective);
}
INSTANTIATE_TEST_SUITE_P(
    Points, Collectives,
    ::testing::ValuesIn(Cross({"comm/before_comparison", "comm/before_post",
                               "plugin/post", "comm/after_post",
                               "comm/after_completion"})),
    NameOf);

class Messages : public FaultMatrix {};
SHERD_DIST_TEST_P(Messages, NameTheRankAndEnd) { Expect(FaultInAMessage); }
INSTANTIATE_TEST_SUITE_P(
    Points, Messages,
    ::testing::ValuesIn(Cross({"comm/before_post", "plugin/post",
                               "comm/after_post", "comm/after_completion"})),
    NameOf);

class NewGroups : public FaultMatrix {};
SHERD_DIST_TEST_P(NewGroups, NameTheRankAndEnd) { Expect(FaultInANewGroup); }
INSTANTIATE_TEST_SUITE_P(Points, NewGroups,
                         ::testing::ValuesIn(Cross({"comm/new_group",
                                                    "comm/before_connecting",
                                                    "comm/after_connecting"})),
                         NameOf);

class Ends : public FaultMatrix {};
SHERD_DIST_TEST_P(Ends, NameTheRank) { Expect(FaultAtTheEnd); }
INSTANTIATE_TEST_SUITE_P(Points, Ends,
                         ::testing::ValuesIn(Cross({"comm/destroy",
                                                    "comm/abort"},
                                                   /*can_fail=*/false)),
                         NameOf);

class StoreMessages : public DistributedTest {
 protected:
  int world_size() const override { return kRanks; }

  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroup(
      absl::Duration timeout) {
    return group().NewGroup({0, 1, 2}, {.timeout = timeout});
  }
};

SHERD_DIST_TEST_F(StoreMessages, ALostRecordOfAMemberIsThatRanksAbsence) {
  {
    const DropStoreMessage lost("*/groups/*/member/1", {.rank = 1});
    const auto made = NewGroup(kShortTimeout);
    EXPECT_THAT(made, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               "rank 1 of 3 did not join in time"));
    EXPECT_EQ(ErrorRank(made.status()), 1);
  }
  const auto made = NewGroup(LongTimeout());
  ASSERT_THAT(made, IsOk());
  EXPECT_THAT((*made)->Barrier(), IsOk());
}

SHERD_DIST_TEST_F(StoreMessages, ALateRecordOfAMemberIsWaitedFor) {
  const DelayStoreMessage late("*/groups/*/member/1", absl::Milliseconds(100),
                               {.rank = 1});
  const auto made = NewGroup(LongTimeout());
  ASSERT_THAT(made, IsOk());
  EXPECT_THAT((*made)->Barrier(), IsOk());
}

SHERD_DIST_TEST_F(StoreMessages, ALostRecordOfAFailureCostsTheReasonOnly) {
  const auto made = NewGroup(LongTimeout());
  ASSERT_THAT(made, IsOk());
  {
    const FailAt error("comm/before_post", absl::InternalError("the reason"),
                       {.rank = 1});
    const DropStoreMessage lost("*/groups/*/failure/1", {.rank = 1});
    const absl::Status status = (*made)->Barrier();
    if (rank() == 1) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, "the reason"));
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
      EXPECT_EQ(ErrorRank(status), 1) << status;
    }
  }
  EXPECT_THAT(group().Barrier(), IsOk());
}

// A connecting rank waits for the timed-out rank, and is notified of the failed
// one.
SHERD_DIST_TEST_F(StoreMessages, ATimedOutRankIsNotNamedForOneThatFailed) {
  // Longer than a rank is given to write down what it knows.
  const SlowRankAt late("comm/before_connecting", 1, absl::Seconds(2));
  const FailAt error("comm/before_connecting",
                     absl::InternalError("the reason"), {.rank = 2});
  const auto made = NewGroup(LongTimeout());
  ASSERT_FALSE(made.ok());
  if (rank() == 2) {
    EXPECT_THAT(made, StatusIs(absl::StatusCode::kInternal, "the reason"));
  } else {
    EXPECT_THAT(made, StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
    EXPECT_EQ(ErrorRank(made.status()), 2) << made.status();
  }
}

// Init, and its outcome.
class Inits : public FaultMatrix {
 protected:
  void ExpectOutcome(const absl::Status& status, int failed_rank) {
    if (GetParam().kind == FaultKind::kSlow) {
      EXPECT_THAT(status, IsOk());
    } else if (rank() == failed_rank) {
      EXPECT_THAT(ExpectInjected(status), IsOk());
    } else {
      EXPECT_THAT(status, ::testing::Not(IsOk()));
      EXPECT_EQ(ErrorRank(status), failed_rank) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", failed_rank)));
    }
  }

  void Tell(absl::string_view what) {
    EXPECT_THAT(store().Set(absl::StrCat(what, rank()), ""), IsOk());
  }

  // Waits until all ranks but the failed one have reported `what`.
  void WaitForOthers(absl::string_view what, int failed_rank) {
    for (int r = 0; r < world_size(); ++r) {
      if (r == failed_rank) continue;
      EXPECT_THAT(
          store().Get(absl::StrCat(what, r), Deadline::After(timeout() / 2)),
          IsOk());
    }
  }
};

SHERD_DIST_TEST_P(Inits, NameTheRankAndEnd, WithoutComms{}) {
  const FaultCase fault = GetParam();
  const int failed_rank = RankToFail(fault, world_size());
  const bool dies =
      fault.kind == FaultKind::kKill || fault.kind == FaultKind::kStop;
  if (dies) ExpectRankDies(failed_rank, SIGKILL);
  ASSERT_THAT(TellOwnProcess(store(), rank()), IsOk());
  // A connecting rank finds out that another rank failed or ended, and does not
  // wait for its deadline, unless it waits in a vendor's library.
  const bool is_told =
      (fault.point == "comm/before_connecting" &&
       fault.kind != FaultKind::kStop && !RanksDieTogether()) ||
      (fault.point == "comm/after_connecting" &&
       fault.kind == FaultKind::kError);
  const absl::Duration limit =
      is_told || fault.kind == FaultKind::kSlow ? LongTimeout() : kShortTimeout;
  // A rank that arrives after the others have given up finds no peer.
  std::optional<CallAt> met;
  if (fault.point == "comm/after_meeting" && fault.kind == FaultKind::kError) {
    met.emplace("comm/after_meeting", [&] {
      if (rank() == failed_rank) {
        WaitForOthers("met", failed_rank);
      } else {
        Tell("met");
      }
    });
  }
  const Stopwatch watch;
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group;
  absl::Status status;
  {
    const ArmedFault armed(fault, rank(), world_size());
    group = Init(
        {.backend = GetKnobOr(Knob::kTestBackend, "gloo"), .timeout = limit});
    status = group.ok() ? (*group)->Barrier() : group.status();
  }
  EXPECT_THAT(watch.Expect(is_told ? limit / 2 : 2 * limit + kPatience, "init"),
              IsOk());
  ExpectOutcome(status, failed_rank);
  if (group.ok()) {
    EXPECT_THAT((*group)->Destroy(), IsOk());
  }
  if (fault.kind == FaultKind::kError && RanksDieTogether()) {
    // The first that leaves ends the others.
    Tell("done");
    WaitForOthers("done", rank());
  }
  if (fault.kind != FaultKind::kStop) return;
  Tell("done");
  if (rank() != (failed_rank == 0 ? 1 : 0)) return;
  WaitForOthers("done", failed_rank);
  EXPECT_THAT(EndProcess(store(), failed_rank), IsOk());
}
INSTANTIATE_TEST_SUITE_P(Points, Inits,
                         ::testing::ValuesIn(Cross({"comm/before_meeting",
                                                    "comm/after_meeting",
                                                    "comm/before_connecting",
                                                    "comm/after_connecting"})),
                         NameOf);

}  // namespace
}  // namespace sherd::testing::internal
