#include "sherd/testing/process_state.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sherd::testing::internal {
namespace {

// Of such a file the size is not known before it has been read.
std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

std::optional<ProcessState> ParseProcessStatus(absl::string_view status) {
  ProcessState state;
  bool has_state = false;
  bool has_signals = false;
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (absl::ConsumePrefix(&line, "State:\t")) {
      has_state = true;
      state.is_stopped = absl::ConsumePrefix(&line, "T");
    } else if (absl::ConsumePrefix(&line, "SigCgt:\t")) {
      has_signals = absl::SimpleHexAtoi(line, &state.caught_signals);
    }
  }
  if (!has_state || !has_signals) return std::nullopt;
  return state;
}

std::optional<ProcessState> ReadProcessState(pid_t pid) {
  return ParseProcessStatus(ReadWhole(absl::StrCat("/proc/", pid, "/status")));
}

bool HasThread(pid_t pid, absl::string_view name) {
  std::error_code error;
  std::filesystem::directory_iterator thread(
      absl::StrCat("/proc/", pid, "/task"), error);
  const std::filesystem::directory_iterator end;
  while (!error && thread != end) {
    const std::string found = ReadWhole((thread->path() / "comm").string());
    if (absl::StripSuffix(found, "\n") == name) return true;
    thread.increment(error);
  }
  return false;
}

}  // namespace sherd::testing::internal
