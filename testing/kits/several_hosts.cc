#include "sherd/testing/kits/several_hosts.h"

#include <sys/stat.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/process/subprocess.h"

namespace sherd::testing {
namespace {

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

// Whether the program ends with 0.
bool RunCommand(std::vector<std::string> command) {
  const std::string program = command[0];
  absl::StatusOr<Subprocess> process =
      Subprocess::Start({.program = program,
                         .arguments = std::move(command),
                         .environment = OwnEnvironment()});
  return process.ok() && process->Wait().ok();
}

}  // namespace

SeveralHosts::SeveralHosts(std::string program)
    : program_(std::move(program)),
      out_(absl::StrCat(
          ::testing::TempDir(), "/hosts_",
          ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
  FileSystem::Posix().RemoveAll(out_).IgnoreError();
  const absl::Status made = FileSystem::Posix().CreateDirectories(out_);
  EXPECT_TRUE(made.ok()) << made;
}

void SeveralHosts::SetUp() {
  if (!RunCommand(
          {"bash", "-c",
           "PATH=$PATH:/usr/sbin:/sbin; unshare --user --map-root-user --net "
           "--mount sh -c 'mount -t tmpfs none /run && ip netns add probe && "
           "ip link add va type veth peer name vb netns probe'"})) {
    GTEST_SKIP() << "network namespaces cannot be made here: unshare, ip or "
                    "the permission to use them is missing";
  }
}

std::string SeveralHosts::WriteFile(const std::string& name,
                                    absl::string_view text, int mode) {
  const std::string path = absl::StrCat(out_, "/", name);
  const absl::Status written = WriteFileAtomically(
      FileSystem::Posix(), path,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                          text.size()));
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

std::vector<std::string> SeveralHosts::RunRanks(const std::string& variables,
                                                const std::string& of_last) {
  return RunLaunched(absl::StrCat(kLikeTorchrun, variables), of_last);
}

std::vector<std::string> SeveralHosts::RunLaunched(const std::string& variables,
                                                   const std::string& of_last) {
  std::vector<std::string> command = {
      "unshare", "--user", "--map-root-user", "--net", "--mount", "bash", "-c",
      kScript,   "-",      program_,          out_};
  for (int rank = 0; rank < kRanks; ++rank) {
    command.push_back(absl::StrCat("SHERD_TIMEOUT=20s ", variables, " ",
                                   rank == kRanks - 1 ? of_last : ""));
  }
  EXPECT_TRUE(RunCommand(command));
  std::vector<std::string> printed;
  for (int rank = 0; rank < kRanks; ++rank) {
    printed.push_back(
        ReadFile(FileSystem::Posix(), absl::StrCat(out_, "/", rank), 1 << 20)
            .value_or("nothing"));
  }
  return printed;
}

}  // namespace sherd::testing
