#include "sherd/core/process/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/process_handle.h"

namespace sherd {
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

// The data that the child needs, prepared before the fork: afterwards nothing
// may be allocated.
struct Launch {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int output_fd;
  int error_fd;
  const int* inherited_begin;
  const int* inherited_end;
  sigset_t blocked_signals;
  int failure_fd;
};

sigset_t NoSignals() {
  sigset_t none;
  sigemptyset(&none);
  return none;
}

// In the child: its group, its orphan defence, and signals and standard input
// as a program expects them. Async-signal-safe.
bool BecomeChild(pid_t parent, bool own_group) {
  if (own_group) setpgid(0, 0);
  if (!DieWithParent(parent)) return false;
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current = {};
    sigaction(signal, nullptr, &current);
    // Under nohup.
    if (signal == SIGHUP && current.sa_handler == SIG_IGN) continue;
    sigaction(signal, &defaults, nullptr);
  }
  const int empty = open("/dev/null", O_RDONLY);
  if (empty < 0 || dup2(empty, STDIN_FILENO) < 0) return false;
  if (empty != STDIN_FILENO) close(empty);
  return true;
}

// Forks so that no handler of this process runs in the child, which calls
// `child` with all signals blocked, and returns the child's number or -1.
pid_t ForkChild(bool own_group, absl::FunctionRef<void()> child) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(127);
  }
  const int error = errno;
  // Parent and child both do it, since either may run first.
  if (pid > 0 && own_group) setpgid(pid, pid);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

// Returns if it fails, with errno. Async-signal-safe.
void ExecInChild(const Launch& launch) {
  const std::pair<int, int> streams[] = {{launch.output_fd, STDOUT_FILENO},
                                         {launch.error_fd, STDERR_FILENO}};
  for (const auto& [fd, stream] : streams) {
    if (fd >= 0 && dup2(fd, stream) < 0) return;
  }
  for (const int* fd = launch.inherited_begin; fd != launch.inherited_end;
       ++fd) {
    if (fcntl(*fd, F_SETFD, 0) != 0) return;
  }
  sigprocmask(SIG_SETMASK, &launch.blocked_signals, nullptr);
  execvpe(launch.program, launch.arguments, launch.environment);
}

absl::Status CannotStart(int error, const std::string& program) {
  if (error == ENOENT && !absl::StrContains(program, '/')) {
    return absl::NotFoundError(absl::StrCat(
        "cannot start ", program,
        ": no such program in PATH; for one in this folder, say ./", program));
  }
  return ErrnoStatus(error, "cannot start", program);
}

// The waitpid() status of a process that could not be waited for: the system
// has reaped it, and its number may have been reused.
constexpr int kUnknownEnd = 255 << 8;

absl::string_view NameOf(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

}  // namespace

bool DieWithParent(pid_t parent) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  // It may have ended before the line above.
  errno = ESRCH;
  return getppid() == parent;
}

absl::StatusOr<Subprocess> Subprocess::Start(const SubprocessOptions& options) {
  SHERD_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  const std::vector<char*> arguments = NullTerminated(options.arguments);
  const std::vector<char*> environment = NullTerminated(options.environment);
  const Launch launch = {
      .program = options.program.c_str(),
      .arguments = arguments.data(),
      .environment = environment.data(),
      .output_fd = options.output_fd,
      .error_fd = options.error_fd < 0 ? options.output_fd : options.error_fd,
      .inherited_begin = options.inherited_fds.data(),
      .inherited_end =
          options.inherited_fds.data() + options.inherited_fds.size(),
      .blocked_signals = options.blocked_signals.value_or(NoSignals()),
      .failure_fd = failure.write.get()};
  const pid_t parent = getpid();
  const pid_t pid = ForkChild(options.own_group, [&] {
    if (BecomeChild(parent, options.own_group)) ExecInChild(launch);
    const int error = errno;
    [[maybe_unused]] const ssize_t written =
        write(launch.failure_fd, &error, sizeof(error));
  });
  if (pid < 0) return CannotStart(errno, options.program);

  Subprocess process(pid, options.own_group);
  failure.write.Reset();
  int error = 0;
  ssize_t size;
  do {
    size = read(failure.read.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size == sizeof(error)) return CannotStart(error, options.program);
  return process;
}

absl::StatusOr<Subprocess> Subprocess::Fork(absl::FunctionRef<int()> body) {
  // Buffered output would be written once per process.
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = ForkChild(/*own_group=*/true, [&] {
    if (!BecomeChild(parent, /*own_group=*/true)) return;
    const sigset_t none = NoSignals();
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int code = body();
    std::fflush(nullptr);
    _exit(code);
  });
  if (pid < 0) return ErrnoStatus(errno, "forking", "this process");
  return Subprocess(pid, /*own_group=*/true);
}

Subprocess::Subprocess(pid_t pid, bool own_group)
    : pid_(pid), own_group_(own_group) {}

Subprocess::Subprocess(Subprocess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      own_group_(other.own_group_),
      pid_fd_(std::move(other.pid_fd_)),
      status_(std::exchange(other.status_, std::nullopt)) {}

int Subprocess::exit_fd() const {
  // Its number is its own until it is reaped.
  if (!pid_fd_.is_open() && !status_) pid_fd_ = OpenPidFd(pid_);
  return pid_fd_.get();
}

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
             WEXITED | WNOHANG | WNOWAIT) != 0) {
    if (errno == ECHILD) status_.emplace(kUnknownEnd);
  } else if (info.si_pid == pid_) {
    Reap();
  }
  return status_;
}

const ExitStatus& Subprocess::Wait() {
  if (!status_) {
    siginfo_t info = {};
    int result;
    do {
      result = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
      Reap();
    } else {
      status_.emplace(kUnknownEnd);
    }
  }
  return *status_;
}

void Subprocess::Signal(int signal) {
  if (!status_) kill(pid_, signal);
}

void Subprocess::SignalGroup(int signal) {
  if (!status_) kill(own_group_ ? -pid_ : pid_, signal);
}

void Subprocess::Reap() {
  if (own_group_) kill(-pid_, SIGKILL);
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
  // The size of such a file is not known before it has been read.
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) {
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::vector<std::string> OwnEnvironment(
    const std::vector<std::string>& replacements) {
  std::vector<std::string> variables = replacements;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view name = NameOf(*variable);
    if (std::none_of(replacements.begin(), replacements.end(),
                     [name](const std::string& replacement) {
                       return NameOf(replacement) == name;
                     })) {
      variables.emplace_back(*variable);
    }
  }
  return variables;
}

void AddSanitizerOptions(std::vector<std::string>& environment,
                         absl::string_view options) {
  for (const absl::string_view name : {"ASAN_OPTIONS=", "TSAN_OPTIONS="}) {
    const auto variable = std::find_if(environment.begin(), environment.end(),
                                       [name](const std::string& entry) {
                                         return absl::StartsWith(entry, name);
                                       });
    if (variable == environment.end()) {
      environment.push_back(absl::StrCat(name, options));
    } else {
      absl::StrAppend(&*variable, ":", options);
    }
  }
}

}  // namespace sherd
