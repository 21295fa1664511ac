#include "sherd/tools/bench/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/shared_segment.h"

extern char** environ;

namespace sherd {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

// As the kernel takes lists of texts.
std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
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

RankProcesses::~RankProcesses() {
  EndAll();
  for (const Child& child : children_) {
    if (child.pid_fd >= 0) close(child.pid_fd);
  }
}

absl::Status RankProcesses::Add(pid_t pid) {
  // glibc 2.36 declares pidfd_open() in a way that C++ cannot link.
  Child child{.pid = pid,
              .pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
  children_.push_back(child);
  if (child.pid_fd < 0) {
    return ErrnoStatus(errno, "watching", absl::StrCat("process ", pid));
  }
  return absl::OkStatus();
}

absl::Status RankProcesses::StartProgram() {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy = [&actions] {
    posix_spawn_file_actions_destroy(&actions);
  };
  // Onto itself: the one descriptor that the program inherits.
  posix_spawn_file_actions_adddup2(&actions, board_.fd(), board_.fd());
  std::string name = "bench";
  std::string marker = kRankArgument;
  std::string fd = absl::StrCat(board_.fd());
  for (int rank = 0; rank < board_.task().world; ++rank) {
    std::string number = absl::StrCat(rank);
    char* const arguments[] = {name.data(), marker.data(), fd.data(),
                               number.data(), nullptr};
    pid_t pid;
    const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                  arguments, environ);
    if (error != 0) return ErrnoStatus(error, "starting", "/proc/self/exe");
    SHERD_RETURN_IF_ERROR(Add(pid));
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
  std::vector<std::string> command = MpirunCommand(
      mpirun, transport, directory, board_.task().world, program,
      {kRankArgument, SharedSegment::PathOf(getpid(), board_.fd()), "-"});
  pid_t pid;
  const int code = posix_spawn(&pid, mpirun.c_str(), nullptr, nullptr,
                               Pointers(command).data(), environ);
  if (code != 0) return ErrnoStatus(code, "starting", mpirun);
  return Add(pid);
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
  // The first of two variables with one name counts.
  std::vector<std::string> changes = program.environment;
  std::vector<char*> environment = Pointers(changes);
  environment.pop_back();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null",
                                   O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const absl::Cleanup destroy = [&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  };
  // It knows nothing of the signals that this process has blocked.
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid;
  const int code = posix_spawn(&pid, path.c_str(), &actions, &attributes,
                               Pointers(command).data(), environment.data());
  if (code != 0) return ErrnoStatus(code, "starting", path);
  return Add(pid);
}

absl::Status RankProcesses::Fork(const std::function<int(int)>& body) {
  // What is buffered would be written once per process.
  std::fflush(nullptr);
  for (int rank = 0; rank < board_.task().world; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      const int code = body(rank);
      std::fflush(nullptr);
      _exit(code);
    }
    if (pid < 0) return ErrnoStatus(errno, "forking", "bench");
    SHERD_RETURN_IF_ERROR(Add(pid));
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
      const Child& child = children_[rank];
      events[rank] = {.fd = child.ended ? -1 : child.pid_fd,
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
      if (absl::Status status = Reap(rank); !status.ok()) {
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

absl::Status RankProcesses::Reap(int rank) {
  Child& child = children_[rank];
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.ended = true;
  const auto blame = [rank](absl::Status error) {
    return WithRank(Annotate(std::move(error), absl::StrCat("rank ", rank)),
                    rank);
  };
  if (!stand_in_.empty()) {
    SHERD_RETURN_IF_ERROR(OutcomeOfAllRanks());
    if (status == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        stand_in_, " ended with ",
        WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                            : absl::StrCat("code ", WEXITSTATUS(status))));
  }
  if (WIFSIGNALED(status)) {
    return blame(absl::UnavailableError(
        absl::StrCat("ended by signal ", WTERMSIG(status), " (",
                     strsignal(WTERMSIG(status)), ")")));
  }
  const absl::Status outcome = board_.Outcome(rank);
  if (outcome.ok() && WEXITSTATUS(status) != 0) {
    return blame(absl::UnavailableError(
        absl::StrCat("ended with exit code ", WEXITSTATUS(status))));
  }
  return outcome.ok() ? absl::OkStatus() : blame(outcome);
}

void RankProcesses::EndAll() {
  for (const Child& child : children_) {
    if (!child.ended) kill(child.pid, SIGKILL);
  }
  for (Child& child : children_) {
    if (child.ended) continue;
    while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    child.ended = true;
  }
}

void BecomeRank(const Board& board) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before it could be watched. mpirun ends its
  // ranks itself.
  const bool under_mpirun = GetKnob(Knob::kOmpiRank).has_value();
  if (!under_mpirun && getppid() != board.parent()) _exit(1);
  const sigset_t set = StopSet();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace sherd
