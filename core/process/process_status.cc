#include "sherd/core/process/process_status.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>

#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

std::string PathOf(int64_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

// From the letter that both files have.
ProcessState StateOfLetter(char letter) {
  switch (letter) {
    case 'Z':
    case 'X':
      return ProcessState::kEnded;
    case 'T':
      return ProcessState::kStopped;
    case 't':
      return ProcessState::kTraced;
    default:
      return ProcessState::kRunning;
  }
}

// The value of a line of /proc/PID/status; empty if the line is missing.
std::string_view ValueOf(std::string_view status, std::string_view name) {
  while (!status.empty()) {
    const std::string_view line = status.substr(0, status.find('\n'));
    status.remove_prefix(std::min(line.size() + 1, status.size()));
    if (line.starts_with(name) && line.substr(name.size()).starts_with(":\t")) {
      return line.substr(name.size() + 2);
    }
  }
  return {};
}

}  // namespace

std::string ReadProcFile(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  while (file.is_open()) {
    char buffer[4096];
    const ssize_t size = read(file.get(), buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

std::optional<ProcessStat> ParseProcessStat(std::string_view stat) {
  // Field 2 is the program's name in parentheses and may hold anything, so
  // counting starts behind the last one, with the state, field 3.
  const size_t end_of_name = stat.rfind(')');
  if (end_of_name == std::string_view::npos) return std::nullopt;
  std::string_view fields = stat.substr(end_of_name + 1);
  if (fields.size() < 2 || fields[0] != ' ') return std::nullopt;
  ProcessStat found = {.state = StateOfLetter(fields[1])};
  int at = 2;
  // Of fields in rising order.
  const auto number = [&](int field) -> std::optional<uint64_t> {
    for (; at < field; ++at) {
      const size_t space = fields.find(' ');
      if (space == std::string_view::npos) return std::nullopt;
      fields.remove_prefix(space + 1);
    }
    uint64_t value = 0;
    const auto parsed =
        std::from_chars(fields.data(), fields.data() + fields.size(), value);
    if (parsed.ec != std::errc()) return std::nullopt;
    return value;
  };
  const std::optional<uint64_t> start_time = number(22);
  if (!start_time) return std::nullopt;
  found.start_time = *start_time;
  const uint64_t memory_bytes = number(23).value_or(0);
  // Linux (fs/binfmt_elf.c) writes it after the places of the environment,
  // which are 0 or not apart before; 1 if this process may not look.
  const bool in_exec = number(26).value_or(1) == 0;
  const uint64_t begin = number(50).value_or(0);
  const uint64_t end = number(51).value_or(0);
  found.has_environment = memory_bytes > 0 && (in_exec || end > begin);
  return found;
}

std::optional<ProcessStat> ReadProcessStat(int64_t pid) {
  return ParseProcessStat(ReadProcFile(PathOf(pid, "stat")));
}

std::optional<ProcessStatus> ParseProcessStatus(std::string_view status) {
  const std::string_view state = ValueOf(status, "State");
  const std::string_view caught = ValueOf(status, "SigCgt");
  if (state.empty()) return std::nullopt;
  ProcessStatus found = {.state = StateOfLetter(state[0])};
  const auto parsed = std::from_chars(
      caught.data(), caught.data() + caught.size(), found.caught_signals, 16);
  if (parsed.ec != std::errc()) return std::nullopt;
  return found;
}

std::optional<ProcessStatus> ReadProcessStatus(int64_t pid) {
  return ParseProcessStatus(ReadProcFile(PathOf(pid, "status")));
}

bool HasThread(int64_t pid, std::string_view name) {
  std::error_code error;
  std::filesystem::directory_iterator thread(PathOf(pid, "task"), error);
  const std::filesystem::directory_iterator end;
  while (!error && thread != end) {
    std::string found = ReadProcFile((thread->path() / "comm").string());
    if (found.ends_with('\n')) found.pop_back();
    if (found == name) return true;
    thread.increment(error);
  }
  return false;
}

}  // namespace sherd
