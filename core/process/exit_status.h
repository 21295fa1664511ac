#ifndef SHERD_CORE_PROCESS_EXIT_STATUS_H_
#define SHERD_CORE_PROCESS_EXIT_STATUS_H_

#include <optional>
#include <string>

namespace sherd {

// How a process ended.
class ExitStatus {
 public:
  // From the status word of waitpid().
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}

  // As if the process had returned, or been killed.
  static ExitStatus OfCode(int code);
  static ExitStatus OfSignal(int signal);

  int wait_status() const { return wait_status_; }

  bool ok() const { return ExitedWith(0); }
  bool ExitedWith(int code) const;
  bool KilledBy(int signal) const;
  // Exactly one of code() and the signal is set.
  std::optional<int> code() const;
  std::optional<int> signal() const;
  // In the shells' convention: 128 plus the signal where there is no code.
  int ShellCode() const;

  // "exited with code 3", "was killed by signal 11 (Segmentation fault)".
  std::string ToString() const;
  // As ToString, as a noun phrase: "exit code 3", "killed by signal 11
  // (Segmentation fault, core dumped)".
  std::string ToPhrase() const;

 private:
  int wait_status_;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_EXIT_STATUS_H_
