#include "sherd/core/comm/group/peer_monitor.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSize = 3;

// One rank of a group of kSize, which are all in this process.
class Rank : private PeerMonitor::Owner {
 public:
  Rank(std::shared_ptr<Store> store, int rank)
      : store_(store),
        membership_("test", rank, kSize, {4, 5, 6}, 8),
        peers_(store, WithProcesses(membership_), *this) {}

  PeerMonitor& peers() { return peers_; }
  int ended() const { return ended_; }
  bool reported_before_end() const { return reported_before_end_; }
  std::optional<int> found() const { return found_; }

 private:
  static const Membership& WithProcesses(Membership& membership) {
    membership.SetProcesses(
        std::vector<std::string>(kSize, DescribeOwnProcess()));
    return membership;
  }

  void EndOperations() override {
    ++ended_;
    const absl::StatusOr<bool> reported =
        store_->Contains("failure/" + std::to_string(membership_.rank()));
    reported_before_end_ = reported.ok() && *reported;
  }
  void FoundFailedRank(int rank) override { found_ = rank; }

  const std::shared_ptr<Store> store_;
  Membership membership_;
  int ended_ = 0;
  bool reported_before_end_ = false;
  std::optional<int> found_;
  PeerMonitor peers_;
};

class PeerMonitorTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
  Rank a_{store_, 0}, b_{store_, 1}, c_{store_, 2};
};

TEST_F(PeerMonitorTest, AFailureIsReportedBeforeOperationsEndAndPoisons) {
  EXPECT_TRUE(a_.peers().usable());
  EXPECT_THAT(a_.peers().health(), IsOk());
  const absl::Status status =
      a_.peers().Fail("all_reduce", 7, absl::InternalError("disk full"));
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("group \"test\", rank 0 (rank 4 of the job), "
                                 "all_reduce #7: disk full")));
  EXPECT_EQ(a_.ended(), 1);
  EXPECT_TRUE(a_.reported_before_end());
  EXPECT_FALSE(a_.peers().usable());
  EXPECT_EQ(a_.peers().health(), status);
  const absl::Status refusal = a_.peers().Refusal("barrier", 8);
  EXPECT_THAT(refusal, StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("barrier #8: the group is not usable "
                                          "any more: group \"test\"")));
}

TEST_F(PeerMonitorTest, TheRootCauseIsFoundBehindTheRankThatWasWaitedFor) {
  c_.peers().Fail("barrier", 1, absl::InternalError("disk full")).IgnoreError();
  b_.peers()
      .Fail("barrier", 1, WithRank(absl::UnavailableError("closed"), 2))
      .IgnoreError();
  const absl::Status status = a_.peers().Fail(
      "barrier", 1, WithRank(absl::UnavailableError("closed"), 1));
  EXPECT_EQ(FailedRank(status), 2);
  EXPECT_THAT(status.message(), HasSubstr("disk full"));
  EXPECT_THAT(status.message(),
              HasSubstr("rank 2 of the group is rank 6 of the job"));
  EXPECT_EQ(a_.found(), 2);
  EXPECT_THAT(a_.peers().FailedRanks(), ElementsAre(2));
}

TEST_F(PeerMonitorTest, TheFirstFailureIsTheCauseOfLaterOnes) {
  EXPECT_TRUE(a_.peers().Abort(
      WithFailedRank(absl::AbortedError("the program ends"), 1)));
  EXPECT_EQ(a_.ended(), 1);
  EXPECT_TRUE(a_.reported_before_end());
  EXPECT_EQ(a_.found(), 1);
  EXPECT_THAT(a_.peers().Fail("barrier", 1, absl::InternalError("closed")),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("barrier #1: the program ends")));
  EXPECT_THAT(a_.peers().cause(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("the program ends")));
}

TEST_F(PeerMonitorTest, ACauseMayNameARankOfALargerGroup) {
  EXPECT_TRUE(a_.peers().Abort(
      WithFailedRank(absl::UnavailableError("the world failed"), kSize)));
  EXPECT_EQ(a_.found(), std::nullopt);
  EXPECT_THAT(a_.peers().FailedRanks(), ElementsAre());
}

TEST_F(PeerMonitorTest, ARankThatLeftIsNotAbortedAndKeepsItsCause) {
  EXPECT_TRUE(a_.peers().BeginToLeave());
  EXPECT_FALSE(a_.peers().BeginToLeave());
  EXPECT_TRUE(a_.peers().has_left());
  EXPECT_FALSE(a_.peers().usable());
  EXPECT_FALSE(a_.peers().Abort(absl::AbortedError("too late")));
  EXPECT_EQ(a_.ended(), 0);
  EXPECT_THAT(a_.peers().cause(), IsOk());
  EXPECT_THAT(a_.peers().health(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("group \"test\" was destroyed")));
}

TEST_F(PeerMonitorTest, ExcludedRanksAreAmongTheFailedOnes) {
  EXPECT_THAT(a_.peers().FailedRanks(), ElementsAre());
  a_.peers().LeaveOut({2});
  EXPECT_THAT(a_.peers().FailedRanks(), ElementsAre(2));
  a_.peers().Abort(WithFailedRank(absl::UnavailableError("gone"), 1));
  EXPECT_THAT(a_.peers().FailedRanks(), ElementsAre(1, 2));
}

TEST_F(PeerMonitorTest, AProcessThatIsNotAMemberHasNoPeers) {
  class NoOwner : public PeerMonitor::Owner {
    void EndOperations() override { ADD_FAILURE(); }
    void FoundFailedRank(int) override { ADD_FAILURE(); }
  } owner;
  const Membership membership("test", -1, kSize, {}, 0);
  PeerMonitor peers(store_, membership, owner);
  EXPECT_TRUE(peers.usable());
  EXPECT_THAT(peers.FailedRanks(), ElementsAre());
}

}  // namespace
}  // namespace sherd::internal
