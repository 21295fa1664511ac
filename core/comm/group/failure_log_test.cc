#include "sherd/core/comm/group/failure_log.h"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// So that it is there before the log is.
struct MembershipOfRank {
  Membership membership;
};

// The log of a rank, and its knowledge of the others.
class RankLog : public MembershipOfRank, public FailureLog {
 public:
  RankLog(std::shared_ptr<Store> store, int rank, int size)
      : MembershipOfRank{Membership("test", rank, size, {}, 0)},
        FailureLog(std::move(store), membership) {}
};

class FailureLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<RankLog> Log(int rank, int size) {
    return std::make_unique<RankLog>(store_, rank, size);
  }

  // Logs of all ranks, which know each other.
  std::vector<std::unique_ptr<RankLog>> Joined(int size) {
    std::vector<std::unique_ptr<RankLog>> logs;
    for (int r = 0; r < size; ++r) {
      logs.push_back(Log(r, size));
      logs[r]->membership.SetProcesses(
          std::vector<std::string>(size, DescribeOwnProcess()));
    }
    return logs;
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(FailureLogTest, FollowsTheChainToTheFirstFailure) {
  auto logs = Joined(4);
  logs[2]->Report(absl::InternalError("disk full"), std::nullopt);
  logs[1]->Report(absl::UnavailableError("closed"), 2);
  const auto root_cause = logs[0]->FindRootCause(1, "closed");
  EXPECT_EQ(root_cause.rank, 2);
  EXPECT_THAT(root_cause.cause, HasSubstr("disk full"));
  EXPECT_EQ(root_cause.code, std::nullopt);
}

// A process that ends on request.
class LivingProcess {
 public:
  LivingProcess() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      close(ends[1]);
      char byte;
      _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ends[0]);
    control_ = ends[1];
  }
  ~LivingProcess() { End(); }

  void End() {
    if (control_ < 0) return;
    close(control_);
    control_ = -1;
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
  }

  // Stops it as a tracer does, until LetGo() of the same thread; false, with
  // errno, where processes must not be traced.
  bool Hold() const {
    if (ptrace(PTRACE_SEIZE, child_, nullptr, nullptr) != 0) return false;
    EXPECT_EQ(ptrace(PTRACE_INTERRUPT, child_, nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(child_, nullptr, __WALL), child_);
    return true;
  }
  void LetGo() const {
    EXPECT_EQ(ptrace(PTRACE_DETACH, child_, nullptr, nullptr), 0);
  }

  // As DescribeOwnProcess() in it.
  std::string Describe() const {
    return DescribeProcess(ProcessIdentity::Of(child_));
  }

 private:
  pid_t child_ = -1;
  int control_ = -1;
};

// A store in which something happens when a key was not there.
class WhenMissed final : public Store {
 public:
  explicit WhenMissed(std::shared_ptr<Store> base) : base_(std::move(base)) {}

  void Do(std::string key, std::function<void()> what) {
    key_ = std::move(key);
    what_ = std::move(what);
  }

  absl::StatusOr<std::string> Get(absl::string_view key,
                                  Deadline deadline) override {
    absl::StatusOr<std::string> value = base_->Get(key, deadline);
    if (key == key_ && !value.ok() && what_ != nullptr) {
      std::exchange(what_, nullptr)();
    }
    return value;
  }
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return base_->Set(key, value);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    return base_->Add(key, amount);
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key,
                                         absl::string_view expected,
                                         absl::string_view desired) override {
    return base_->CompareSet(key, expected, desired);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    return base_->Delete(key);
  }
  absl::StatusOr<int64_t> DeletePrefix(absl::string_view prefix) override {
    return base_->DeletePrefix(prefix);
  }
  absl::Status Retire(absl::string_view prefix, int members) override {
    return base_->Retire(prefix, members);
  }
  absl::Status Wait(absl::Span<const std::string> keys,
                    Deadline deadline) override {
    return base_->Wait(keys, deadline);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override {
    return base_->MultiGet(keys, deadline);
  }
  absl::StatusOr<bool> Contains(absl::string_view key) override {
    ++looks_;
    return base_->Contains(key);
  }
  // Calls of Contains.
  int looks() const { return looks_; }

 private:
  const std::shared_ptr<Store> base_;
  std::string key_;
  std::function<void()> what_;
  int looks_ = 0;
};

// Three ranks, of which rank 1 is another process, seen by rank 0.
class RankOfAnotherProcess : public FailureLogTest {
 protected:
  RankOfAnotherProcess() {
    log_.membership.SetProcesses(
        {DescribeOwnProcess(), process_.Describe(), DescribeOwnProcess()});
  }

  // As rank 1 does it.
  void FailAndEnd() {
    RankLog(store_, 1, 3).Report(absl::UnavailableError("closed"), 2);
    RankLog(store_, 2, 3).Report(absl::InternalError("disk full"), {});
    process_.End();
  }

