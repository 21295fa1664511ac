#include "sherd/core/process/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <system_error>

namespace sherd {
namespace {

template <typename T>
bool ParseNumber(std::string_view text, T* number) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string BootId() {
  const std::string text = ReadProcFile("/proc/sys/kernel/random/boot_id");
  return text.substr(0, text.find('\n'));
}

std::string OwnNamespace(const char* kind) {
  char target[64];
  const ssize_t n = readlink((std::string("/proc/self/ns/") + kind).c_str(),
                             target, sizeof(target));
  return n < 0 ? std::string() : std::string(target, n);
}

ProcessIdentity ProcessIdentity::Own() { return Of(getpid()); }

ProcessIdentity ProcessIdentity::Of(int64_t pid) {
  return {pid, ReadProcessStat(pid).value_or(ProcessStat{}).start_time};
}

ProcessState StateOf(const ProcessIdentity& process) {
  const std::optional<ProcessStat> stat = ReadProcessStat(process.pid);
  if (!stat) {
    const bool has_ended =
        kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
    return has_ended ? ProcessState::kEnded : ProcessState::kUnknown;
  }
  // Another start time is another process with a reused number.
  const bool is_another =
      process.start_time != 0 && stat->start_time != process.start_time;
  return is_another ? ProcessState::kEnded : stat->state;
}

std::optional<ProcessDescription> ProcessDescription::Parse(
    std::string_view text) {
  std::array<std::string_view, 3> fields;
  for (std::string_view& field : fields) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    field = text.substr(0, space);
    text.remove_prefix(space + 1);
  }
  ProcessDescription description = {.boot_id = std::string(fields[0]),
                                    .pid_namespace = std::string(fields[1])};
  if (!ParseNumber(fields[2], &description.process.pid) ||
      !ParseNumber(text, &description.process.start_time)) {
    return std::nullopt;
  }
  return description;
}

std::string ProcessDescription::ToText() const {
  return boot_id + " " + pid_namespace + " " + std::to_string(process.pid) +
         " " + std::to_string(process.start_time);
}

std::string DescribeProcess(const ProcessIdentity& process) {
  return ProcessDescription{BootId(), OwnNamespace("pid"), process}.ToText();
}

std::string DescribeOwnProcess() {
  return DescribeProcess(ProcessIdentity::Own());
}

ProcessState StateOf(std::string_view description) {
  const std::optional<ProcessDescription> found =
      ProcessDescription::Parse(description);
  if (!found || found->process.start_time == 0 || found->boot_id != BootId() ||
      found->pid_namespace != OwnNamespace("pid")) {
    return ProcessState::kUnknown;
  }
  return StateOf(found->process);
}

}  // namespace sherd
