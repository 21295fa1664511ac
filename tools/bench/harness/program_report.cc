#include "sherd/tools/bench/harness/program_report.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{1} << 20;

absl::Status ReadLine(absl::string_view line, ProgramReport& report) {
  const std::pair<absl::string_view, absl::string_view> field =
      absl::StrSplit(line, absl::MaxSplits(' ', 1));
  double seconds;
  int64_t bytes;
  if (field.first == "wrong") return absl::DataLossError(field.second);
  if (field.first == "failed") return absl::InternalError(field.second);
  if (field.first == "call" && absl::SimpleAtod(field.second, &seconds) &&
      seconds > 0) {
    report.seconds.push_back(seconds);
    return absl::OkStatus();
  }
  if (field.first == "cpu" && absl::SimpleAtod(field.second, &seconds) &&
      seconds >= 0) {
    report.cpu_seconds.push_back(seconds);
    return absl::OkStatus();
  }
  if (field.first == "extra" && absl::SimpleAtoi(field.second, &bytes)) {
    report.extra_bytes.push_back(bytes);
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("a program reported \"", line, "\""));
}

}  // namespace

absl::StatusOr<ProgramReport> ReadProgramReport(const std::string& path,
                                                const BenchTask& task) {
  SHERD_ASSIGN_OR_RETURN(const std::string text,
                         ReadFile(FileSystem::Posix(), path, kMaxReportBytes));
  ProgramReport report;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    SHERD_RETURN_IF_ERROR(ReadLine(line, report));
  }
  const auto calls = static_cast<size_t>(task.calls);
  if (!report.cpu_seconds.empty() && report.cpu_seconds.size() != calls) {
    return absl::InternalError(
        absl::StrCat("a program reported the CPU time of ",
                     report.cpu_seconds.size(), " calls instead of ", calls));
  }
  if (report.seconds.size() != calls ||
      report.extra_bytes.size() != static_cast<size_t>(task.world)) {
    return absl::InternalError(absl::StrCat(
        "a program reported ", report.seconds.size(), " calls instead of ",
        task.calls, " and the memory of ", report.extra_bytes.size(),
        " ranks instead of ", task.world));
  }
  return report;
}

}  // namespace sherd
