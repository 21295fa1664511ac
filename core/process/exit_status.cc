#include "sherd/core/process/exit_status.h"

#include <string.h>
#include <sys/wait.h>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

// Unlike that of strsignal(), this text is good in every thread.
const char* Describe(int signal) {
  const char* const description = sigdescr_np(signal);
  return description != nullptr ? description : "real-time";
}

}  // namespace

ExitStatus ExitStatus::OfCode(int code) {
  return ExitStatus(W_EXITCODE(code, 0));
}

ExitStatus ExitStatus::OfSignal(int signal) {
  return ExitStatus(W_EXITCODE(0, signal));
}

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

int ExitStatus::ShellCode() const {
  return code().value_or(128 + signal().value_or(0));
}

std::string ExitStatus::ToString() const {
  if (code()) return absl::StrCat("exited with code ", *code());
  if (!signal()) return absl::StrCat("ended with status ", wait_status_);
  return absl::StrCat("was killed by signal ", *signal(), " (",
                      Describe(*signal()), ")");
}

std::string ExitStatus::ToPhrase() const {
  if (code()) return absl::StrCat("exit code ", *code());
  if (!signal()) return absl::StrCat("status ", wait_status_);
  return absl::StrCat("killed by signal ", *signal(), " (", Describe(*signal()),
                      WCOREDUMP(wait_status_) ? ", core dumped)" : ")");
}

}  // namespace sherd
