// Ranks on two hosts: which address each listens on, and how they meet.

#include "sherd/testing/kits/several_hosts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SeveralHostsTest : public testing::SeveralHosts {
 protected:
  SeveralHostsTest() : SeveralHosts("core/comm/init_rank") {}

  static void ExpectGathered(const std::vector<std::string>& printed) {
    for (const std::string& text : printed) {
      EXPECT_THAT(text, HasSubstr("gloo gathered 100 101 102 103\n"));
      EXPECT_THAT(text, HasSubstr("lived 3 times\n"));
    }
  }
};

TEST_F(SeveralHostsTest, RanksFindEachOtherOverIpv4AndAreWarnedOnce) {
  const auto printed = RunRanks("SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1");
  ExpectGathered(printed);
  const std::string all = absl::StrJoin(printed, "");
  const std::string warning = "listens on 10.77.0.1:29555 without a shared";
  const size_t first = all.find(warning);
  ASSERT_NE(first, std::string::npos) << all;
  EXPECT_EQ(all.find(warning, first + 1), std::string::npos);
}

TEST_F(SeveralHostsTest, ASharedSecretLetsThemInWithoutAWarning) {
  const auto printed = RunRanks(absl::StrCat(
      "SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1 SHERD_SECRET_FILE=",
      WriteFile("secret", "correct horse\n")));
  ExpectGathered(printed);
  EXPECT_THAT(printed[0], Not(HasSubstr("without a shared secret")));
}

TEST_F(SeveralHostsTest, RanksFindEachOtherOverIpv6) {
  const auto printed = RunRanks(
      absl::StrCat("SHERD_BACKEND=gloo MASTER_ADDR=fd77::1 SHERD_SECRET_FILE=",
                   WriteFile("secret", "correct horse\n")));
  ExpectGathered(printed);
}

TEST_F(SeveralHostsTest, SlurmsVariablesSayWhereToMeet) {
  ExpectGathered(
      RunLaunched("SHERD_BACKEND=gloo SLURM_PROCID=%r SLURM_STEP_NUM_TASKS=4 "
                  "SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_STEP_NUM_NODES=2 "
                  "SLURM_STEP_NODELIST=10.77.0.1,10.77.0.2"));
}

TEST_F(SeveralHostsTest, AnIndexedJobsVariablesSayWhereToMeet) {
  ExpectGathered(
      RunLaunched("SHERD_BACKEND=gloo JOB_COMPLETION_INDEX=%r WORLD_SIZE=4 "
                  "MASTER_ADDR=10.77.0.1 MASTER_PORT=29500"));
}

TEST_F(SeveralHostsTest, AUrlServesInPlaceOfVariables) {
  ExpectGathered(
      RunRanks("SHERD_BACKEND=gloo SHERD_INIT_METHOD=tcp://[fd77::1]:29555"));
}

TEST_F(SeveralHostsTest, AutoIsGlooAcrossHosts) {
  const auto printed = RunRanks(
      "SHERD_BACKEND=auto SHERD_LOG_LEVEL=debug MASTER_ADDR=10.77.0.1");
  ExpectGathered(printed);
  for (const std::string& text : printed) {
    EXPECT_THAT(text, HasSubstr("backend auto is gloo: rank 2 is not on the "
                                "host of rank 0"));
  }
}

TEST_F(SeveralHostsTest, SharedMemoryAcrossHostsIsAnErrorThatNamesTheRank) {
  for (const std::string& text :
       RunRanks("SHERD_BACKEND=shm MASTER_ADDR=10.77.0.1")) {
    EXPECT_THAT(text, HasSubstr("works on one host only, but rank 2 is not on "
                                "the host of rank 0"));
  }
}

TEST_F(SeveralHostsTest, ASharedFileServesTooAndTheInterfaceIsChosen) {
  ExpectGathered(RunRanks(absl::StrCat(
      "SHERD_BACKEND=gloo SHERD_SOCKET_IFNAME=v SHERD_INIT_METHOD=file://",
      out(), "/meet")));
}

TEST_F(SeveralHostsTest, AHostWhoseNameResolvesToLoopbackIsFound) {
  WriteFile("hosts_a", "127.0.0.1 localhost\n127.0.1.1 master-host\n", 0644);
  WriteFile("hosts_b", "127.0.0.1 localhost\n10.77.0.1 master-host\n", 0644);
  ExpectGathered(RunRanks("SHERD_BACKEND=gloo MASTER_ADDR=master-host"));
}

TEST_F(SeveralHostsTest, AWrongSecretIsAnErrorOnAllRanks) {
  const std::string right = WriteFile("secret", "correct horse\n");
  const std::string wrong = WriteFile("other", "battery staple\n");
  const auto printed = RunRanks(
      absl::StrCat("SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1 SHERD_TIMEOUT=3s "
                   "SHERD_SECRET_FILE=",
                   right),
      absl::StrCat("SHERD_SECRET_FILE=", wrong));
  EXPECT_THAT(printed[3], HasSubstr("PERMISSION_DENIED"));
  EXPECT_THAT(printed[3], HasSubstr("secret"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(printed[rank], HasSubstr("rank 3 of 4 did not join"));
    EXPECT_THAT(printed[rank], HasSubstr("same rendezvous and secret"));
  }
}

TEST_F(SeveralHostsTest, AMissingInterfaceIsAnErrorThatListsAll) {
  for (const std::string& text :
       RunRanks("SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1 "
                "SHERD_SOCKET_IFNAME=ib")) {
    EXPECT_THAT(text, HasSubstr("SHERD_SOCKET_IFNAME is \"ib\""));
    EXPECT_THAT(text, HasSubstr("10.77.0."));
  }
}

TEST_F(SeveralHostsTest, AMissingInterfaceOnOneHostIsReportedToAllRanks) {
  // Found by the last rank once all have met, while the others connect.
  const auto printed =
      RunRanks("SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1 SHERD_TIMEOUT=60s",
               "SHERD_SOCKET_IFNAME=ib");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(printed[rank], HasSubstr("SHERD_SOCKET_IFNAME is \"ib\""));
    EXPECT_THAT(printed[rank], HasSubstr(rank < 3 ? "rank 3: " : "init: "));
  }
}

}  // namespace
}  // namespace sherd
