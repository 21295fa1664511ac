#include "sherd/testing/harness/flight_report.h"

#include <signal.h>
#include <sys/stat.h>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/flight/flight_analysis.h"
#include "sherd/core/comm/flight/flight_files.h"
#include "sherd/core/comm/flight/watchdog.h"
#include "sherd/core/process/process_status.h"

namespace sherd::testing::internal {

std::optional<FlightSummary> SummarizeFlights(const std::string& directory) {
  if (directory.empty()) return std::nullopt;
  const absl::StatusOr<FlightDirectoryFiles> files =
      ReadFlightDirectory(FileSystem::Posix(), directory);
  if (!files.ok()) return std::nullopt;
  const FlightReport report = AnalyzeFlight(*files);
  FlightSummary summary;
  summary.text = FormatFlightReport(report);
  for (const FlightGroupReport& group : report.groups) {
    for (const FlightFinding& finding : group.findings) {
      summary.findings.push_back(
          absl::StrCat("group \"", group.name, "\": ", finding.text));
      if (finding.kind != FlightFindingKind::kNoDump) {
        summary.named.insert(finding.ranks.begin(), finding.ranks.end());
      }
    }
  }
  return summary;
}

void FlightRequests::Ask(int rank, pid_t process) {
  if (directory_.empty()) return;
  const std::optional<ProcessStatus> status = ReadProcessStatus(process);
  // Without a handler the signal would end the process. The thread that writes
  // the dump exists as long as the process has a group.
  if (!status || !status->Catches(SIGUSR1) ||
      !HasThread(process, ::sherd::internal::kWatchdogThread)) {
    return;
  }
  Versions before = VersionsOf(rank);
  if (kill(process, SIGUSR1) == 0) asked_[rank] = std::move(before);
}

bool FlightRequests::AllAnswered() {
  for (auto it = asked_.begin(); it != asked_.end();) {
    it = VersionsOf(it->first) == it->second ? std::next(it) : asked_.erase(it);
  }
  return asked_.empty();
}

FlightRequests::Versions FlightRequests::VersionsOf(int rank) const {
  Versions versions;
  const auto names = FileSystem::Posix().List(directory_);
  if (!names.ok()) return versions;
  const std::string stem = absl::StrCat("flight.rank-", rank, ".");
  for (const auto& name : *names) {
    if (!absl::StartsWith(name, stem) || !absl::EndsWith(name, ".json")) {
      continue;
    }
    struct stat info;
    if (stat(JoinPath(directory_, name).c_str(), &info) != 0) continue;
    versions[name] = {
        static_cast<uint64_t>(info.st_ino),
        info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
  }
  return versions;
}

}  // namespace sherd::testing::internal
