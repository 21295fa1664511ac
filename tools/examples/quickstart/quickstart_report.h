#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_REPORT_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// The result of the quickstart for one tensor.
struct TensorResult {
  std::string name;
  // "float32 [768, 2304]".
  std::string type;
  int64_t bytes = 0;
  // Layouts, in order; empty if that half was not run.
  std::string scattered;
  std::string saved;
  std::string loaded;
  // Of the reshard from `scattered` to `saved`: bytes that ranks sent to one
  // another, the fewest that any strategy sends, and its time.
  int64_t moved_bytes = 0;
  int64_t least_bytes = 0;
  double seconds = 0;

  friend bool operator==(const TensorResult&, const TensorResult&) = default;
};

// A step that handles the whole model.
struct PhaseResult {
  std::string name;
  int64_t bytes = 0;
  double seconds = 0;

  friend bool operator==(const PhaseResult&, const PhaseResult&) = default;
};

struct QuickstartReport {
  std::string model;
  int save_ranks = 0;
  int load_ranks = 0;
  std::vector<TensorResult> tensors;
  std::vector<PhaseResult> phases;

  friend bool operator==(const QuickstartReport&,
                         const QuickstartReport&) = default;
};

std::string ReportToJson(const QuickstartReport& report);

// Reads what ReportToJson wrote.
//   kDataLoss  It is something else; names `what`.
absl::StatusOr<QuickstartReport> ParseReport(absl::string_view text,
                                             absl::string_view what);

// A table of tensors and one of phases. Of a longer model than `max_tensors`,
// the largest tensors in their order and a line for all others.
std::string FormatReport(const QuickstartReport& report, size_t max_tensors);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_REPORT_H_
