#include "sherd/tools/bench/harness/rank_processes.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/process/signal_receiver.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(5);
constexpr int kNoStop = -1;

class RankProcessesTest : public ::testing::Test {
 protected:
  RankProcessesTest()
      : board_(*Board::Create({.case_name = "test", .world = 3})) {}

  // Every process that this one started was waited for.
  static bool NoChildIsLeft() {
    return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
  }

  // Behaves as a rank whose peers have died: never ends by itself.
  [[noreturn]] void WaitForever() {
    BecomeRank(*board_);
    for (;;) pause();
  }

  const std::unique_ptr<Board> board_;
};

TEST_F(RankProcessesTest, WaitsForAllOfThem) {
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int rank) {
    BecomeRank(*board_);
    for (int i = 0; i < 1000; ++i) board_->Meet();
    board_->SetOutcome(rank, absl::OkStatus());
    return 0;
  }),
              IsOk());
  EXPECT_THAT(ranks.Wait(kLong, kNoStop), IsOk());
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, ARankThatReportsAnErrorEndsTheOthers) {
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int rank) {
    if (rank != 1) WaitForever();
    board_->SetOutcome(rank, absl::DataLossError("wrong result"));
    return 1;
  }),
              IsOk());
  const absl::Status status = ranks.Wait(kLong, kNoStop);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("rank 1"), HasSubstr("wrong result"))));
  EXPECT_EQ(ErrorRank(status), 1);
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, ARankThatIsKilledEndsTheOthers) {
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int rank) {
    if (rank != 2) WaitForever();
    raise(SIGKILL);
    return 0;
  }),
              IsOk());
  EXPECT_THAT(ranks.Wait(kLong, kNoStop),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 2"), HasSubstr("signal 9"))));
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, ARankThatEndsEarlyWithoutAWordIsAnError) {
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int rank) {
    if (rank != 0) WaitForever();
    return 0;
  }),
              IsOk());
  EXPECT_THAT(
      ranks.Wait(kLong, kNoStop),
      StatusIs(absl::StatusCode::kUnknown, HasSubstr("ended without a word")));
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, TheTimeLimitEndsAll) {
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int) -> int { WaitForever(); }), IsOk());
  EXPECT_THAT(ranks.Wait(absl::Milliseconds(20), kNoStop),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, ASignalToStopEndsAll) {
  const auto stop = SignalReceiver::Create({SIGTERM});
  ASSERT_THAT(stop, IsOk());
  RankProcesses ranks(*board_);
  ASSERT_THAT(ranks.Fork([this](int) -> int { WaitForever(); }), IsOk());
  kill(getpid(), SIGTERM);
  EXPECT_THAT(ranks.Wait(kLong, (*stop)->fd()),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(NoChildIsLeft());
}

TEST_F(RankProcessesTest, NoneOutlivesTheObject) {
  {
    RankProcesses ranks(*board_);
    ASSERT_THAT(ranks.Fork([this](int) -> int { WaitForever(); }), IsOk());
  }
  EXPECT_TRUE(NoChildIsLeft());
}

}  // namespace
}  // namespace sherd
