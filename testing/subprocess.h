#ifndef SHERD_TESTING_SUBPROCESS_H_
#define SHERD_TESTING_SUBPROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd::testing::internal {

// How a process ended.
class ExitStatus {
 public:
  // From the status word of waitpid().
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}

  bool ExitedWith(int code) const;
  bool KilledBy(int signal) const;
  // Nothing if the other one holds.
  std::optional<int> code() const;
  std::optional<int> signal() const;

  // "exited with code 3", "was killed by signal 11 (Segmentation fault)".
  std::string ToString() const;

 private:
  int wait_status_;
};

struct SubprocessOptions {
  std::string program;
  // Including the program's own name.
  std::vector<std::string> arguments;
  // The whole environment, each "NAME=value".
  std::vector<std::string> environment;
  // Becomes standard output and standard error. Borrowed.
  int output_fd = -1;
  // Stay open in the process under the same numbers. Borrowed.
  std::vector<int> inherited_fds;
};

// A child process in a process group of its own, with an empty standard input
// and all signals at their defaults. It dies with the thread that started it,
// and what is left of its group dies with it.
//
// Threads. Not thread-safe; Start may run on several threads at once.
class Subprocess {
 public:
  // Starts the program. Only async-signal-safe calls run between fork and
  // exec.
  //   kNotFound, kPermissionDenied, ...  It cannot be executed.
  static absl::StatusOr<Subprocess> Start(const SubprocessOptions& options);

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;
  // Kills the group and waits for the process.
  ~Subprocess();

  pid_t pid() const { return pid_; }

  // Readable once the process has ended; -1 where the system has no such
  // descriptors.
  int exit_fd() const { return pid_fd_.get(); }

  // How the process ended, or nothing while it runs. Never blocks.
  const std::optional<ExitStatus>& Poll();

  // The same, once it ended.
  const ExitStatus& Wait();

  // Sends a signal to the process; does nothing once Poll has seen its end.
  void Signal(int signal);

  // Sends a signal to the process and all descendants of its group.
  void SignalGroup(int signal);

 private:
  explicit Subprocess(pid_t pid);

  void Reap();

  pid_t pid_ = -1;
  UniqueFd pid_fd_;
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

// The environment of this process, each "NAME=value".
std::vector<std::string> OwnEnvironment();

// Adds `options` to those of AddressSanitizer in an environment: "a=1:b=2",
// which come after those that there are, and so win.
void AddSanitizerOptions(std::vector<std::string>& environment,
                         absl::string_view options);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_SUBPROCESS_H_
