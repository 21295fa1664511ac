#include "sherd/tools/bench/harness/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/shared_segment.h"
#include "sherd/core/process/subprocess.h"

namespace sherd {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// Milliseconds for poll, at least 1 while there is time left.
int PollTimeout(Deadline deadline) {
  if (deadline.HasPassed()) return 0;
  const absl::Duration left =
      std::min(deadline.Remaining(), absl::Duration(absl::Hours(1)));
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = StopSet();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

StopSignals::~StopSignals() {
  if (fd_ >= 0) close(fd_);
}

absl::Status RankProcesses::Add(absl::StatusOr<Subprocess> child) {
  SHERD_RETURN_IF_ERROR(child.status());
  children_.push_back(*std::move(child));
  if (children_.back().exit_fd() >= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "watching process ", children_.back().pid(), ": no descriptor for it"));
}

absl::Status RankProcesses::StartProgram() {
  for (int rank = 0; rank < board_.task().world; ++rank) {
    SHERD_RETURN_IF_ERROR(Add(Subprocess::Start(
        {.program = "/proc/self/exe",
         .arguments = {"bench", kRankArgument, absl::StrCat(board_.fd()),
                       absl::StrCat(rank)},
         .environment = OwnEnvironment(),
         .inherited_fds = {board_.fd()}})));
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::StartUnderMpirun(MpiTransport transport,
                                             const std::string& directory) {
  const std::string mpirun = FindMpirun();
  if (mpirun.empty()) return absl::NotFoundError("there is no mpirun here");
  stand_in_ = "mpirun";
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  return Add(Subprocess::Start(
      {.program = mpirun,
       .arguments = MpirunCommand(
           mpirun, transport, directory, board_.task().world, program,
           {kRankArgument, SharedSegment::PathOf(getpid(), board_.fd()), "-"}),
       .environment = OwnEnvironment()}));
}

absl::Status RankProcesses::StartOther(const BenchProgram& program) {
  stand_in_ = program.name;
  std::error_code error;
  const std::filesystem::path own =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (own.parent_path() / program.name).string();
  std::vector<std::string> command = {path};
  command.insert(command.end(), program.arguments.begin(),
                 program.arguments.end());
  const UniqueFd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  return Add(
      Subprocess::Start({.program = path,
                         .arguments = std::move(command),
                         .environment = OwnEnvironment(program.environment),
                         .output_fd = nowhere.get()}));
}

absl::Status RankProcesses::Fork(const std::function<int(int)>& body) {
  for (int rank = 0; rank < board_.task().world; ++rank) {
    SHERD_RETURN_IF_ERROR(Add(Subprocess::Fork([&] { return body(rank); })));
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::Wait(absl::Duration timeout, int stop_fd) {
  const Deadline deadline = Deadline::After(timeout);
  const int world = static_cast<int>(children_.size());
  std::vector<pollfd> events(world + 1);
  events[world] = {.fd = stop_fd, .events = POLLIN, .revents = 0};
  for (int left = world; left > 0;) {
    for (int rank = 0; rank < world; ++rank) {
      const Subprocess& child = children_[rank];
      events[rank] = {.fd = child.status() ? -1 : child.exit_fd(),
                      .events = POLLIN,
                      .revents = 0};
    }
    if (poll(events.data(), events.size(), PollTimeout(deadline)) == 0 &&
        deadline.HasPassed()) {
      EndAll();
      return absl::DeadlineExceededError(absl::StrCat(
          "the ranks did not end within ", absl::FormatDuration(timeout)));
    }
    if (events[world].revents != 0) {
      EndAll();
      return absl::CancelledError("interrupted");
    }
    for (int rank = 0; rank < world; ++rank) {
      if (events[rank].revents == 0) continue;
      --left;
      children_[rank].Wait();
      if (absl::Status status = ErrorOf(rank); !status.ok()) {
        EndAll();
        return status;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::OutcomeOfAllRanks() const {
  for (int rank = 0; rank < board_.task().world; ++rank) {
    if (absl::Status outcome = board_.Outcome(rank);
        !outcome.ok() && !absl::IsUnknown(outcome)) {
      return WithRank(Annotate(outcome, absl::StrCat("rank ", rank)), rank);
    }
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::ErrorOf(int rank) {
  const ExitStatus& status = children_[rank].Wait();
  const auto blame = [rank](absl::Status error) {
    return WithRank(Annotate(std::move(error), absl::StrCat("rank ", rank)),
                    rank);
  };
  if (!stand_in_.empty()) {
    SHERD_RETURN_IF_ERROR(OutcomeOfAllRanks());
    if (status.ok()) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(stand_in_, " ", status.ToString()));
  }
  const absl::Status outcome = board_.Outcome(rank);
  if (status.signal() || (outcome.ok() && !status.ok())) {
    return blame(absl::UnavailableError(status.ToString()));
  }
  return outcome.ok() ? absl::OkStatus() : blame(outcome);
}

void RankProcesses::EndAll() {
  for (Subprocess& child : children_) child.SignalGroup(SIGKILL);
  for (Subprocess& child : children_) child.Wait();
}

void BecomeRank(const Board& board) {
  // mpirun stands between, and ends its ranks itself.
  const bool under_mpirun = GetKnob(Knob::kOmpiRank).has_value();
  if (!DieWithParent(under_mpirun ? getppid() : board.parent())) _exit(1);
}

}  // namespace sherd
