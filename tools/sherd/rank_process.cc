#include "sherd/tools/sherd/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "open pipe for", "a rank");
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

absl::string_view VariableOf(absl::string_view entry) {
  return entry.substr(0, entry.find('='));
}

std::vector<std::string> MergedEnvironment(
    const std::vector<std::string>& replacements) {
  std::vector<std::string> merged = replacements;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& own : replacements) {
      if (VariableOf(own) == VariableOf(*entry)) replaced = true;
    }
    if (!replaced) merged.push_back(*entry);
  }
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// What the new process does before the program runs. Everything was allocated
// before the fork.
struct ChildPlan {
  char* const* command;
  char* const* environment;
  int standard_output;
  int standard_error;
  int failure_pipe;
  pid_t parent;
  const sigset_t* signal_mask;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) _exit(1);  // It died before the line above.
  for (int signal : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD}) {
    ::signal(signal, SIG_DFL);
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, STDIN_FILENO);
  if (plan.standard_output >= 0) dup2(plan.standard_output, STDOUT_FILENO);
  if (plan.standard_error >= 0) dup2(plan.standard_error, STDERR_FILENO);
  if (null > STDERR_FILENO) close(null);
  sigprocmask(SIG_SETMASK, plan.signal_mask, nullptr);
  execvpe(plan.command[0], plan.command, plan.environment);
  const int error = errno;
  const ssize_t n = write(plan.failure_pipe, &error, sizeof(error));
  _exit(n == sizeof(error) ? 127 : 126);
}

// Waits until the program runs; its error otherwise.
absl::Status AwaitExec(int fd, pid_t pid, const std::string& program) {
  int error = 0;
  ssize_t n;
  do {
    n = read(fd, &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == 0) return absl::OkStatus();
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (error == ENOENT && !absl::StrContains(program, '/')) {
    return absl::NotFoundError(
        absl::StrCat("cannot start ", program,
                     ": no such program in PATH; for one in this folder, say "
                     "./",
                     program));
  }
  return ErrnoStatus(error, "cannot start", program);
}

void SetNonBlocking(const UniqueFd& fd) {
  if (fd.is_open()) fcntl(fd.get(), F_SETFL, O_NONBLOCK);
}

}  // namespace

absl::StatusOr<RankProcess> StartRankProcess(
    const RankProcessOptions& options) {
  Pipe output, error;
  if (options.pipes) {
    SHERD_ASSIGN_OR_RETURN(output, MakePipe());
    SHERD_ASSIGN_OR_RETURN(error, MakePipe());
  }
  SHERD_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  std::vector<std::string> command = options.command;
  std::vector<std::string> environment = MergedEnvironment(options.environment);
  const std::vector<char*> argv = Pointers(command);
  const std::vector<char*> envp = Pointers(environment);
  const ChildPlan plan = {argv.data(),
                          envp.data(),
                          output.write_end.get(),
                          error.write_end.get(),
                          failure.write_end.get(),
                          getpid(),
                          &options.signal_mask};
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork for", options.command[0]);
  if (pid == 0) RunChild(plan);
  setpgid(pid, pid);  // Both sides do it: whoever comes first.
  failure.write_end.Reset();
  SHERD_RETURN_IF_ERROR(
      AwaitExec(failure.read_end.get(), pid, options.command[0]));
  RankProcess process{pid, std::move(output.read_end),
                      std::move(error.read_end)};
  SetNonBlocking(process.standard_output);
  SetNonBlocking(process.standard_error);
  return process;
}

}  // namespace sherd
