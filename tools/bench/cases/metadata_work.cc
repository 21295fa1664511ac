#include "sherd/tools/bench/cases/metadata_work.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "sherd/tools/bench/harness/report.h"

namespace sherd {
namespace {

// The peak memory of this process since ResetPeak, in bytes; -1 if the kernel
// does not report it.
int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "VmHWM:")) continue;
    int64_t kilobytes = 0;
    if (!absl::ConsumeSuffix(&text, " kB") ||
        !absl::SimpleAtoi(text, &kilobytes)) {
      return -1;
    }
    return kilobytes << 10;
  }
  return -1;
}

void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

absl::Status MetadataWork::Prepare() {
  ResetPeak();
  result_ = absl::UnknownError("not done");
  return absl::OkStatus();
}

absl::Status MetadataWork::Run() {
  if (!works_) return absl::OkStatus();
  result_ = Work();
  peak_ = std::max(peak_, PeakMemory());
  return absl::OkStatus();
}

std::optional<WorkFigures> MetadataWork::Figures() const {
  if (!works_ || peak_ < 0) return std::nullopt;
  return WorkFigures{
      .way = absl::StrCat("peak ", FormatSize(peak_ >> 20 << 20), Remark())};
}

}  // namespace sherd
