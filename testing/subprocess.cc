#include "sherd/testing/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {
namespace {

std::vector<char*> NullTerminated(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs, prepared before the fork: afterwards nothing may be
// allocated.
struct Launch {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int output_fd;
  const int* inherited_begin;
  const int* inherited_end;
  int error_fd;
  pid_t parent;
};

[[noreturn]] void FailInChild(const Launch& launch) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written =
      write(launch.error_fd, &error, sizeof(error));
  _exit(127);
}

// Runs between fork and exec: async-signal-safe calls only.
[[noreturn]] void ExecInChild(const Launch& launch) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) FailInChild(launch);
  // The parent may have died before the line above.
  if (getppid() != launch.parent) _exit(127);
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    sigaction(signal, &defaults, nullptr);
  }
  const int empty = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (empty < 0 || dup2(empty, STDIN_FILENO) < 0 ||
      dup2(launch.output_fd, STDOUT_FILENO) < 0 ||
      dup2(launch.output_fd, STDERR_FILENO) < 0) {
    FailInChild(launch);
  }
  for (const int* fd = launch.inherited_begin; fd != launch.inherited_end;
       ++fd) {
    if (fcntl(*fd, F_SETFD, 0) != 0) FailInChild(launch);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(launch.program, launch.arguments, launch.environment);
  FailInChild(launch);
}

int OpenPidFd(pid_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
#else
  return -1;
#endif
}

}  // namespace

bool ExitStatus::ExitedWith(int wanted) const { return code() == wanted; }

bool ExitStatus::KilledBy(int wanted) const { return signal() == wanted; }

std::optional<int> ExitStatus::code() const {
  if (!WIFEXITED(wait_status_)) return std::nullopt;
  return WEXITSTATUS(wait_status_);
}

std::optional<int> ExitStatus::signal() const {
  if (!WIFSIGNALED(wait_status_)) return std::nullopt;
  return WTERMSIG(wait_status_);
}

std::string ExitStatus::ToString() const {
  if (code()) return absl::StrCat("exited with code ", *code());
  if (!signal()) return absl::StrCat("ended with status ", wait_status_);
  const char* const description = sigdescr_np(*signal());
  return absl::StrCat("was killed by signal ", *signal(), " (",
                      description != nullptr ? description : "real-time", ")");
}

absl::StatusOr<Subprocess> Subprocess::Start(const SubprocessOptions& options) {
  SHERD_ASSIGN_OR_RETURN(Pipe error_pipe, MakePipe());
  const std::vector<char*> arguments = NullTerminated(options.arguments);
  const std::vector<char*> environment = NullTerminated(options.environment);
  const Launch launch = {.program = options.program.c_str(),
                         .arguments = arguments.data(),
                         .environment = environment.data(),
                         .output_fd = options.output_fd,
                         .inherited_begin = options.inherited_fds.data(),
                         .inherited_end = options.inherited_fds.data() +
                                          options.inherited_fds.size(),
                         .error_fd = error_pipe.write.get(),
                         .parent = getpid()};
  // No handler of this process may run in the child.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) ExecInChild(launch);
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return ErrnoStatus(fork_error, "starting", options.program);

  Subprocess process(pid);
  error_pipe.write.Reset();
  int exec_error = 0;
  ssize_t size;
  do {
    size = read(error_pipe.read.get(), &exec_error, sizeof(exec_error));
  } while (size < 0 && errno == EINTR);
  if (size == sizeof(exec_error)) {
    return ErrnoStatus(exec_error, "executing", options.program);
  }
  return process;
}

Subprocess::Subprocess(pid_t pid) : pid_(pid), pid_fd_(OpenPidFd(pid)) {}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pid_fd_(std::move(other.pid_fd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

Subprocess::~Subprocess() {
  if (pid_ < 0 || status_) return;
  SignalGroup(SIGKILL);
  Reap();
}

const std::optional<ExitStatus>& Subprocess::Poll() {
  if (status_) return status_;
  siginfo_t info = {};
  // WNOWAIT: while the process is not reaped, its number, which is that of the
  // group too, cannot be given to another.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info,
             WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    Reap();
  }
  return status_;
}

const ExitStatus& Subprocess::Wait() {
  if (!status_) {
    siginfo_t info = {};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) !=
               0 &&
           errno == EINTR) {
    }
    Reap();
  }
  return *status_;
}

void Subprocess::Signal(int signal) {
  if (!status_) kill(pid_, signal);
}

void Subprocess::SignalGroup(int signal) {
  if (status_) return;
  // The child makes its group itself and may not have come to it.
  kill(pid_, signal);
  kill(-pid_, signal);
}

void Subprocess::Reap() {
  kill(-pid_, SIGKILL);
  int wait_status = 0;
  while (waitpid(pid_, &wait_status, 0) < 0 && errno == EINTR) {
  }
  status_.emplace(wait_status);
}

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making", "a pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<std::string> OwnArguments() {
  // Of such a file the size is not known before it has been read.
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) {
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

void AddSanitizerOptions(std::vector<std::string>& environment,
                         absl::string_view options) {
  constexpr absl::string_view kVariable = "ASAN_OPTIONS=";
  for (std::string& variable : environment) {
    if (absl::StartsWith(variable, kVariable)) {
      absl::StrAppend(&variable, ":", options);
      return;
    }
  }
  environment.push_back(absl::StrCat(kVariable, options));
}

}  // namespace sherd::testing::internal
