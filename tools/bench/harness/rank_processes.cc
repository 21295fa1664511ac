#include "sherd/tools/bench/harness/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/shared_segment.h"
#include "sherd/core/process/subprocess.h"

namespace sherd {
namespace {

// That of a rank, which may use Open MPI: that leaks in modules that it has
// unloaded before LeakSanitizer looks.
std::vector<std::string> RankEnvironment() {
  std::vector<std::string> environment = OwnEnvironment();
  AddSanitizerOptions(environment, "detect_leaks=0");
  return environment;
}

}  // namespace

absl::Status RankProcesses::StartProgram() {
  for (int rank = 0; rank < board_.task().world; ++rank) {
    SHERD_RETURN_IF_ERROR(
        processes_.Start({.process = {.program = "/proc/self/exe",
                                      .arguments = {"bench", kRankArgument,
                                                    absl::StrCat(board_.fd()),
                                                    absl::StrCat(rank)},
                                      .environment = RankEnvironment(),
                                      .inherited_fds = {board_.fd()}}}));
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
  const std::string board = SharedSegment::PathOf(getpid(), board_.fd());
  return processes_.Start(
      {.process = {.program = mpirun,
                   .arguments = MpirunCommand(mpirun, transport, directory,
                                              board_.task().world, program,
                                              {kRankArgument, board, "-"}),
                   .environment = RankEnvironment()}});
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
  return processes_.Start(
      {.process = {.program = path,
                   .arguments = std::move(command),
                   .environment = OwnEnvironment(program.environment),
                   .output_fd = nowhere.get()}});
}

absl::Status RankProcesses::Fork(const std::function<int(int)>& body) {
  for (int rank = 0; rank < board_.task().world; ++rank) {
    SHERD_RETURN_IF_ERROR(processes_.Fork([&] { return body(rank); }));
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::Wait(absl::Duration timeout, int stop_fd) {
  processes_.BeginRun({.deadline = Deadline::After(timeout)});
  while (processes_.AnyRuns()) {
    pollfd stop = {.fd = stop_fd, .events = POLLIN, .revents = 0};
    const absl::Span<const int> ended =
        processes_.Await(absl::MakeSpan(&stop, 1));
    if (stop.revents != 0) {
      processes_.KillAll();
      return absl::CancelledError("interrupted");
    }
    for (const int process : ended) {
      if (absl::Status status = ErrorOf(process); !status.ok()) {
        processes_.KillAll();
        return status;
      }
    }
    if (processes_.StageIsOver() && processes_.AnyRuns()) {
      processes_.KillAll();
      return absl::DeadlineExceededError(absl::StrCat(
          "the ranks did not end within ", absl::FormatDuration(timeout)));
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

absl::Status RankProcesses::ErrorOf(int rank) const {
  const ExitStatus& status = *processes_.status(rank);
  const auto with_rank = [rank](absl::Status error) {
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
    return with_rank(absl::UnavailableError(status.ToString()));
  }
  return outcome.ok() ? absl::OkStatus() : with_rank(outcome);
}

void BecomeRank(const Board& board) {
  // mpirun is the parent of its ranks, and ends them itself.
  const bool under_mpirun = GetKnob(Knob::kOmpiRank).has_value();
  if (!DieWithParent(under_mpirun ? getppid() : board.parent())) _exit(1);
}

}  // namespace sherd