  LivingProcess process_;
  // The store as rank 0 sees it.
  const std::shared_ptr<WhenMissed> missed_ =
      std::make_shared<WhenMissed>(store_);
  RankLog log_ = RankLog(missed_, 0, 3);
};

TEST_F(RankOfAnotherProcess, IsAliveAndReportsNothing) {
  EXPECT_EQ(log_.FindRootCause(1, "the symptom").cause, "the symptom");
  EXPECT_EQ(log_.FirstSuspect(), std::nullopt);
  EXPECT_EQ(log_.FindFailedRank(), std::nullopt);
}

TEST_F(RankOfAnotherProcess, DiedWithoutAReport) {
  process_.End();
  EXPECT_THAT(log_.FindRootCause(1, "closed").cause,
              HasSubstr("died (process"));
  EXPECT_EQ(log_.FirstSuspect(), 1);
  EXPECT_EQ(log_.FindFailedRank(), 1);
}

TEST_F(RankOfAnotherProcess, ThatEndsBetweenTwoLooksIsNotTakenForDead) {
  missed_->Do("failure/1", [&] { FailAndEnd(); });
  const auto root_cause = log_.FindRootCause(1, "closed");
  EXPECT_EQ(root_cause.rank, 2);
  EXPECT_THAT(root_cause.cause, HasSubstr("disk full"));
}

// As a leak checker stops a process while it ends.
TEST_F(RankOfAnotherProcess, ThatATracerHoldsForAMomentIsNotTakenForStopped) {
  if (!process_.Hold()) {
    GTEST_SKIP() << "no process may be traced here: " << strerror(errno);
  }
  ASSERT_EQ(StateOf(process_.Describe()), ProcessState::kTraced);
  missed_->Do("failure/1", [&] {
    process_.LetGo();
    FailAndEnd();
  });
  const auto root_cause = log_.FindRootCause(1, "closed");
  EXPECT_EQ(root_cause.rank, 2);
  EXPECT_THAT(root_cause.cause, HasSubstr("disk full"));
}

TEST_F(RankOfAnotherProcess, ThatADebuggerHoldsIsStopped) {
  if (!process_.Hold()) {
    GTEST_SKIP() << "no process may be traced here: " << strerror(errno);
  }
  EXPECT_THAT(log_.FindRootCause(1, "closed").cause, HasSubstr("is stopped"));
  EXPECT_EQ(log_.FirstSuspect(), 1);
  EXPECT_TRUE(log_.IsStopped(1));
  process_.LetGo();
}

TEST_F(RankOfAnotherProcess, ThatFailsBetweenTwoChecksHasNotLeft) {
  missed_->Do("failure/1", [&] {
    FailAndEnd();
    RankLog(store_, 1, 3).ReportLeaving();
  });
  EXPECT_EQ(log_.FindRootCause(1, "closed").rank, 2);
}

TEST_F(RankOfAnotherProcess, ThatEndsBetweenTwoChecksIsNotASuspectYet) {
  missed_->Do("failure/1", [&] { FailAndEnd(); });
  // The next check finds it as a rank that knows the failed rank.
  EXPECT_EQ(log_.FirstSuspect(), 2);
  EXPECT_EQ(log_.FirstSuspect(), 1);
}

TEST_F(RankOfAnotherProcess, ThatLeftHasNotFailed) {
  RankLog(store_, 1, 3).ReportLeaving();
  process_.End();
  EXPECT_EQ(log_.FindFailedRank(), std::nullopt);
}

TEST_F(RankOfAnotherProcess, ThatTimedOutHasNotFailed) {
  RankLog(store_, 1, 3).Report(absl::DeadlineExceededError("late"), 2);
  EXPECT_EQ(log_.FindFailedRank(), std::nullopt);
  process_.End();
  EXPECT_EQ(log_.FindFailedRank(), std::nullopt);
}

TEST_F(RankOfAnotherProcess, IsFoundOnceItFailed) {
  RankLog(store_, 1, 3).Report(absl::InternalError("disk full"), {});
  RankLog(store_, 2, 3).Report(absl::UnavailableError("closed"), 1);
  EXPECT_EQ(log_.FindFailedRank(), 1);
}

