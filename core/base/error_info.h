#ifndef SHERD_CORE_BASE_ERROR_INFO_H_
#define SHERD_CORE_BASE_ERROR_INFO_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sherd {

// What a program can learn about a failed operation without reading the
// message. Every error of a collective carries one.
struct ErrorInfo {
  // Name of the process group, empty if none was involved.
  std::string group;
  // Operation as the public interface names it: "all_gather", "reshard", ….
  std::string operation;
  // Position of the call among the collectives of the group, from 1; 0 if the
  // operation is not one.
  uint64_t sequence = 0;
  // Rank (in the group) to blame: the one that died, lagged, or brought the
  // bad input. Unset if unknown.
  std::optional<int> rank;

  friend bool operator==(const ErrorInfo&, const ErrorInfo&) = default;
};

// Returns `status` with `info` attached; fields already attached are kept
// where `info` leaves them empty. An OK status is returned unchanged.
[[nodiscard]] absl::Status WithErrorInfo(absl::Status status,
                                         const ErrorInfo& info);

// Shorthand for a WithErrorInfo that sets only the rank.
[[nodiscard]] absl::Status WithRank(absl::Status status, int rank);

// What was attached to `status`; all fields empty if nothing was.
[[nodiscard]] ErrorInfo GetErrorInfo(const absl::Status& status);

// The rank to blame, if known.
[[nodiscard]] std::optional<int> BlamedRank(const absl::Status& status);

// Returns `status` with "`context`: " before its message. Code and attached
// information stay. An OK status is returned unchanged.
[[nodiscard]] absl::Status Annotate(absl::Status status,
                                    absl::string_view context);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_ERROR_INFO_H_
