#include "sherd/core/comm/group/membership.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/group/membership_exchange.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunRankThreads;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As DescribeOwnProcess() of a process that has ended.
std::string EndedProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return DescribeProcess(
      {.pid = child, .start_time = ProcessIdentity::Own().start_time});
}

class MembershipTest : public ::testing::Test {
 protected:
  // The Membership of `rank` once it has joined.
  absl::StatusOr<Membership> Join(int rank, int size, Deadline deadline,
                                  std::vector<std::string> expected = {}) {
    Membership membership("test", rank, size, {}, 0);
    const absl::Status status =
        ExchangeMembership(*store_, expected, deadline, membership).status();
    if (!status.ok()) return status;
    return membership;
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(MembershipTest, JoiningNamesTheRanksThatDidNotCome) {
  const absl::Status status =
      Join(1, 4, Deadline::After(absl::Milliseconds(10))).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr("ranks 0, 2, 3 of 4")));
}

TEST_F(MembershipTest, JoiningDoesNotWaitForAProcessThatHasEnded) {
  const absl::Status status = Join(0, 2, Deadline::After(absl::Seconds(30)),
                                   {DescribeOwnProcess(), EndedProcess()})
                                  .status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("rank 1 died (process ")));
  EXPECT_EQ(ErrorRank(status), 1);
}

TEST_F(MembershipTest, JoiningTakesAMemberThatEndedAfterItHadJoined) {
  const std::string ended = EndedProcess();
  ASSERT_THAT(store_->Set("member/1", absl::StrCat("2 ", ended)), IsOk());
  const auto joined =
      Join(0, 2, Deadline::Infinite(), {DescribeOwnProcess(), ended});
  ASSERT_THAT(joined, IsOk());
  EXPECT_EQ(joined->process(1), ended);
}

TEST_F(MembershipTest, JoiningBringsTheNotesOfAll) {
  const std::string ended = EndedProcess();
  ASSERT_THAT(store_->Set("member/1", absl::StrCat("3 ", DescribeOwnProcess(),
                                                   "\nred\ngreen")),
              IsOk());
  ASSERT_THAT(store_->Set("member/2", absl::StrCat("3 ", ended)), IsOk());
  Membership membership("test", 0, 3, {}, 0);
  ASSERT_THAT(ExchangeMembership(*store_, {}, Deadline::Infinite(), membership,
                                 {.note = "blue"}),
              IsOk());
  EXPECT_THAT(ReadNotes(*store_, 3, Deadline::Infinite()),
              IsOkAndHolds(ElementsAre("blue", "red\ngreen", "")));
  EXPECT_THAT(membership.processes(),
              ElementsAre(DescribeOwnProcess(), DescribeOwnProcess(), ended));
}

TEST_F(MembershipTest, RanksAreNumberedByTheirMachine) {
  Membership membership("test", 2, 4, {}, 0);
  membership.SetProcesses({"boot-a ns1 10 100", "boot-b ns1 10 100",
                           DescribeOwnProcess(),
                           // In a container of its own on the first machine.
                           "boot-a ns2 10 100"});
  EXPECT_THAT(membership.host_of_rank(), ElementsAre(0, 1, 2, 0));
  EXPECT_FALSE(membership.one_host());
}

TEST_F(MembershipTest, JoiningRefusesARankThatIsTaken) {
  ASSERT_THAT(Join(0, 1, Deadline::Infinite()), IsOk());
  EXPECT_THAT(Join(0, 1, Deadline::Infinite()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("left over from another run")));
}

TEST_F(MembershipTest, JoiningRefusesADifferentWorldSize) {
  RunRankThreads(2, [this](int rank) {
    const absl::Status status =
        Join(rank, 2 + rank, Deadline::After(absl::Seconds(30))).status();
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("rank 1 asked for 3; rank 0 asked for 2")));
    EXPECT_EQ(ErrorRank(status), std::nullopt) << "neither is in the right";
  });
}

TEST(MembershipNamesTest, ErrorsNameTheRankOfTheJobWhereItDiffers) {
  const Membership part("part", 1, 2, {2, 5}, 8);
  const absl::Status status = part.WithJobRank(part.Describe(
      "all_reduce", 7,
      WithFailedRank(absl::UnavailableError("its process has ended"), 0)));
  EXPECT_EQ(status.message(),
            "group \"part\", rank 1 (rank 5 of the job), all_reduce #7: its "
            "process has ended; rank 0 of the group is rank 2 of the job");
  EXPECT_EQ(FailedRank(status), 0);
  const Membership whole("whole", 1, 2, {}, 0);
  EXPECT_EQ(
      whole
          .Describe("split", 0, absl::UnavailableError("its process has ended"))
          .message(),
      "group \"whole\", rank 1, split: its process has ended");
}

}  // namespace
}  // namespace sherd::internal