TEST_F(RankOfAnotherProcess, ThatFailedEndsAnExchange) {
  RankLog(store_, 1, 3).Report(absl::InternalError("disk full"), {});
  const auto values = log_.Exchange("step", "", Deadline::Infinite());
  EXPECT_THAT(values, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 1: disk full")));
  EXPECT_EQ(ErrorRank(values.status()), 1);
}

TEST_F(RankOfAnotherProcess, ThatEndedBeforeAnExchangeIsNamed) {
  ASSERT_THAT(store_->Set("exchange/step/2", "two"), IsOk());
  process_.End();
  const auto values = log_.Exchange("step", "", Deadline::Infinite());
  EXPECT_THAT(values, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 1: died (process")));
  EXPECT_EQ(FailedRank(values.status()), 1);
}

TEST_F(RankOfAnotherProcess, ThatEndedAfterItTookPartHasExchangedItsValue) {
  ASSERT_THAT(store_->Set("exchange/step/1", "one"), IsOk());
  process_.End();
  const auto late =
      log_.Exchange("step", "", Deadline::After(absl::Milliseconds(10)));
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             "rank 2 did not come in time"));
  EXPECT_EQ(FailedRank(late.status()), 2);
  ASSERT_THAT(store_->Set("exchange/step/2", "two"), IsOk());
  EXPECT_THAT(log_.Exchange("step", "zero", Deadline::Infinite()),
              IsOkAndHolds(ElementsAre("zero", "one", "two")));
}

TEST_F(FailureLogTest, AnExchangeLooksOnceForARankThatTookPart) {
  constexpr int kSize = 40;
  for (int r = 1; r < kSize - 1; ++r) {
    ASSERT_THAT(store_->Set(absl::StrCat("exchange/step/", r), ""), IsOk());
  }
  const auto counted = std::make_shared<WhenMissed>(store_);
  RankLog log(counted, 0, kSize);
  log.membership.SetProcesses(
      std::vector<std::string>(kSize, DescribeOwnProcess()));
  // Two looks or more, where this thread is not held up.
  EXPECT_THAT(
      log.Exchange("step", "", Deadline::After(absl::Milliseconds(400))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               absl::StrCat("rank ", kSize - 1, " did not come")));
  EXPECT_EQ(counted->looks(), kSize - 1);
}

TEST_F(FailureLogTest, RanksTogetherSeeAllProcessesAtOnce) {
  constexpr int kSize = 100;
  constexpr int kVictim = 83;
  LivingProcess victim;
  std::vector<std::string> processes(kSize, DescribeOwnProcess());
  processes[kVictim] = victim.Describe();
  std::vector<std::unique_ptr<RankLog>> logs;
  for (int r = 0; r < 10; ++r) {
    logs.push_back(Log(r, kSize));
    logs[r]->membership.SetProcesses(processes);
  }
  victim.End();
  int finders = 0;
  for (const auto& log : logs) {
    const std::optional<int> failed = log->FindFailedRank();
    if (!failed) continue;
    EXPECT_EQ(failed, kVictim);
    ++finders;
  }
  EXPECT_GE(finders, 1);
  // One alone needs several looks.
  int looks = 1;
  while (!logs[0]->FindFailedRank()) ++looks;
  EXPECT_LE(looks, kSize / 16 + 1);
}

TEST_F(FailureLogTest, ReportsARankThatLeft) {
  auto logs = Joined(2);
  logs[1]->ReportLeaving();
  const auto root_cause = logs[0]->FindRootCause(1, "closed");
  EXPECT_EQ(root_cause.rank, 1);
  EXPECT_EQ(root_cause.cause, "left the group");
}

TEST_F(FailureLogTest, ReportsRanksThatWaitForEachOther) {
  auto logs = Joined(3);
  logs[1]->Report(absl::DeadlineExceededError("slow"), 2);
  logs[2]->Report(absl::DeadlineExceededError("slow"), 1);
  EXPECT_THAT(logs[0]->FindRootCause(1, "slow").cause,
              HasSubstr("wait for each other: the ranks made different calls"));
}

TEST_F(FailureLogTest, ReportsAPeerThatGaveUpOnThisRank) {
  auto logs = Joined(2);
  logs[1]->Report(absl::DeadlineExceededError("slow"), 0);
  const auto root_cause = logs[0]->FindRootCause(1, "slow");
  EXPECT_EQ(root_cause.rank, 1);
  EXPECT_THAT(root_cause.cause, HasSubstr("gave up waiting for this rank"));
}

TEST_F(FailureLogTest, OnlyTheFirstReportCounts) {
  auto logs = Joined(2);
  logs[1]->Report(absl::InternalError("first"), std::nullopt);
  logs[1]->Report(absl::InternalError("second"), std::nullopt);
  EXPECT_THAT(logs[0]->FindRootCause(1, "").cause, HasSubstr("first"));
}

TEST_F(FailureLogTest, NamesASilentPeerWithTheSymptom) {
  auto logs = Joined(2);
  const auto root_cause = logs[0]->FindRootCause(1, "did not come in time");
  EXPECT_EQ(root_cause.rank, 1);
  EXPECT_EQ(root_cause.cause, "did not come in time");
}

TEST_F(FailureLogTest, SuspectsFailedRanksBeforeWaitingOnes) {
  const auto logs = Joined(4);
  EXPECT_EQ(logs[1]->FirstSuspect(), std::nullopt);
  // Waited, for an unknown rank.
  logs[0]->Report(absl::DeadlineExceededError("late"), std::nullopt);
  EXPECT_EQ(logs[1]->FirstSuspect(), 0);
  EXPECT_EQ(logs[0]->FirstSuspect(), std::nullopt);
  logs[2]->Report(absl::InternalError("broken"), std::nullopt);
  EXPECT_EQ(logs[1]->FirstSuspect(), 2);
  EXPECT_EQ(logs[0]->FirstSuspect(), 2);
}

}  // namespace
}  // namespace sherd::internal
