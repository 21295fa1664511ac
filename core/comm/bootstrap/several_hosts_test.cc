// Ranks on two hosts, which are network namespaces with a cable between them.

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;
constexpr char kProgram[] = "core/comm/init_rank";
constexpr char kLikeTorchrun[] = "RANK=%r WORLD_SIZE=4 MASTER_PORT=29555 ";

// $1 is this program, $2 the directory for output, then one list of variables
// per rank, in which %r is the rank. Ranks 0 and 1 run on host a, the others on
// host b.
constexpr char kScript[] = R"(
set -eu
export PATH="$PATH:/usr/sbin:/sbin"
program=$1 out=$2
shift 2
mount -t tmpfs none /run
ip link set lo up
ip netns add a
ip netns add b
ip link add va netns a type veth peer name vb netns b
ip -n a addr add 10.77.0.1/24 dev va
ip -n b addr add 10.77.0.2/24 dev vb
ip -n a addr add fd77::1/64 dev va nodad
ip -n b addr add fd77::2/64 dev vb nodad
for end in a b; do ip -n $end link set lo up; ip -n $end link set v$end up; done
pids=()
rank=0
for variables in "$@"; do
  if [[ $rank -lt 2 ]]; then host=a; else host=b; fi
  # shellcheck disable=SC2086  # A list of assignments.
  ip netns exec $host bash -c '
    if [[ -e "$1/hosts_$2" ]]; then mount --bind "$1/hosts_$2" /etc/hosts; fi
    shift 2
    exec "$@"' - "$out" $host \
    env ${variables//%r/$rank} \
    "$program" > "$out/$rank" 2>&1 &
  pids+=($!)
  rank=$((rank + 1))
done
for pid in "${pids[@]}"; do wait "$pid" || true; done
)";

class SeveralHostsTest : public ::testing::Test {
 protected:
  SeveralHostsTest()
      : out_(absl::StrCat(
            ::testing::TempDir(), "/hosts_",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    FileSystem::Posix().RemoveAll(out_).IgnoreError();
    EXPECT_THAT(FileSystem::Posix().CreateDirectories(out_), IsOk());
  }

  void SetUp() override {
    if (Run({"bash", "-c",
             "PATH=$PATH:/usr/sbin:/sbin; unshare --user --map-root-user --net "
             "--mount sh -c 'mount -t tmpfs none /run && ip netns add probe && "
             "ip link add va type veth peer name vb netns probe'"}) != 0) {
      GTEST_SKIP() << "network namespaces cannot be made here: unshare, ip or "
                      "the permission to use them is missing";
    }
  }

  std::string WriteFile(const std::string& name, absl::string_view text,
                        int mode = 0600) {
    const std::string path = absl::StrCat(out_, "/", name);
    EXPECT_THAT(
        WriteFileAtomically(
            FileSystem::Posix(), path,
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                                text.size())),
        IsOk());
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  // Returns the output of each rank; `variables` are for all ranks, `of_last`
  // for the last one only.
  std::vector<std::string> RunRanks(const std::string& variables,
                                    const std::string& of_last = "") {
    return RunLaunched(absl::StrCat(kLikeTorchrun, variables), of_last);
  }

  std::vector<std::string> RunLaunched(const std::string& variables,
                                       const std::string& of_last = "") {
    std::vector<std::string> command = {"unshare", "--user",  "--map-root-user",
                                        "--net",   "--mount", "bash",
                                        "-c",      kScript,   "-",
                                        kProgram,  out_};
    for (int rank = 0; rank < kRanks; ++rank) {
      command.push_back(absl::StrCat("SHERD_TIMEOUT=20s ", variables, " ",
                                     rank == kRanks - 1 ? of_last : ""));
    }
    EXPECT_EQ(Run(command), 0);
    std::vector<std::string> printed;
    for (int rank = 0; rank < kRanks; ++rank) {
      printed.push_back(
          ReadFile(FileSystem::Posix(), absl::StrCat(out_, "/", rank), 1 << 20)
              .value_or("nothing"));
    }
    return printed;
  }

  static void ExpectGathered(const std::vector<std::string>& printed) {
    for (const std::string& text : printed) {
      EXPECT_THAT(text, HasSubstr("gloo gathered 100 101 102 103\n"));
      EXPECT_THAT(text, HasSubstr("lived 3 times\n"));
    }
  }

  const std::string out_;

 private:
  static int Run(const std::vector<std::string>& command) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
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
      out_, "/meet")));
}

TEST_F(SeveralHostsTest, AHostThatCallsItselfLoopbackIsFoundAllTheSame) {
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

TEST_F(SeveralHostsTest, AnInterfaceThatIsNotThereIsAnErrorThatListsAll) {
  for (const std::string& text :
       RunRanks("SHERD_BACKEND=gloo MASTER_ADDR=10.77.0.1 "
                "SHERD_SOCKET_IFNAME=ib")) {
    EXPECT_THAT(text, HasSubstr("SHERD_SOCKET_IFNAME is \"ib\""));
    EXPECT_THAT(text, HasSubstr("10.77.0."));
  }
}

}  // namespace
}  // namespace sherd
