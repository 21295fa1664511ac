#include "sherd/tools/sherd/run/run_directories.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/flight/flight_files.h"

namespace sherd {
namespace {

// Files carry the time of the last tick.
constexpr absl::Duration kTick = absl::Milliseconds(20);

std::string Parent() {
  std::error_code error;
  return std::filesystem::absolute(GetKnobOr(Knob::kTmpDir, "/tmp"), error)
      .string();
}

}  // namespace

absl::StatusOr<TemporaryDirectory> TemporaryDirectory::Create(
    const std::string& prefix, const std::string& purpose) {
  std::string path = JoinPath(Parent(), absl::StrCat(prefix, "XXXXXX"));
  if (mkdtemp(path.data()) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the directory ", path, " ", purpose, ": ",
                     strerror(errno), " (TMPDIR chooses the place)"));
  }
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  if (!path_.empty()) FileSystem::Posix().RemoveAll(path_).IgnoreError();
}

void TemporaryDirectory::KeepUnlessEmpty() {
  if (!path_.empty() && rmdir(path_.c_str()) != 0) path_.clear();
}

void RemoveOldFlightDirectories() {
  FileSystem& files = FileSystem::Posix();
  const std::string parent = Parent();
  const absl::StatusOr<std::vector<std::string>> names = files.List(parent);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, "sherd-flight-")) continue;
    const std::string path = JoinPath(parent, name);
    struct stat info;
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
        info.st_uid != geteuid() ||
        absl::Now() - absl::TimeFromTimespec(info.st_mtim) <
            kFlightDirectoryLife) {
      continue;
    }
    files.RemoveAll(path).IgnoreError();
  }
}

FlightReport ReadFlightReport(const std::string& directory, absl::Time start) {
  if (directory.empty()) return {};
  absl::StatusOr<FlightDirectoryFiles> files =
      ReadFlightDirectory(FileSystem::Posix(), directory);
  if (!files.ok()) return {};
  std::erase_if(files->files, [&](const FlightFile& file) {
    return absl::FromUnixNanos(file.wall_ns) < start;
  });
  return files->files.empty() ? FlightReport() : AnalyzeFlight(*files);
}

bool HaveDumped(const std::string& directory, const std::vector<int>& ranks,
                absl::Time since) {
  if (ranks.empty()) return true;
  const absl::StatusOr<std::vector<std::string>> names =
      FileSystem::Posix().List(directory);
  if (!names.ok()) return false;
  std::set<int> dumped;
  for (const std::string& name : *names) {
    absl::string_view number = name;
    int rank;
    struct stat info;
    if (!absl::ConsumePrefix(&number, "flight.rank-") ||
        !absl::EndsWith(number, ".json") ||
        !absl::SimpleAtoi(number.substr(0, number.find('.')), &rank) ||
        stat(JoinPath(directory, name).c_str(), &info) != 0 ||
        absl::TimeFromTimespec(info.st_mtim) < since - kTick) {
      continue;
    }
    dumped.insert(rank);
  }
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return dumped.count(rank) != 0; });
}

}  // namespace sherd
