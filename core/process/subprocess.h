#ifndef SHERD_CORE_PROCESS_SUBPROCESS_H_
#define SHERD_CORE_PROCESS_SUBPROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/exit_status.h"

namespace sherd {

// The orphan defence. No process that this library starts outlives the one that
// started it, however that ends:
//
// - Each child asks the kernel for SIGKILL at the end of the thread that
//   started it, before it does anything else (DieWithParent). Only this method
//   works when the parent is killed by SIGKILL and needs no support of the
//   program that runs: detecting the end of a pipe needs a thread in the child,
//   and a control group or a PID namespace needs privileges that a user lacks.
//   The setting survives exec(), except for programs that gain privileges;
//   children of the child do not inherit it.
// - So each child leads a process group of its own, which its parent kills once
//   the child has ended, before its number can be reused.
// - Processes that left the group are found by an entry of their environment;
//   if the parent is killed, by a process that watches it: see
//   FindMarkedProcesses and Guardian.
//
// A process between a launcher that is not ours and a rank (a launch shim) does
// the same on both sides: it dies with its launcher, and the rank with it.

// Asks the kernel to kill this process at the end of the thread of `parent`
// that started it. False if that thread has already ended (errno is ESRCH), or
// the kernel refuses. Async-signal-safe.
bool DieWithParent(pid_t parent);

struct SubprocessOptions {
  // Searched for in PATH if it has no '/'.
  std::string program;
  // Including the program's own name.
  std::vector<std::string> arguments;
  // The whole environment, each "NAME=value".
  std::vector<std::string> environment;
  // Becomes standard output, and standard error unless there is `error_fd`; -1:
  // those of this process. Borrowed.
  int output_fd = -1;
  // Becomes standard error. Borrowed.
  int error_fd = -1;
  // Stay open in the process under the same numbers. Borrowed.
  std::vector<int> inherited_fds;
  // Signals that the program starts with blocked; none if unset.
  std::optional<sigset_t> blocked_signals;
  // Whether it leads a process group; otherwise it belongs to that of this
  // process, whose signals it is to get.
  bool own_group = true;
};

// A child process, by default in a process group of its own, with an empty
// standard input and all signals at their defaults, but for a SIGHUP that nohup
// has ignored. It dies with the thread that started it. What is left of its own
// group is killed once it has ended, if this process is there to do so.
//
// Threads. Not thread-safe; Start may run on several threads at once.
class Subprocess {
 public:
  // Starts the program, and returns once it runs. Only async-signal-safe calls
  // come between fork and exec.
  //   kNotFound, kPermissionDenied, ...  The program cannot be executed.
  static absl::StatusOr<Subprocess> Start(const SubprocessOptions& options);

  // Runs `body` in a copy of this process, which exits with what it returns;
  // output and signals are as for Start without options. Buffered output is
  // written first.
  // Threads. Only in a process with one thread.
  static absl::StatusOr<Subprocess> Fork(absl::FunctionRef<int()> body);

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  // Kills the process, and its group if it has one of its own, and waits for
  // it.
  ~Subprocess();

  // Also the number of its group, if it has one of its own.
  pid_t pid() const { return pid_; }

  // Readable once the process has ended; -1 where the system has no such
  // descriptors. The first call opens it.
  int exit_fd() const;

  // How the process ended; nullopt while it runs. Never blocks.
  const std::optional<ExitStatus>& Poll();

  // The same, once it ended. 255 if that is not known, since this process
  // ignores SIGCHLD.
  const ExitStatus& Wait();

  // The result of Poll or Wait; nullopt before.
  const std::optional<ExitStatus>& status() const { return status_; }

  // Sends a signal to the process; does nothing once Poll has seen its end.
  void Signal(int signal);

  // Sends a signal to the process and all descendants of its group.
  void SignalGroup(int signal);

 private:
  Subprocess(pid_t pid, bool own_group);

  void Reap();

  pid_t pid_ = -1;
  bool own_group_ = true;
  mutable UniqueFd pid_fd_;
  std::optional<ExitStatus> status_;
};

// A pipe whose ends are not inherited by programs that are executed.
struct Pipe {
  UniqueFd read;
  UniqueFd write;
};
absl::StatusOr<Pipe> MakePipe();

// The command line of this process, its name included.
std::vector<std::string> OwnArguments();

// The environment of this process, each "NAME=value", with the entries of
// `replacements` in place of those of the same names.
std::vector<std::string> OwnEnvironment(
    const std::vector<std::string>& replacements = {});

// Adds `options` to those of AddressSanitizer and ThreadSanitizer in an
// environment: "a=1:b=2", after the existing ones, so that they take
// precedence.
void AddSanitizerOptions(std::vector<std::string>& environment,
                         absl::string_view options);

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_SUBPROCESS_H_
